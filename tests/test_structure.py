"""Records and the JSON objects that they are written as."""

import json
from pathlib import Path
from typing import Any

import pytest
from attempts import ATTEMPT, attempt_record
from cases import cases

from gpas_cli.errors import StoreError
from gpas_cli.schedule.slurm.queue import Queue
from gpas_cli.state.claims import Claim
from gpas_cli.store import records
from gpas_cli.structure import Record, from_mapping, to_mapping

OLD = Path(__file__).parent / "store/data/version_1/runs"
FILES: dict[str, type[Record]] = {
    "attempt.json": records.AttemptRecord, "exit.json": records.ExitRecord, "process.json": records.ProcessRecord,
    "cancel.json": records.CancelRequest, "rerun.json": records.RerunRequest, "job.json": records.JobRecord,
    "submission.json": records.SubmissionRecord, "claim.json": Claim,
}  # fmt: skip
KNOWN = {cls.__name__: cls for cls in (*vars(records).values(), Claim, Queue) if isinstance(cls, type)}


@pytest.mark.parametrize("name", FILES)
def test_records_of_version_1_are_written_again_as_they_were(name: str) -> None:
    paths = list(OLD.rglob(name))
    assert paths
    for path in paths:
        values = json.loads(path.read_text())
        assert to_mapping(from_mapping(FILES[name], values, path)) == values


@cases("cases.yaml")
def test_files_of_earlier_versions_are_written_again_as_they_were(record: str, values: dict[str, Any]) -> None:
    again = to_mapping(from_mapping(KNOWN[record], values, "a file"))
    assert {name: again[name] for name in values} == values
    assert {name: value for name, value in again.items() if name not in values and value} == {}


def test_the_lines_of_a_submission_of_version_1_are_written_again_as_they_were() -> None:
    (path,) = OLD.rglob("elements.jsonl")
    for line in path.read_text().splitlines():
        (values,) = json.loads(line)
        assert to_mapping(from_mapping(records.ElementRecord, values, path)) == values


def test_fields_of_a_newer_version_survive_also_in_nested_records() -> None:
    values = to_mapping(attempt_record("0" * 16))
    values |= {"colour": "red", "resources": values["resources"] | {"tpus": 4}}
    record = from_mapping(records.AttemptRecord, values, "attempt.json")
    assert record.unread == {"colour": "red", "resources": {"tpus": 4}}
    assert to_mapping(record) == values


@cases("cases.yaml")
def test_a_wrong_field_is_named_with_its_file(change: dict[str, Any], message: str) -> None:
    with pytest.raises(StoreError) as error:
        from_mapping(records.AttemptRecord, {**ATTEMPT, **change}, Path("runs/attempt.json"))
    assert str(error.value) == f"runs/attempt.json: {message}"


def test_missing_fields_are_all_named() -> None:
    with pytest.raises(StoreError, match=r"process\.json: no fields 'host', 'pid'"):
        from_mapping(records.ProcessRecord, {}, "process.json")
    with pytest.raises(StoreError, match=r"job\.json: no field 'time'"):
        from_mapping(records.JobRecord, {"job": "7"}, "job.json")

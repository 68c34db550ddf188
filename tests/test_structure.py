"""Records and the JSON objects that they are written as."""

import copy
import json
import pickle
from dataclasses import FrozenInstanceError, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import pytest
from attempts import ATTEMPT, attempt_record
from cases import cases

from gpas_cli.errors import StoreError
from gpas_cli.schedule.slurm.queue import Queue
from gpas_cli.spec.norm import LNS, Norm
from gpas_cli.state.claims import Claim
from gpas_cli.store import records
from gpas_cli.structure import Frozen, Record, from_mapping, to_mapping

OLD = Path(__file__).parent / "store/data/version_1/runs"
FILES: dict[str, type[Record]] = {
    "attempt.json": records.AttemptRecord, "exit.json": records.ExitRecord, "process.json": records.ProcessRecord,
    "cancel.json": records.CancelRequest, "rerun.json": records.RerunRequest, "job.json": records.JobRecord,
    "submission.json": records.SubmissionRecord, "claim.json": Claim,
}  # fmt: skip
# Files as earlier versions wrote them, of which no run directory is kept.
KINDS: dict[str, type[Record]] = {**vars(records), "Claim": Claim, "Queue": Queue}


@pytest.mark.parametrize("name", FILES)
def test_records_of_version_1_are_written_again_as_they_were(name: str) -> None:
    paths = list(OLD.rglob(name))
    assert paths
    for path in paths:
        values = json.loads(path.read_text())
        assert to_mapping(from_mapping(FILES[name], values, path)) == values


@cases("cases.yaml")
def test_files_of_earlier_versions_are_written_again_as_they_were(record: str, text: str) -> None:
    values = json.loads(text)
    again = to_mapping(from_mapping(KINDS[record], values, "a file"))
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


@dataclass(frozen=True, kw_only=True)
class Theirs(LNS):
    """A class of another package, which decorates itself as documented."""

    strength: float  # without a default, behind inherited ones
    names: list[str] = field(default_factory=list)
    seen: int = field(default=0, compare=False, repr=False, metadata={"low": 0})


class Said(Queue, kw_only=True):
    """A class of another package, as those of this one are written."""

    strength: float


def test_classes_of_other_packages_derive_from_ours_decorated_or_not() -> None:
    one = Theirs(strength=2.0, seen=1)
    assert replace(one, seen=2) == one != replace(one, strength=3.0)
    assert repr(one) == "Theirs(apply='init', strength=2.0, names=[])"
    assert fields(Theirs)[-1].metadata == {"low": 0}
    assert one.wiring(4, 8) == LNS().wiring(4, 8)
    assert Said(strength=2.0).strength == 2.0
    with pytest.raises(FrozenInstanceError):
        one.strength = 3.0  # type: ignore[misc]


class Ours(Frozen):
    """One field of each kind."""

    name: str
    inner: Norm | None = None
    secret: int = field(default=0, repr=False)
    note: str = field(default="", compare=False)
    numbers: tuple[int, ...] = field(default=(), hash=False)


@dataclass(frozen=True)
class Usual:
    """The same fields, decorated."""

    name: str
    inner: Norm | None = None
    secret: int = field(default=0, repr=False)
    note: str = field(default="", compare=False)
    numbers: tuple[int, ...] = field(default=(), hash=False)


def test_frozen_classes_compare_hash_print_and_copy_as_dataclasses_do() -> None:
    changes: list[dict[str, Any]] = [{}, {"inner": Norm(2.0)}, {"secret": 1}, {"note": "a"}, {"numbers": (1,)}]
    ours, usual = ([cls("a", **change) for change in changes] for cls in (Ours, Usual))
    assert [[a == b for b in ours] for a in ours] == [[a == b for b in usual] for a in usual]
    assert [[hash(a) == hash(b) for b in ours] for a in ours] == [[hash(a) == hash(b) for b in usual] for a in usual]
    assert [repr(one).replace("Ours", "Usual") for one in ours] == list(map(repr, usual))
    for one in ours:
        assert pickle.loads(pickle.dumps(one)) == copy.deepcopy(one) == replace(one) == one != Usual(**vars(one))
    with pytest.raises(TypeError, match="unhashable"):
        hash(Ours([]))  # type: ignore[arg-type]

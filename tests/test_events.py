"""The events of journals: what is written is read again, and no line, old, newer or damaged, stops a reader."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from cases import cases

from gpas_cli.events import KINDS, Event, Malformed, Outcome, Phase, Step, Unknown, Verified, event_of, fields_of
from gpas_cli.store.journal import Journal, decode, encode, read
from gpas_cli.structure import Number, plain

OLD = sorted((Path(__file__).parent / "store/data/version_1/runs").rglob("journal.jsonl"))
GONE = {"gates_in_graph", "gemm_speedup"}  # fields that events of version 1 had and none has today


def line_of(event: Event, **envelope: Any) -> dict[str, Any]:
    return {"kind": event.kind, **envelope, **plain(fields_of(event))}


@pytest.mark.parametrize("path", OLD, ids=lambda path: "/".join(path.parts[-3:-1]))
def test_journals_of_version_1_are_written_again_as_they_were(path: Path) -> None:
    lines, _, damaged = read(path)
    assert damaged == 0
    assert not [line.event for line in lines if isinstance(line.event, Unknown | Malformed)]
    assert {name for line in lines for name in line.event.unread} <= GONE
    again = [encode({"n": line.n, "t": line.t, **line_of(line.event)}) for line in lines]
    assert [decode(data.rstrip()) for data in again] == [line.values for line in lines]
    # The fields of an outcome had another order, and fields that no event has today come last.
    kept = [
        d for d, line in zip(again, lines, strict=True) if not (isinstance(line.event, Outcome) or line.event.unread)
    ]
    assert set(kept) <= set(path.read_bytes().splitlines(keepends=True))


def test_a_started_job_of_version_1_has_its_facts() -> None:
    started = read(OLD[0])[0][0].event
    assert (started.host, started.processes, started.environment["gpas"]) == ("node7", 1, "0.1.0")


@pytest.mark.parametrize("cls", KINDS.values(), ids=KINDS)
def test_an_event_with_all_its_fields_is_read_as_it_was_written(cls: type[Event]) -> None:
    samples = {
        int: 3, Number: 0.5, str: "text", bool: True, Mapping[str, Any]: {"a": 1},
        Mapping[str, str]: {"a": "b"}, Mapping[str, int]: {"a": 2},
        Mapping[str, Sequence[Number]]: {"a": (0.5,)}, Mapping[str, Number | None]: {"a": 1.5},
        Mapping[str, Sequence[Number | None]]: {"gate": (0.5, None)},
    }  # fmt: skip
    samples |= {kind | None: value for kind, value in samples.items()}
    names = {name: kind for name, kind in get_type_hints(cls, include_extras=True).items() if name != "unread"}
    event = cls(**{name: samples[kind] for name, kind in names.items()})
    assert event_of(line_of(event, n=0, t=1.0)) == event


def test_numbers_that_are_not_finite_are_words_in_a_line() -> None:
    step = Step(1, loss=math.nan, lr=math.inf, grad_norm=-math.inf)
    line = line_of(step)
    assert [line[name] for name in ("loss", "lr", "grad_norm")] == ["nan", "inf", "-inf"]
    back = event_of(line)
    assert math.isnan(back.loss)
    assert (back.lr, back.grad_norm) == (math.inf, -math.inf)
    layers = event_of({"kind": "layers", "step": 1, "values": {"gate": ["nan", None]}})
    assert math.isnan(layers.values["gate"][0])


def test_what_is_none_is_not_written_and_what_was_not_written_has_its_default() -> None:
    assert fields_of(Phase("tokenising")) == {"name": "tokenising"}
    assert event_of({"kind": "phase", "name": "tokenising"}) == Phase("tokenising")
    assert event_of({"kind": "outcome", "outcome": "done"}) == Outcome("done", step=0, cause="", metrics={})


def test_kinds_and_fields_of_a_newer_version_survive(tmp_path: Path) -> None:
    values = [{"kind": "weather", "sky": "blue", "rain": None}, {"kind": "step", "step": 3, "watts": 250, "loss": 2.5}]
    found = [event_of({"n": 0, "t": 1.0, **each}) for each in values]
    assert found == [Unknown("weather"), Step(3, loss=2.5)]
    journal = Journal(tmp_path / "journal.jsonl")
    for event in found:
        journal.append(event)
    journal.close()
    assert [{**line.values} | each for line, each in zip(read(journal.path)[0], values, strict=True)] == [
        dict(line.values) for line in read(journal.path)[0]
    ]


@cases("cases.yaml")
def test_a_malformed_event_says_what_is_wrong_and_keeps_its_fields(values: dict[str, Any], problem: str) -> None:
    event = event_of({"n": 7, "t": 1.0, **values})
    assert problem in event.problem
    assert line_of(event) == values


def test_a_number_beyond_all_floats_is_malformed() -> None:
    assert "expected a number" in event_of({"kind": "step", "step": 1, "loss": 10**400}).problem


def test_events_are_compared_by_their_fields() -> None:
    assert Verified("train", {"0": "aa"}) == Verified("train", {"0": "aa"})
    assert Step(1).kind == "step"
    with pytest.raises(dataclasses.FrozenInstanceError):
        Step(1).step = 2

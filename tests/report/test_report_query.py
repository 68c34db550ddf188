"""The database's answers, from an in-memory SQLite filled by hand."""

import math
from pathlib import Path

import pytest
from report_cells import entry, spec
from report_database import add
from sqlalchemy import Engine, event

from gpas_cli.errors import UnknownCell
from gpas_cli.origin.diff import differences
from gpas_cli.origin.provenance import trace_number
from gpas_cli.report import query
from gpas_cli.report.query import LAST, curves, layer_curves
from gpas_cli.report.recorded import SPIKE_METRICS, read_results, rows_through, stage_keys
from gpas_cli.report.tables.grid_table import build


def test_spikes_of_all_attempts_are_counted_once_each(engine: Engine) -> None:
    resumed, calm = entry(seed=1), entry(seed=2)
    add(engine, resumed.cell, 1, "interrupted", spikes={"spike_loss": [3, 40], "spike_grad_norm": [7]})
    add(engine, resumed.cell, 2, "done", 33.0, spikes={"spike_loss": [40, 55]})
    add(engine, calm.cell, 1, "done", 34.0)
    gone = add(engine, entry(seed=3).cell, 1, "done", 35.0, gone=1.0, spikes={"spike_loss": [3]})
    entries = [resumed, calm]
    found = read_results(engine, [*stage_keys(entries), gone])
    keys = [resumed.cell.key, calm.cell.key, gone]
    counts = [tuple(found[key].metrics.get(name) for name in SPIKE_METRICS.values()) for key in keys]
    assert counts == [(3, 1), (0, 0), (None, None)]
    (row,) = build(entries, {}, found, spec(value="loss_spikes")).rows
    assert row.cells[0].values == {1: 3, 2: 0}


def test_skipped_updates_are_counted_where_there_can_be_any(engine: Engine) -> None:
    scaled, steady, single = entry(seed=1), entry(seed=2), entry(seed=3)
    add(engine, scaled.cell, 1, "interrupted", precision="fp16", spikes={"skipped": [1, 9]})
    add(engine, scaled.cell, 2, "done", 33.0, precision="fp16", spikes={"skipped": [9]})
    add(engine, steady.cell, 1, "done", 34.0, precision="fp16")
    add(engine, single.cell, 1, "done", 35.0)
    entries = [scaled, steady, single]
    found = read_results(engine, stage_keys(entries))
    assert [found[one.cell.key].metrics.get("skipped_updates") for one in entries] == [2, 0, None]


def test_the_latest_decisive_attempt_counts(engine: Engine) -> None:
    cell = entry().cell
    key = add(engine, cell, 2, "done", 33.0, code="new", fingerprint="f00d", git_dirty=False)
    add(engine, cell, 1, "done", 99.0, code="old")
    add(engine, cell, 3, "failed", 11.0)
    add(engine, cell, 4, None)
    found = read_results(engine, [key, "0" * 16])
    assert list(found) == [key]
    one = found[key]
    assert (one.number, one.metrics["perplexity"], one.code, one.stage) == (2, 33.0, "new", "pretrain")
    assert (one.fingerprint, one.git_dirty, one.cause, one.directory) == ("f00d", False, "", f"{key[:2]}/{key}/002")


def test_diverged_is_decisive_and_running_is_not(engine: Engine) -> None:
    diverged, running = entry(seed=1).cell, entry(seed=2).cell
    keys = [add(engine, diverged, 1, "diverged", cause="loss is nan"), add(engine, running, 1, None)]
    found = read_results(engine, keys)
    assert [(r.outcome, r.cause) for r in found.values()] == [("diverged", "loss is nan")]


def test_a_number_that_is_not_one_survives(engine: Engine) -> None:
    key = add(engine, entry().cell, 1, "diverged", math.nan)
    assert math.isnan(read_results(engine, [key])[key].metrics["perplexity"])


def test_more_keys_than_one_statement_takes(engine: Engine) -> None:
    key = add(engine, entry().cell, 1, "done", 33.0)
    keys = [f"{i:016x}" for i in range(3000)]
    assert list(read_results(engine, [*keys, key, key])) == [key]
    assert read_results(engine, []) == {}


def test_attempts_are_in_order_with_their_metrics(engine: Engine) -> None:
    cell = entry().cell
    key = add(engine, cell, 1, "interrupted", resumed_from=0)
    add(engine, cell, 2, "done", 33.0, resumed_from=500)
    shown = query.attempts(engine, key)
    assert [(a["number"], a["outcome"], a["resumed_from"], a["metrics"]) for a in shown] == [
        (1, "interrupted", 0, {}),
        (2, "done", 500, {"perplexity": 33.0}),
    ]
    assert query.attempts(engine, "0" * 16) == []


def test_why_shows_all_attempts(engine: Engine, tmp_path: Path) -> None:
    gated = entry("pre", "gpas", optim={"lr": 1e-3, "warmup": 1, "steps": 100, "clip_gates": 0.01}).cell
    key = add(engine, gated, 1, "failed", cause="killed", host="a1", git_commit="abc", git_dirty=True)
    add(engine, gated, 2, "done", 33.0, gpu="H200", fingerprint="f00d")
    checkpoints = tmp_path / key[:2] / key / "002" / "checkpoints"
    checkpoints.mkdir(parents=True)
    for name in ("step-00000090", "step-00000100", ".writing-step-00000110"):
        (checkpoints / name).mkdir()
    with engine.connect() as connection:
        found = trace_number(rows_through(connection), tmp_path, key)
    assert (found.key, found.stage, found.name, found.decisive) == (key, "pretrain", "demo/a", 2)
    first, second = found.attempts
    assert (first.outcome, first.cause, first.facts["host"], first.facts["git_dirty"]) == (
        "failed", "killed", "a1", True,
    )  # fmt: skip
    assert first.checkpoint is None
    assert (second.metrics, second.facts["gpu"], second.facts["fingerprint"]) == ({"perplexity": 33.0}, "H200", "f00d")
    assert second.log == tmp_path / key[:2] / key / "002" / "log.txt"
    assert second.checkpoint == checkpoints / "step-00000100"


def test_why_of_a_cell_that_never_ran(engine: Engine, tmp_path: Path) -> None:
    with engine.connect() as connection, pytest.raises(UnknownCell, match="has no attempt at this stage"):
        trace_number(rows_through(connection), tmp_path, "0" * 16)


def test_differences_are_dotted() -> None:
    shown = differences({"a": {"b": 1, "c": 2}, "d": 3}, {"a": {"b": 1, "c": 5}, "e": None})
    assert [(d.setting, d.a, d.b) for d in shown] == [("a.c", 2, 5), ("d", 3, None)]


@pytest.fixture
def keys(engine: Engine) -> list[str]:
    """Return the keys of a stage with two attempts, of one with one, and of one without."""
    cell, other, none = (entry(seed=seed).cell for seed in (1, 2, 3))
    key = add(engine, cell, 1, "interrupted", curves={10: 5.0, 20: 4.0, 30: 3.9}, layers={10: [0.1, 0.2], 20: [0.3]})
    add(engine, cell, 2, "done", 33.0, curves={20: 4.1, 30: 3.5, 40: 3.0}, layers={20: [0.4, 0.5]})
    return [key, add(engine, other, 1, "done", 33.0, curves={10: 77.0}), none.stages[0].key]


def test_attempts_are_joined_and_the_latest_counts(engine: Engine, keys: list[str]) -> None:
    assert curves(engine, keys, "loss") == {
        keys[0]: [(10, 5.0), (20, 4.1), (30, 3.5), (40, 3.0)],
        keys[1]: [(10, 77.0)],
    }
    assert layer_curves(engine, keys, "gate") == {keys[0]: [(10, {0: 0.1, 1: 0.2}), (20, {0: 0.4, 1: 0.5})]}
    assert curves(engine, keys, "lr") == {}


def test_one_attempt_alone(engine: Engine, keys: list[str]) -> None:
    assert curves(engine, keys[:1], "loss", number=1) == {keys[0]: [(10, 5.0), (20, 4.0), (30, 3.9)]}


@pytest.mark.parametrize(("until", "last"), [(LAST, (40, 3.0)), (39, (30, 3.5)), (10, (10, 5.0))])
def test_the_last_point_until_a_step(engine: Engine, keys: list[str], until: int, last: tuple[int, float]) -> None:
    assert curves(engine, keys, "loss", until=until) == {keys[0]: [last], keys[1]: [(10, 77.0)]}
    assert curves(engine, keys, "loss", until=9) == {}


def test_hundreds_of_stages_take_a_few_statements(engine: Engine, keys: list[str]) -> None:
    asked: list[str] = []
    event.listen(engine, "before_cursor_execute", lambda *of: asked.append(of[2]))
    assert set(curves(engine, [*keys, *(f"{i:016x}" for i in range(900))], "loss")) == set(keys[:2])
    assert len(asked) == 2

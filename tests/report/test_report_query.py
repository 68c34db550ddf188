"""The database's answers, from an in-memory SQLite filled by hand."""

from pathlib import Path

import pytest
from goldens import as_yaml, compact, compare, golden_cases
from report_cells import entry
from report_database import add
from sqlalchemy import Engine, event

from gpas_cli.errors import UnknownCell
from gpas_cli.origin.diff import differences
from gpas_cli.origin.provenance import trace_number
from gpas_cli.report import query
from gpas_cli.report.query import LAST, curves, layer_curves
from gpas_cli.report.recorded import read_results, rows_through


@pytest.mark.parametrize("title", golden_cases("attempts"))
def test_results_and_curves_are_those_of_the_golden_file(engine: Engine, title: str) -> None:
    seeds: dict[str, int] = {}
    for case in golden_cases("attempts")[title]:
        seed, number, outcome, perplexity, more = case
        seeds[add(engine, entry(seed=seed).cell, number, outcome, perplexity, **more)] = seed
    found = [
        f"seed {seeds[key]}: {as_yaml(compact({**vars(one), 'key': '', 'directory': one.directory[-3:]}))}"
        for key, one in read_results(engine, [*seeds, "0" * 16]).items()
    ]
    read = (curves(engine, seeds, "loss"), curves(engine, seeds, "loss", number=1), layer_curves(engine, seeds, "gate"))
    found += [f"  curve of seed {seeds[key]}: {of[key]}\n" for of in read for key in seeds if key in of]
    compare("attempts", title, "".join(found))


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


@pytest.mark.parametrize(("until", "last"), [(LAST, (40, 3.0)), (39, (30, 3.5)), (10, (10, 5.0))])
def test_the_last_point_until_a_step(engine: Engine, keys: list[str], until: int, last: tuple[int, float]) -> None:
    assert curves(engine, keys, "loss", until=until) == {keys[0]: [last], keys[1]: [(10, 77.0)]}
    assert curves(engine, keys, "loss", until=9) == {}


def test_hundreds_of_stages_take_a_few_statements(engine: Engine, keys: list[str]) -> None:
    asked: list[str] = []
    event.listen(engine, "before_cursor_execute", lambda *of: asked.append(of[2]))
    assert set(curves(engine, [*keys, *(f"{i:016x}" for i in range(900))], "loss")) == set(keys[:2])
    assert len(asked) == 2

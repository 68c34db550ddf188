"""Results as pandas frames, and the notebook that shows them."""

import ast
import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
from cases import cases, file_text
from face import Face, tiny

from gpas_cli import results
from gpas_cli.errors import GpasError, UnknownCell

pytestmark = pytest.mark.usefixtures("project")
NOTEBOOK = Path(__file__).parents[2] / "docs/how-to/notebook.ipynb"
GRIDS = file_text("results/grids.yaml")
PERPLEXITY = {"pre-s1": 5.0, "pre-s2": 6.0, "pre-gpas-s1": 4.0, "pre-gpas-s2": 5.5, "lns-s1": 7.0, "lns-gpas-s1": 6.0}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a project with six results in two grids."""
    made = Face(tmp_path_factory.mktemp("frames") / "project", tiny(GRIDS))
    for entry in made.cells():
        if entry.name in PERPLEXITY:
            made.trained(entry, PERPLEXITY[entry.name], host="host")
    return made.folder


@pytest.fixture
def project(made: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return that project, which is the current folder."""
    monkeypatch.chdir(made)
    return made


def test_cells_have_their_labels_states_and_facts() -> None:
    cells = results.cells("quickstart")
    assert len(cells) == 8
    first = cells.iloc[0]
    assert (first.grid, first.cell, first.norm, first.gate, first.seed) == ("quickstart", "pre-s1", "pre", "none", 1)
    assert (first.state, first.attempt, first.host, first.code) == ("done", 1, "host", "c0de")
    assert cells.set_index("cell").state["lns-s2"] == "missing"
    assert cells.ended.dt.tz is not None
    assert cells.last_step.isna().sum() == 2


def test_metrics_are_in_long_form() -> None:
    metrics = results.metrics("quickstart", where=["norm=pre", "seed=1"])
    assert [*metrics.columns[-4:]] == ["stage", "metric", "value", "stderr"]
    assert dict(zip(metrics.cell + " " + metrics.metric, metrics.value, strict=True)) == {
        "pre-s1 loss": 0.5, "pre-s1 perplexity": 5.0, "pre-gpas-s1 loss": 0.4, "pre-gpas-s1 perplexity": 4.0,
        **{f"{cell} {of}_spikes": 0.0 for cell in ("pre-s1", "pre-gpas-s1") for of in ("loss", "gradient")},
    }  # fmt: skip


def test_curves_have_a_row_for_each_point() -> None:
    loss = results.curves("loss", ["pre-s1", "quickstart/lns-s1"])
    steps = [1, 10, 20, 30, 40]
    assert loss.groupby("cell").step.apply(list).to_dict() == {"pre-s1": steps, "lns-s1": steps}
    assert loss[(loss.cell == "pre-s1") & (loss.step == 40)].value.item() == pytest.approx(0.6)
    variance = results.layer_curves("activation_variance", loss[loss.norm == "lns"].drop_duplicates("cell"))
    assert set(variance.cell) == {"lns-s1"}
    assert variance[variance.step == 40].layer.tolist() == [1, 2, 3, 4]
    assert len(results.curves("loss", "other")) == 0


def test_a_table_has_intervals_and_published_numbers() -> None:
    table = results.table("quickstart").set_index("row")
    row = table.loc["Pre-LN + GPAS"]
    assert (row["mean"], row.n, row.wanted, row.delta, row.published_gpas) == (4.75, 2, 2, -0.75, 33.49)
    assert row.delta_low < row.delta < row.delta_high
    assert math.isnan(table.loc["LNS"].delta)
    assert table.loc["LNS"].status == "1/2 seeds"


@pytest.mark.whole
def test_claims_have_a_row_for_each_part() -> None:
    claims = results.claims("gate-lowers")
    assert claims[["part", "verdict", "effect", "n"]].values.tolist() == [
        ["Pre-LN", "undecided", -0.75, 2],
        ["LNS", "undecided", -1.0, 1],
    ]
    assert claims.low[0] < -0.75 < claims.high[0]
    assert set(claims.claim_verdict) == {"undecided"}
    assert "gate-lowers" in set(results.claims(grids=["quickstart"]).claim)
    with pytest.raises(GpasError, match="did you mean 'gate-lowers'"):
        results.claims("gate-lower")


@cases("results/cases.yaml")
def test_unknown_names_get_the_nearest(kind: str, about: list[Any], more: dict[str, Any], says: str) -> None:
    with pytest.raises(GpasError, match=says) as raised:
        getattr(results, kind)(*about, **more)
    assert isinstance(raised.value, UnknownCell) == ("pre-s3" in about)


def test_cells_without_a_grid_are_refused() -> None:
    with pytest.raises(GpasError, match="it has no grid"):
        results.cells(results.cells().drop(columns="grid"))


def test_another_project_is_opened_by_its_folder_or_file(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = project / "runs"
    monkeypatch.chdir(elsewhere.parent.parent)
    for path in (project, str(project / "experiments.yaml")):
        opened = results.open(path)
        assert opened.grids == ["quickstart", "other"]
        assert len(opened.cells(["quickstart", "other"])) == 9
    with pytest.raises(GpasError, match="does not exist"):
        results.open(project / "nowhere.yaml")


def test_a_result_without_a_directory_is_left_out(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = shutil.copytree(made, tmp_path / "own")
    monkeypatch.chdir(own)
    before = results.metrics("quickstart")
    directory = own / "runs" / results.cells("quickstart").directory.iloc[0]
    directory.rename(directory.with_name("old"))
    after = results.metrics("quickstart")
    assert set(before.cell) - set(after.cell) == {"pre-s1"}


@pytest.mark.whole
def test_the_notebook_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib", reason="the extra `figures` is not installed").use("Agg")
    names: dict[str, Any] = {}
    codes = [cell for cell in json.loads(NOTEBOOK.read_text("utf-8"))["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] for cell in codes)
    shown = [_run("".join(cell["source"]), names) for cell in codes]
    assert all(value is not None for value in shown)
    assert shown[2].loc["pre", "mean"] == -0.75
    assert names["mean"].loc[40, "gpas"] == pytest.approx(0.575)


def _run(code: str, names: dict[str, Any]) -> Any:
    """Execute a cell of a notebook; return the value of its last line."""
    *statements, last = ast.parse(code).body
    exec(compile(ast.Module(statements, []), "notebook", "exec"), names)
    assert isinstance(last, ast.Expr)
    return eval(compile(ast.Expression(last.value), "notebook", "eval"), names)

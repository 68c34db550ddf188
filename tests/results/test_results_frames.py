"""Results as pandas frames, and the notebook that shows them."""

import ast
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from cases import cases, file_text
from face import Face, tiny
from goldens import compare, golden_cases

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


CHANGING = ["key", "directory", "ended"]  # columns whose values are others on another day


@pytest.mark.parametrize("title", golden_cases("frames"))
def test_a_frame_is_that_of_the_golden_file(title: str) -> None:
    kind, about, more = golden_cases("frames")[title]
    frame = getattr(results, kind)(*about, **more).drop(columns=CHANGING, errors="ignore")
    compare("frames", title, frame.to_csv(index=False, float_format="%.6g"))


def test_a_frame_selects_its_cells_and_has_times_in_utc() -> None:
    cells = results.cells("quickstart")
    assert cells.ended.dt.tz is not None
    variance = results.layer_curves("activation_variance", cells[(cells.norm == "lns") & (cells.seed == 1)])
    assert set(variance.cell) == {"lns-s1", "lns-gpas-s1"}


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

"""The face without training: fast, without torch, one message for a mistake."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from face import Said
from face import gpas as run
from shipped import excerpt

from gpas_cli.__main__ import main

REPOSITORY = Path(__file__).parents[2]
NO_TORCH = 'raise ImportError("torch is not installed here")\n'


ALL = "import json, sys; from face import run_main; sys.exit(max(map(run_main, json.loads(sys.argv[1]))))"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a project made by `gpas init`, with some of its grids, and a folder in which importing torch fails."""
    folder = tmp_path_factory.mktemp("face")
    (folder / "block").mkdir()
    (folder / "block/torch.py").write_text(NO_TORCH)
    run(folder, "init", "here")
    quick = ("quickstart", "quickstart-ablations", "quickstart-lr", "quickstart-importance")
    papers = ("table2", "table4-activation", "table4-position", "appendix-7b")
    (folder / "here/experiments.yaml").write_text(excerpt(*quick, *papers))
    return folder


def gpas(folder: Path, *words: str, expect: int | None = 0) -> Said:
    return run(folder / "here", *words, expect=expect)


def test_commands_work_without_torch(project: Path) -> None:
    commands = [
        ("--help",), ("--version",), ("plan", "--json"), ("plan", "table2", "--gpu", "H100"), ("status",),
        ("status", "--all", "--json"), ("status", "--watch"), ("table", "--paper"),
        ("table", "table2", "--paper", "--format", "latex"), ("explain", "mix-gpas-s1"), ("run", "grid", "--dry-run"),
        ("run", "quickstart", "--dry-run"), ("run", "grid", "--help"), ("data", "status"),
        ("data", "status", "--json"), ("doctor",),
    ]  # fmt: skip
    paths = [project / "block", REPOSITORY, REPOSITORY / "tests"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))}
    words = [sys.executable, "-c", ALL, json.dumps([*commands, ["theory", "bounds", "mix-gpas-s1"]])]
    done = subprocess.run(words, cwd=project / "here", env=environment, capture_output=True, text=True)
    assert done.returncode == 2, done.stdout + done.stderr  # of the last command alone
    assert "torch is not installed here" in done.stderr
    assert done.stderr.count("gpas: ") == 1
    assert "Traceback" not in done.stderr
    assert not (project / "here/runs").exists()


def test_where_finds_values_of_axes_and_of_settings_that_no_grid_varies(project: Path) -> None:
    def found(*words: str) -> set[str]:
        cells = gpas(project, *words, "--json").json["cells"]
        return {f"{cell['grid']}/{cell['name']}" for cell in cells}

    dry = gpas(project, "run", "quickstart", "optim.lr=7e-3", "--where", "norm=pre", "--dry-run").out
    assert dry.count("+lr0.007") == 4
    assert "quickstart-lr/pre-lr0.001-s1" in found("status", "--where", "optim.lr=0.001")
    assert found("status", "--where", "lr=1e-3") == found("status", "--where", "optim.lr=0.001")
    assert len(found("status", "quickstart", "--where", "optim.lr=1.5e-3")) == 22
    assert len(found("plan", "--where", "optim.steps=4e2", "--where", "gate.activation=silu")) == 10
    assert found("status", "--where", "size=350m", "--where", "optim.batch=512", "--where", "seed=42")


def test_explain_prints_the_equations(project: Path) -> None:
    text = gpas(project, "explain", "mix-gpas-s1").out
    assert "x <- N(G(x) + f(x))" in text
    assert "x <- G(x + f(N(x)))" in text
    document = gpas(project, "explain", "deepnorm-gpas-s1", "--json").json
    assert document["cells"][0]["layers"] == [{"first": 1, "last": 12, "equation": "N(2.213 G(x) + f(x))"}]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("run", "grid", "tabel2"), "table2"),
        (("plan", "--where", "gate=gpsa"), "gpas"),
        (("status", "--where", "optim.lr=0.7"), "no cell has optim.lr '0.7'; valid: 0.0015, 0.001"),
        (("table", "--where", "optim.lrr=1"), "no axis or field 'optim.lrr'; did you mean 'optim.lr'?"),
        (("explain", "mix-gpas-s9"), "mix-gpas-s"),
        (("table", "--format", "latx"), "'markdown', 'latex', 'html'"),
        (("run", "grid", "--executor", "slrm"), "did you mean 'slurm'?"),
        (("figure", "--what", "gates"), "did you mean 'gate'?"),
        (("run", "grid", "--executor", "slurm"), "SLURM is not available"),
        (("init",), "exists; --force replaces it"),
        (("explain", "optim.lr=3e-3"), "name the cell to apply optim.lr=3e-3"),
        (("cancel", "optim.lr=3e-3"), "name the cells to apply optim.lr=3e-3"),
        (("cancel", "quickstart-ablations/pre-s1", "optim.lr=3e-3"), "quickstart-lr/pre-lr0.003-s1"),
        (("cancel", "pre-s1", "optim.lr=7e-3"), "quickstart/pre-s1+lr0.007"),
        (("cancel", "pre-s1"), "nothing was cancelled: quickstart/pre-s1 is missing"),
        (("cancel", "quickstart"), "nothing was cancelled: no cell is running or queued (22 missing)"),
        (("cancel",), "name cells or a grid, or select cells with --where"),
        (("run", "tabel2"), "did you mean 'table2'?"),
        (("retry", "pre-s1"), "nothing to retry"),
        (("why", "pre-s1"), "quickstart/pre-s1 has not been run"),
        (("-c", "nowhere.yaml", "plan"), "nowhere.yaml does not exist"),
        (("-c", ".", "plan"), ". is not a file; name the experiments file"),
        (("plan", "-c", "nowhere.yaml"), "nowhere.yaml does not exist"),
        (("run", "grid", "--config=nowhere.yaml", "--yes"), "nowhere.yaml does not exist"),
        (("compare", "a", "b"), "Did you mean 'diff'?"),
        (("plan", "--config"), "--config needs the path of an experiments file"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_mistake_gets_one_message_and_exit_code_2(project: Path, words: tuple[str, ...], message: str) -> None:
    done = gpas(project, *words, expect=2)
    assert message in done.out + done.err
    assert "Traceback" not in done.out
    assert not (project / "here/runs").exists()


@pytest.mark.whole
def test_every_mistake_of_a_file_is_reported_at_once(project: Path) -> None:
    broken = project / "here/broken.yaml"
    text = (project / "here/experiments.yaml").read_text()
    text = text.replace("- pre\n      - deepnorm", "- prre\n      - deepnorm").replace("std: 0.08", "std: -1")
    broken.write_text(text.replace("table4_position", "table9").replace("value: mean_", "value: mea_"))
    done = gpas(project, "-c", "broken.yaml", "plan", expect=2)
    checked = gpas(project, "-c", "broken.yaml", "doctor", expect=None)
    broken.write_text((project / "here/experiments.yaml").read_text().replace("table4_position", "table9"))
    gpas(project, "-c", "broken.yaml", "plan", expect=2)
    gpas(project, "-c", "broken.yaml", "status")  # it reads no table
    assert (
        "table9" not in gpas(project, "-c", "broken.yaml", "run", "grid", "--dry-run", expect=None).err
    )  # nor does it
    broken.unlink()
    assert "unknown metric 'mea_importance'" in " ".join(checked.out.split())
    lines = done.err.strip().splitlines()
    assert all("broken.yaml:" in line for line in lines)
    for message in (
        "did you mean 'pre'?",
        "init.std: -1.0 is too small",
        "published.gpas: 'gpas' has no table 'table9'",
        "table.value: unknown metric 'mea_importance'; did you mean 'mean_importance'?",
    ):
        assert any(message in line for line in lines)


def test_the_experiments_file_may_be_named_after_the_command(project: Path) -> None:
    (project / "here/other.yaml").write_text(
        (project / "here/experiments.yaml").read_text().replace("appendix-7b:", "own:")
    )
    try:
        for words in (("explain", "own/pre", "--config", "other.yaml"), ("status", "-c", "other.yaml", "own")):
            assert "own" in gpas(project, *words).out
    finally:
        (project / "here/other.yaml").unlink()


def test_ctrl_c_during_start_up_prints_one_word(tmp_path: Path) -> None:
    """The imports take a while, and Ctrl-C may come as they are under way."""
    (tmp_path / "typer.py").write_text("raise KeyboardInterrupt\n")
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{REPOSITORY}"}
    done = subprocess.run(
        [sys.executable, "-m", "gpas_cli", "plan"], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "Aborted.\n")


def test_too_little_memory_is_one_message(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def make_app(word: str) -> None:
        raise MemoryError

    monkeypatch.setattr("gpas_cli.cli.app.make_app", make_app)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert (
        capsys.readouterr().err
        == "gpas: not enough memory for this command; `ulimit -v` shows the limit of this shell\n"
    )

"""The face without training: fast, without torch, one message for a mistake; help texts, and the words of messages.

The exit codes of the commands have one meaning each, the same for every command.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from cases import cases, tables
from disks import full
from face import Face, Said
from face import gpas as run
from shipped import EXPERIMENTS as SHIPPED
from shipped import cells_of, excerpt
from typer.main import get_command

from gpas_cli.__main__ import main
from gpas_cli.cli.app import commands, make_app
from gpas_cli.errors import Exit
from gpas_cli.grid.expand import expand
from gpas_cli.grid.load import load
from gpas_cli.report.checks import report_problems

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
    commands = [words.split() for words in tables("cli/cases.yaml")["commands_work_without_torch"]]
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


@cases("cli/cases.yaml")
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
    dry = gpas(project, "-c", "broken.yaml", "run", "grid", "--dry-run", expect=None)  # nor does it
    assert "table9" not in dry.err
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
    said = "gpas: not enough memory for this command; `ulimit -v` shows the limit of this shell\n"
    assert capsys.readouterr().err == said


def test_commands_are_listed_under_headings(face: Face) -> None:
    said = face("--help").out
    places = [said.index(f"\n{heading}:\n") for heading in ("Every day", "More to read", "Data and disks")]
    assert places == sorted(places)
    assert (
        places[0]
        < said.index("\n  retry ")
        < places[1]
        < said.index("\n  diff ")
        < places[2]
        < said.index("\n  doctor ")
    )


def test_a_line_of_help_is_that_of_its_command() -> None:
    """`gpas --help` imports no command, so the lines are written beside the names."""
    lines = {name: one.about for name, one in commands().items()}
    made = get_command(make_app()).commands
    assert lines == {name: command.help.partition("\n\n")[0] for name, command in made.items()}


def test_help_imports_no_command() -> None:
    said = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "gpas_cli", "--help"], capture_output=True, text=True, check=True
    )
    assert "gpas_cli.cli.app" in said.stderr
    assert "gpas_cli.cli.commands" not in said.stderr


def test_flags_have_no_type(face: Face) -> None:
    lines = [line for line in face("run", "grid", "--help").out.splitlines() if "--yes" in line or "--dry-run" in line]
    assert len(lines) == 2
    assert not any("bool" in line for line in lines)


def test_init_writes_the_quickstart_and_room_for_a_grid(face: Face) -> None:
    assert "Next: cd 'sub dir/here', then gpas plan" in face("init", "sub dir/here").out
    path = face.folder / "sub dir/here/experiments.yaml"
    text = path.read_text()
    assert len(text.splitlines()) <= 40
    assert tuple(expand(load(path, check=report_problems))) == cells_of("quickstart")
    path.write_text(text.replace("  # mine:", "  mine:").replace("\n  #   ", "\n    "))
    assert len(expand(load(path, check=report_problems), ["mine"])) == 12


def test_init_with_papers_writes_their_grids(face: Face) -> None:
    assert "Next: gpas plan" in face("init", "--papers", "--force").out
    assert load(face.folder / "experiments.yaml").grids.keys() == SHIPPED.grids.keys()


def test_init_on_a_full_disk_leaves_the_files_as_they_were(small_disk: Path) -> None:
    (small_disk / "experiments.yaml").write_text("grids: {}\n")
    (small_disk / ".gitignore").write_bytes(b"caf\xe9\n")
    with full(small_disk):
        said = run(small_disk, "init", "--force", expect=2).err
    assert f"{small_disk}/experiments.yaml: No space left on device" in said
    assert (small_disk / "experiments.yaml").read_text() == "grids: {}\n"
    run(small_disk, "init", "--force")
    assert (small_disk / ".gitignore").read_bytes().startswith(b"caf\xe9\n/runs/\n")


def test_a_check_that_finds_damage_ends_with_failed(face: Face, monkeypatch: pytest.MonkeyPatch) -> None:
    face.ended("pre-s1", "done", 4.5)
    face("db", "sync")
    made = face.ended("pre-s2", "done", 4.5)  # which the database does not have yet
    assert "agrees" in face("db", "check").out  # it reads what jobs have added first
    shutil.rmtree(made.path)
    assert made.key in face("db", "check", expect=Exit.FAILED).out
    monkeypatch.setenv("GPAS_DB", str(face.folder / "experiments.yaml"))
    assert "problem" in face("doctor", expect=Exit.FAILED).out
    said = face("db", "check", expect=Exit.FAILED)
    assert (said.err, said.out.count("is not an SQLite database")) == ("", 1)
    monkeypatch.setenv("GPAS_DB", "foo://x")
    assert face("db", "check", expect=Exit.USAGE).err.count("\n") == 1


def test_the_meanings_are_in_the_help(face: Face) -> None:
    said = " ".join(face("--help").out.split())
    for code in Exit:
        assert f"{int(code)} {code.meaning.split(':')[0]}" in said


@pytest.mark.parametrize("command", [("plan",), ("run", "grid", "--dry-run"), ("run", "grid")], ids=" ".join)
@cases("cli/cases.yaml")
def test_plan_and_run_say_the_same(face: Face, command: tuple[str, ...], old: str, new: str, problem: str) -> None:
    face.edit(old, new, 1)
    ends = Exit.USAGE if problem and command != ("plan",) else Exit.DONE  # a plan that was printed is a success
    said = face(*command, "small", "--where", "seed=1", "--executor", "local", expect=ends)
    assert problem in said.out + said.err
    assert not (problem and list(face.runs.glob("??/*/001")))


@pytest.mark.parametrize("command", ["plan", "status --json", "init", "data status"])
def test_a_working_directory_that_was_deleted_is_named(tmp_path: Path, command: str) -> None:
    (tmp_path / "gone").mkdir()
    words = f"cd gone && rmdir ../gone && {sys.executable} -m gpas_cli {command}"
    done = subprocess.run(words, shell=True, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (2, "gpas: the working directory was deleted; change to another\n")


@pytest.mark.parametrize("closed", ["stdout", "stderr", "both"])
@pytest.mark.parametrize(
    "command", ["status", "--help", "table gpas:2 --published-only --format markdown", "plan none"]
)
def test_output_that_is_closed_or_lacks_characters_is_no_traceback(face: Face, command: str, closed: str) -> None:
    """As of daemons and cron, and of the C locale where Python does not take UTF-8 instead."""
    words = f"{sys.executable} -m gpas_cli {command}"
    usual = subprocess.run(words, shell=True, cwd=face.folder, capture_output=True, text=True, timeout=300)
    closing = {"stdout": ">&-", "stderr": "2>&-", "both": ">&- 2>&-"}[closed]
    done = subprocess.run(f"{words} {closing}", shell=True, cwd=face.folder, capture_output=True, timeout=300)
    assert done.returncode == usual.returncode
    assert not done.stderr or usual.returncode != 0
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    plain = subprocess.run(words, shell=True, cwd=face.folder, capture_output=True, env=environment, timeout=300)
    assert (plain.returncode, b"Traceback" in plain.stderr) == (usual.returncode, False)
    assert (plain.stdout + plain.stderr).isascii()


@pytest.mark.parametrize("command", ["status", "status --json", "--help", "table gpas:2 --format csv"])
def test_a_closed_pipe_ends_a_command_without_a_message(face: Face, command: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)  # as `| head` does after its lines
    words = [sys.executable, "-m", "gpas_cli", *command.split()]
    try:
        done = subprocess.run(words, cwd=face.folder, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=300)
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")

"""Plugins of other users are not executed, except in trusted folders; secrets stay in private files."""

import grp
import json
import os
import pwd
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cases import file_text, tables
from end_to_end import Toy
from face import fake_jobs
from faded_plugin import PLUGIN
from launching import until
from programs import program

from gpas_cli import trust
from gpas_cli.errors import GpasError, InvalidExperiments
from gpas_cli.grid.expand import cell_names, expand
from gpas_cli.grid.load import load

STRANGER = 4_242
EXPERIMENTS = file_text("experiments/two_grids.yaml")
PARTS = {
    "experiments.yaml": "experiments.yaml",
    "the plugin": "schemes/mine.py",
    "the plugin's folder": "schemes",
    "the project's folder": ".",
}


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the experiments file of a project with a plugin that writes a file `trace` when it is run."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("GPAS_TRUSTED", raising=False)
    folder = tmp_path / "project"
    (folder / "schemes").mkdir(parents=True)
    for path in (folder, folder / "schemes"):
        path.chmod(0o755)
    plugin, file = folder / "schemes/mine.py", folder / "experiments.yaml"
    plugin.write_text(PLUGIN.format(trace=str(tmp_path / "trace")))
    file.write_text(EXPERIMENTS)
    for path in (plugin, file):
        path.chmod(0o644)
    return file


def give_away(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give a file to another user: really if the tests run as root, else in the result of `stat`."""
    if os.geteuid() == 0:
        os.chown(path, STRANGER, -1)
        return
    seen = path.stat()
    real = Path.stat
    values = [*seen[:4], STRANGER, *seen[5:]]

    def stat(self: Path, **options: bool) -> os.stat_result:
        return os.stat_result(values) if self == path else real(self, **options)

    monkeypatch.setattr(Path, "stat", stat)


def refusal(config: Path) -> str:
    with pytest.raises(InvalidExperiments) as caught:
        load(config)
    return str(caught.value)


def names(config: Path) -> list[str]:
    return [entry.name for entry in expand(load(config))]


def test_a_plugin_of_the_user_is_executed(config: Path, tmp_path: Path) -> None:
    assert names(config) == ["pre-s1", "pre-s2", "faded-s1", "faded-s2"]
    assert (tmp_path / "trace").exists()


@pytest.mark.parametrize("part", PARTS)
def test_files_of_others_are_not_run(config: Path, tmp_path: Path, part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = (config.parent / PARTS[part]).resolve()
    give_away(path, monkeypatch)
    message = refusal(config)
    assert "experiments.yaml:2:11: plugins: schemes/mine.py was not executed" in message
    assert f"{path} belongs to user {STRANGER}" in message
    assert f"`gpas doctor --trust {config.parent}`" in message
    assert not (tmp_path / "trace").exists()


@pytest.mark.parametrize("part", PARTS)
def test_files_writable_by_all_are_not_executed(config: Path, part: str) -> None:
    path = config.parent / PARTS[part]
    path.chmod(path.stat().st_mode | 0o002)
    assert f"{path.resolve()} is writable by every user" in refusal(config)


def test_a_folder_with_the_sticky_bit_may_be_writable_by_all(config: Path) -> None:
    config.parent.chmod(0o1777)
    assert len(names(config)) == 4


@pytest.mark.parametrize(("group", "members", "runs"), [("me", [], True), ("me", ["you"], False), ("lab", [], False)])
def test_a_plugin_may_be_writable_by_the_users_private_group(
    config: Path, monkeypatch: pytest.MonkeyPatch, group: str, members: list[str], runs: bool
) -> None:
    monkeypatch.setattr(trust, "_ROOT_ID", -1 if os.geteuid() else 0)
    monkeypatch.setattr(pwd, "getpwuid", lambda number: pwd.struct_passwd(("me", "x", number, 1, "", "/", "")))
    monkeypatch.setattr(grp, "getgrgid", lambda number: grp.struct_group((group, "x", number, members)))
    plugin = config.parent / "schemes/mine.py"
    if os.geteuid() == 0:
        os.chown(plugin, -1, STRANGER)
    plugin.chmod(0o664)
    if runs:
        assert len(names(config)) == 4
    else:
        assert f"mine.py is writable by the group {group}" in refusal(config)


def test_a_plugin_outside_the_project_is_checked_with_its_folder(config: Path, tmp_path: Path) -> None:
    other = tmp_path / "elsewhere"
    other.mkdir()
    (config.parent / "schemes/mine.py").rename(other / "mine.py")
    config.write_text(EXPERIMENTS.replace("schemes/mine.py", "../elsewhere/mine.py"))
    config.chmod(0o644)
    other.chmod(0o777)
    assert f"then allow it with `gpas doctor --trust {other}`" in refusal(config)
    trust.trust(other)
    assert len(names(config)) == 4


def test_a_trusted_folder_is_trusted_until_it_is_removed(config: Path) -> None:
    config.chmod(0o666)
    trust.trust(config.parent)
    trust.trust(config.parent)
    assert trust.listed() == [config.parent]
    assert len(names(config)) == 4
    trust.list_path().write_text("")
    assert "is writable by every user" in refusal(config)
    with pytest.raises(GpasError, match="is not a folder"):
        trust.trust(config)


def test_the_environment_names_trusted_folders(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config.chmod(0o666)
    monkeypatch.setenv("GPAS_TRUSTED", f"/nowhere{os.pathsep}{config.parent.parent}")
    assert len(names(config)) == 4


def test_a_list_that_others_can_write_to_is_ignored(config: Path) -> None:
    config.chmod(0o666)
    trust.trust(config.parent)
    trust.list_path().chmod(0o666)
    assert "is writable by every user" in refusal(config)
    with pytest.raises(GpasError, match="would be ignored"):
        trust.trust(config.parent)


def test_names_are_completed_without_running_the_plugin(config: Path, tmp_path: Path) -> None:
    config.chmod(0o666)
    experiments = load(config, run_plugins=False)
    assert cell_names(experiments, "g") == ["pre-s1", "pre-s2", "faded-s1", "faded-s2"]
    assert cell_names(experiments, "h") == ["faded-s1", "faded-s2"]
    assert not (tmp_path / "trace").exists()


@pytest.mark.parametrize(("name", "message"), [("schemes", "is not a file"), ('"a\\0.py"', "control character")])
def test_a_plugin_that_is_not_a_file_is_one_message(config: Path, name: str, message: str) -> None:
    config.write_text(EXPERIMENTS.replace("schemes/mine.py", name))
    lines = refusal(config).splitlines()
    assert len([line for line in lines if message in line]) == 1, lines


@pytest.mark.parametrize(
    ("make", "cause"),
    [
        (lambda plugin: plugin.write_text("raise ValueError('boom')"), "ValueError: boom"),
        (lambda plugin: plugin.symlink_to("mine.py"), "plugins: schemes/mine.py: "),
        (lambda plugin: None, "No such file"),
    ],
)
def test_a_plugin_that_does_not_load_is_one_message_with_the_cause(config: Path, make: Any, cause: str) -> None:
    plugin = config.parent / "schemes/mine.py"
    plugin.unlink()
    make(plugin)
    config.write_text(config.read_text().replace("g: {base", "g: {stages: [pretrain, whiten], base"))
    with pytest.raises(InvalidExperiments) as raised:
        load(config)
    (line,) = str(raised.value).splitlines()
    assert cause in line


SECRET = "hunter2-of-the-database"
FORMS = tables("cases.yaml")["no_command_prints_the_password"]
# Fake SLURM programs for submission; they record the input of sbatch and the environment it would pass to jobs.
PROGRAMS = tables("cases.yaml")["a_submission_keeps_the_password_from_jobs_and_files"]


class Secretive(Toy):
    """A project whose GPAS_DB contains a password."""

    url = FORMS["password"]

    def environment(self) -> dict[str, str]:
        path = f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
        return {**super().environment(), "GPAS_DB": self.url, "PATH": path, "WIDTH": "400"}

    def add_slurm(self) -> None:
        for name, body in PROGRAMS.items():
            program(self.folder / "bin" / name, body)

    def said(self, *words: str) -> str:
        done = self(*words, expect=None)
        return done.out + done.err

    def leaks(self) -> list[Path]:
        """Return the files of the project that contain the password."""
        files = [path for path in self.folder.rglob("*") if path.is_file()]
        assert files
        return [path for path in files if SECRET.encode() in path.read_bytes()]


@pytest.mark.long
def test_a_local_run_keeps_the_password_from_jobs_and_files(tmp_path: Path) -> None:
    pytest.importorskip("psycopg")
    toy = Secretive(tmp_path / "project", gates="gpas", steps=300)
    running = toy.start("run", "grid")
    try:
        until(toy.stepping)
        environments = [Path(f"/proc/{pid}/environ").read_bytes() for pid in toy.stepping()]
    finally:
        running.wait(timeout=240)
    assert environments
    assert not [found for found in environments if SECRET.encode() in found]
    assert toy.leaks() == []
    assert set(toy.states().values()) == {"done"}


def test_a_submission_keeps_the_password_from_jobs_and_files(tmp_path: Path) -> None:
    pytest.importorskip("psycopg")
    toy = Secretive(tmp_path / "project")
    toy.add_slurm()
    preview = toy.said("run", "grid", "--executor", "slurm", "--dry-run")
    assert "GPAS_RUNS_DIR" in preview
    submitted = toy.said("run", "grid", "--executor", "slurm", "--yes")
    assert list(toy.runs.glob(".slurm/*/submission.json")), submitted
    assert SECRET not in preview + submitted
    assert "GPAS_DB" not in (toy.folder / "bin/sbatch.env").read_text()
    assert toy.leaks() == []


@pytest.mark.parametrize("form", FORMS)
def test_no_command_prints_the_password(tmp_path: Path, form: str) -> None:
    pytest.importorskip("psycopg")
    toy = Secretive(tmp_path / "project")
    toy.url = FORMS[form]
    assert SECRET in toy.url
    toy.runs.mkdir()
    more = (("table",), ("db", "check"), ("db", "upgrade"), ("db", "backup"), ("db", "rebuild", "--yes"))
    for words in (("doctor",), ("db", "rebuild"), *(more if form == "password" else ())):
        said = toy.said(*words)
        assert said, words
        assert SECRET not in said, words


def test_the_question_names_the_database_without_its_password(tmp_path: Path) -> None:
    pytest.importorskip("psycopg")
    toy = Secretive(tmp_path / "project")
    said = " ".join(toy("db", "rebuild", expect=2).err.split())
    assert "gpas:***@127.0.0.1:1/results" in said


TOKEN = "S3CRETTOK"
VALUES = (TOKEN, "/home/ann/env.sh", "/home/ann/bin/python", "ann@uni.edu")
RESOURCES = file_text("experiments/resources.yaml")


class Private(Secretive):
    """A project whose resources have values that may be secrets."""

    url = ""

    def __init__(self, folder: Path, gates: str):
        super().__init__(folder, gates=gates)
        self.declare((folder / "experiments.yaml").read_text() + RESOURCES)

    def shown(self) -> list[Path]:
        """Return the files with such a value that other users can read, without the experiments file."""
        files = [path for path in self.folder.rglob("*") if path.is_file() and path.name != "experiments.yaml"]
        open_to_others = [path for path in files if path.stat().st_mode & 0o077]
        assert any(path.name in ("attempt.json", "elements.jsonl") for path in open_to_others)
        return [path for path in open_to_others if any(value.encode() in path.read_bytes() for value in VALUES)]


@pytest.fixture
def open_umask() -> Iterator[None]:
    """Create files that everybody can read."""
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.mark.whole
@pytest.mark.usefixtures("open_umask")
def test_values_of_resources_are_in_no_record_or_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toy = Private(tmp_path / "project", gates="none")
    toy("run", "grid")
    fake_jobs(monkeypatch)
    toy("retry", "--done", "pre-s1", "--yes")
    commands = (
        *(("status",), ("status", "small"), ("plan", "small"), ("why", "pre-s1"), ("why", "small[pre]")),
        *(("explain", "pre-s1"), ("diff", "pre-s1", "pre-s1"), ("logs", "pre-s1"), ("status", "--watch", "small")),
        *(("table", "small"), ("doctor",), ("db", "check"), ("report", "-o", "report.html")),
        ("export", "--archive", "small.tar.gz", "small"),
    )
    for words in commands:
        for said in (toy.said(*words), toy.said(*words, "--json")):
            assert said, words
            assert not [value for value in VALUES if value in said], words
    (record,) = toy.runs.glob("??/*/001/attempt.json")
    asked = json.loads(record.read_text())["resources"]
    assert {name: asked[name] for name in ("environment", "setup", "python", "sbatch", "account")} == {
        "environment": ["HF_TOKEN=***"], "setup": ["***", "***"], "python": "***", "sbatch": ["--mail-user=***"],
        "account": "annslab",
    }  # fmt: skip
    assert (toy.folder / "report.html").exists()
    assert (toy.folder / "small.tar.gz").exists()
    assert toy.shown() == []


@pytest.mark.usefixtures("open_umask")
def test_values_of_resources_are_only_in_files_of_a_submission_that_nobody_else_can_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_jobs(monkeypatch)
    toy = Private(tmp_path / "project", gates="none, gpas")
    toy.add_slurm()
    toy.said("run", "grid", "--executor", "slurm", "--yes")
    (script,) = (path for path in toy.runs.glob(".slurm/*/submission.sh") if "0-1" in path.read_text())
    assert all(value in script.read_text() for value in VALUES)
    assert toy.shown() == []
    said = toy.said("status", "--json") + toy.said("logs", "pre-s1") + toy.said("explain", "pre-s1", "--json")
    assert not [value for value in VALUES if value in said]
    words = ("--set", f"resources.environment=[HF_TOKEN={TOKEN}]", "--set", "resources.mem=2G")
    toy("run", "grid", "--where", "gate=none")
    toy.recorded(toy.entry("pre-gpas-s1"), ("outcome", {"outcome": "failed", "step": 1, "cause": "", "metrics": {}}))
    toy.said("retry", "pre-gpas-s1", *words, "--executor", "local", "--yes")
    assert toy.shown() == []

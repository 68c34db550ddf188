"""Plugins that other users own or can write to are not executed, except in trusted folders."""

import grp
import os
import pwd
from pathlib import Path

import pytest
from faded_plugin import PLUGIN

from gpas_cli import trust
from gpas_cli.errors import GpasError, InvalidExperiments
from gpas_cli.grid.expand import cell_names, expand
from gpas_cli.grid.load import load

STRANGER = 4_242
EXPERIMENTS = """\
version: 1
plugins: [schemes/mine.py]
recipes: {quickstart: {lr: 1e-3, warmup: 1, steps: 9, batch: 2}}
grids:
  g: {base: {size: quickstart, data: quickstart}, axes: {norm: [pre, faded], seed: [1, 2]}}
  h: {include: [{grid: g, where: {norm: faded}}]}
"""
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
    assert f"`gpas trust {config.parent}`" in message
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
    assert f"then allow it with `gpas trust {other}`" in refusal(config)
    trust.trust(other)
    assert len(names(config)) == 4


def test_a_trusted_folder_is_trusted_until_it_is_removed(config: Path) -> None:
    config.chmod(0o666)
    trust.trust(config.parent)
    trust.trust(config.parent)
    assert trust.listed() == [config.parent]
    assert len(names(config)) == 4
    trust.distrust(config.parent)
    assert "is writable by every user" in refusal(config)
    with pytest.raises(GpasError, match="gpas trust --list"):
        trust.distrust(config.parent)
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


def test_a_plugin_that_is_a_link_to_itself_is_one_message(config: Path) -> None:
    plugin = config.parent / "schemes/mine.py"
    plugin.unlink()
    plugin.symlink_to("mine.py")
    assert "plugins: schemes/mine.py: " in refusal(config)


@pytest.mark.parametrize("broken", ["raise ValueError('boom')", None])
def test_a_plugin_that_does_not_load_is_one_message_with_the_cause(config: Path, broken: str | None) -> None:
    plugin = config.parent / "schemes/mine.py"
    plugin.unlink()
    if broken:
        plugin.write_text(broken)
    config.write_text(config.read_text().replace("g: {base", "g: {stages: [pretrain, whiten], base"))
    with pytest.raises(InvalidExperiments) as raised:
        load(config)
    (line,) = str(raised.value).splitlines()
    assert ("ValueError: boom" if broken else "No such file") in line

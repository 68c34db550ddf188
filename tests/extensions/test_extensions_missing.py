"""Each extension of the package is missing in turn: what does not need it works, what needs it names it.

Without the folder of extensions the quickstart runs. Settings of the extensions' stages and networks that are refused.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import face
import pytest
from attempts import attempt_at
from cases import cases, file_text
from face import Face, gpas, tiny

import gpas_cli
from gpas_cli import extension
from gpas_cli.errors import InvalidExperiments
from gpas_cli.events import Outcome, Started
from gpas_cli.extension import IN_WHEEL
from gpas_cli.extensions.networks.network import PinnedNetwork
from gpas_cli.grid.expand import expand
from gpas_cli.grid.load import load
from gpas_cli.project import packaged
from gpas_cli.spec import extensions
from gpas_cli.spec.cell import NETWORK
from gpas_cli.spec.downstream import HARNESS, Downstream
from gpas_cli.spec.parse_cell import Catalogue, cell_from

CACHES = [getattr(extension, name) for name in ("head", "extensions", "absent")]
CACHES += [getattr(extensions, name) for name in ("stage_kinds", "metrics", "measured_columns", "part")]
CACHES += [face._make_app, face._get_group]  # the commands that this process has made
HEADS = {name: import_module(f"gpas_cli.extensions.{name}") for name in IN_WHEEL}


def forget() -> None:
    for cached in CACHES:
        cached.cache_clear()
    for group in map(import_module, ("gpas_cli.cli.commands.run", "gpas_cli.extensions.figures.command")):
        own = [one for one in group.app.registered_commands if one.callback.__module__ == group.__name__]
        group.app.registered_commands[:] = own


@contextmanager
def replaced(name: str, module: object) -> Iterator[None]:
    """Within the context, another module, or None for a missing one, stands for an extension."""
    place = f"gpas_cli.extensions.{name}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, place, module)
        forget()
        yield
    forget()


@contextmanager
def found_again(name: str) -> Iterator[None]:
    with replaced(name, HEADS[name]):
        yield


@pytest.fixture(params=IN_WHEEL)
def hidden(request: pytest.FixtureRequest) -> Iterator[str]:
    """The name of an extension that cannot be imported within the test."""
    with replaced(request.param, None):
        yield request.param


def test_what_an_extension_brings_is_what_the_table_says() -> None:
    for name, one in extension.extensions().items():
        assert one.name == name
        assert {*one.stages, *one.parts} == {*IN_WHEEL[name].settings, *IN_WHEEL[name].parts}
        assert {*one.commands} == {*IN_WHEEL[name].commands}


def test_unset_sections_of_a_missing_stage_are_ignored(hidden: str) -> None:
    head = HEADS[hidden].EXTENSION
    for setting in (*head.stages, *head.parts):
        whole = cell_from({"size": "71m", "optim": {"lr": 1e-3, "warmup": 1, "steps": 10, "batch": 2}}).to_mapping()
        assert setting not in whole
        unset = "none" if setting == NETWORK else None
        assert cell_from({**whole, setting: unset}) == cell_from(whole)
        with pytest.raises(InvalidExperiments, match=f"'{setting}' needs the extension {hidden}, which"):
            cell_from({**whole, setting: {}})


# For each extension that has a section of cells, which a grid of its name has, metrics of their last stage.
USES = {
    "quantised": {"quantised_perplexity/int4": 7.5, "quantised_rise/int4": 0.25},
    "glue": {"glue_accuracy/ordered": 62.5},
    "layers": {"largest_kurtosis": 3.25},
    "networks": {"text_perplexity/stdlib": 7.5},
}


@pytest.mark.parametrize("hidden", USES, indirect=True)
def test_results_outlive_the_extension(tmp_path: Path, hidden: str) -> None:
    metrics = USES[hidden]
    with found_again(hidden):
        project = Face(tmp_path / "project", file_text("experiments/missing.yaml"))
        project.train_all()
        for entry in project.entries(hidden):
            kind, key = entry.cell.stages[-1].kind, entry.cell.key
            events = [Started(stage=kind, key=key, host="there", device="cpu", precision="fp32", code="c0de")]
            attempt_at(project.runs, entry, [*events, Outcome("done", metrics=metrics)], place=-1)
        assert project("status", hidden, "--json").json["cells"][0]["state"] == "done"
        shown = project("table", "plain").out
    for words in ("--help", "plan plain", "status plain", "status", "why plain/s1", "db rebuild --yes"):
        project(*words.split())
    assert project("table", "plain").out == shown
    for command in (["plan", hidden], ["status", hidden], ["table", hidden], ["run", hidden, "--yes"]):
        said = project(*command, expect=2)
        needs = f"needs the extension {hidden}, which this installation does not have"
        assert any(f"'{name}' {needs}" in said.err for name in IN_WHEEL[hidden].settings)
    with found_again(hidden):
        assert f"{next(iter(metrics.values())):.2f}" in project("table", hidden).out


def test_the_shipped_file_is_read(hidden: str, tmp_path: Path) -> None:
    (tmp_path / "experiments.yaml").write_bytes(packaged("experiments.yaml").read_bytes())
    for words in (["plan", "quickstart"], ["status"], ["status", "table2", "--all"]):
        gpas(tmp_path, *words)
    with found_again(hidden):
        whole = expand(load(tmp_path / "experiments.yaml"), list(load(tmp_path / "experiments.yaml").grids))
    lost = {name for name, needed in extension.absent().items() if needed == hidden}
    needed = {entry.grid for entry in whole if lost & entry.cell.to_mapping().keys()}
    experiments = load(tmp_path / "experiments.yaml")
    assert set(experiments.grids) - set(experiments.available) == needed
    assert [entry.key for entry in expand(experiments, experiments.available)] == [
        entry.key for entry in whole if entry.grid not in needed
    ]
    if needed:
        assert "Not shown: " in gpas(tmp_path, "claims").out


@pytest.mark.parametrize("hidden", ["glue", "layers", "quantised"], indirect=True)
def test_resources_of_a_missing_stage_are_no_mistake(tmp_path: Path, hidden: str) -> None:
    resources = f"resources:\n  {hidden}: {{mem: 2G}}\n"
    Face(tmp_path / "project", tiny("  plain: {base: BASE}\n") + resources)("status")


CALLS = {
    "campaigns": "run claims",
    "claims": "claims",
    "export": "export pre-s1 out",
    "figures": "figure curves",
    "laws": "figure scaling",
    "networks": "evaluate here",
    "page": "report",
    "theory": "theory depth pre-s1",
}


@pytest.mark.parametrize("hidden", CALLS, indirect=True)
def test_a_missing_command_is_named(tmp_path: Path, hidden: str) -> None:
    project, words = Face(tmp_path / "project"), CALLS[hidden].split()
    assert words[0] not in IN_WHEEL[hidden] or f"\n  {words[0]} " not in project("--help").out
    assert f"needs the extension {hidden}, which this installation does not have" in project(*words, expect=2).err


@pytest.mark.parametrize("hidden", ["figures"], indirect=True)
def test_what_requires_a_missing_extension_names_it(tmp_path: Path, hidden: str) -> None:
    project = Face(tmp_path / "project")
    for one in (name for name, head in HEADS.items() if hidden in head.EXTENSION.requires):
        said = project(*CALLS[one].split(), expect=2).err
        assert f"needs the extension {hidden}, which this installation does not have" in said


@pytest.mark.parametrize("hidden", ["figures"], indirect=True)
def test_what_packs_declare_for_a_missing_extension_is_not_read(tmp_path: Path, hidden: str) -> None:
    project = Face(tmp_path / "project", tiny("  plain: {base: BASE}\n") + "include: [./mine]\n")
    (tmp_path / "project/mine").mkdir()
    (tmp_path / "project/mine/figures.yaml").write_text("paper: Mine\nfigures: {'1': {titel: a}}\n")
    project("table", "plain")
    with found_again(hidden):
        assert "unknown key 'titel'" in project("table", "plain", expect=2).err


@pytest.mark.parametrize("hidden", ["harness"], indirect=True)
def test_a_task_of_the_missing_harness_is_unavailable(hidden: str) -> None:
    from gpas_cli.evaluate.downstream import task_scorer
    from gpas_cli.evaluate.tasks import TaskUnavailable

    scorer: Any = None
    with pytest.raises(TaskUnavailable, match=f"'{HARNESS}' needs the extension {hidden}, which this installation"):
        task_scorer("piqa", Downstream(tasks=("piqa",)), scorer, scorer, Path())


def test_without_the_harness_itself_an_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from gpas_cli.evaluate.tasks import TaskUnavailable
    from gpas_cli.extensions.harness import scoring

    monkeypatch.setattr(scoring, "find_spec", lambda _: None)
    scorer: Any = None
    with pytest.raises(TaskUnavailable, match=r"pip install 'gpas-cli\[downstream\]'"):
        scoring.official_scorer("piqa", scorer, scorer)


@pytest.mark.long
def test_the_quickstart_runs_without_the_folder(tmp_path: Path) -> None:
    root = Path(gpas_cli.__file__).parents[1]
    ignored = shutil.ignore_patterns("extensions", "__pycache__")
    shutil.copytree(root / "gpas_cli", tmp_path / "gpas_cli", ignore=ignored)
    shutil.copytree(root / "migrations", tmp_path / "migrations")
    shutil.copy(root / "experiments.yaml", tmp_path)
    (tmp_path / "project").mkdir()

    def said(*words: str) -> str:
        command = [sys.executable, "-P", "-m", "gpas_cli", *words]
        environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
        done = subprocess.run(
            command, cwd=tmp_path / "project", env=environment, capture_output=True, text=True, check=True
        )
        return done.stdout

    said("init", "--papers")
    assert "2 done" in said("run", "grid", "quickstart", "--shrink", "--where", "norm=pre", "--executor", "local")
    assert "22 cells: 22 missing" in said("status")
    assert "Pre-LN" in said("table", "quickstart", "--paper")


THEIRS = Catalogue(networks={"theirs": PinnedNetwork(hf="org/name", revision="0" * 40)})
TRAINED = {"size": "quickstart", "data": "quickstart", "optim": {"lr": 1e-3, "warmup": 1, "steps": 9, "batch": 2}}


@cases("extensions/cases.yaml")
def test_a_cell_with_a_mistake_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidExperiments) as caught:
        cell_from(change if "network" in change else {**TRAINED, **change}, THEIRS)
    assert message in str(caught.value)

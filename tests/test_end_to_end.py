"""End to end in real processes: from YAML to the table, with every process killed; with claims, plugins and packs."""

import json
import os
import random
import re
import shlex
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest
from cases import file_text
from disks import full
from documentation import DOCS, FENCE, PYTHON
from end_to_end import Toy, alive, jobs_run_here
from end_to_end import toy as toy_of
from face import Said, gpas
from faded_plugin import CODE
from launching import until
from marks import release_but
from safetensors.numpy import load_file

from gpas_cli.extension import installed
from gpas_cli.grid.packs import known_packs
from gpas_cli.report.papers import published

LONG = 500  # updates of about ten milliseconds: enough time to interrupt the run in the middle


def final_checkpoints(toy: Toy) -> dict[str, bytes]:
    """Return stage key -> bytes of all tensors in its newest checkpoint."""
    newest = {}
    for path in sorted(toy.runs.glob("??/*/*/checkpoints/step-*/*.safetensors"), key=lambda p: p.parts[-2]):
        newest[path.parents[3].name] = b"".join(t.tobytes() for _, t in sorted(load_file(path).items()))
    return newest


def test_from_yaml_to_table_and_a_second_run_does_nothing(trained: Toy, tmp_path: Path) -> None:
    toy = trained.copied(tmp_path / "a project")
    toy.edit("seed: [1]", "seed: [1, 2]")
    planned = toy("plan", "--json").json
    assert [cell["action"] for cell in planned["cells"]] == ["done", "new"] * 2
    toy("run", "grid", "--where", "gate=gpas")
    assert toy.states() == {"pre-s1": "done", "pre-gpas-s1": "done", "pre-s2": "missing", "pre-gpas-s2": "done"}
    first = toy.attempts()
    assert len(first) == 3
    again = toy("run", "grid", "--where", "gate=gpas")
    assert toy.attempts() == first
    assert "no job to start" in again.out
    made = toy("table", "--format", "json").json
    assert made["schema"] == 1
    assert len(made["rows"]) == 2
    markdown = toy("table", "--format", "markdown").out
    assert "Pre-LN" in markdown
    assert "±" in markdown
    stage = toy("why", "pre-gpas-s1", "--json").json["stages"][0]
    assert stage["attempts"][0]["facts"]["code"]
    assert Path(stage["attempts"][0]["checkpoint"]).is_dir()
    cell = toy.status()["pre-gpas-s1"]
    assert stage["attempts"][0]["metrics"]["perplexity"] == pytest.approx(cell["metrics"]["perplexity"])
    pytest.importorskip("matplotlib", reason="the extra `figures` is not installed")
    toy("figure", "--what", "activation_variance", "--out", "variance.svg")
    assert "Pre-LN + GPAS" in (toy.folder / "variance.svg").read_text()
    check_database(toy)


def check_database(toy: Toy) -> None:
    """Check that a deleted database is recreated, and that a rebuilt one gives the same table."""
    before = toy("table", "--format", "json").out
    for path in toy.folder.glob("gpas.db*"):
        path.unlink()
    assert toy("table", "--format", "json").out == before
    toy("db", "rebuild", "--yes")
    assert toy("table", "--format", "json").out == before
    toy("db", "check")
    synced = toy("db", "sync", "--json").json
    assert (synced["attempts"], synced["events"], synced["problems"]) == (0, 0, [])  # the rebuild read everything


def why_ended(toy: Toy) -> list[int | None]:
    """Return the signal that ended each attempt, as `gpas why` prints it in text and in JSON."""
    signals = []
    for name in toy.states():
        attempts = toy("why", name, "--json").json["stages"][0]["attempts"]
        killed = [9 if "signal 9" in attempt["evidence"] else None for attempt in attempts]
        signals += killed
        text = " ".join(toy("why", name).out.split())
        assert text.count("without an outcome (signal 9, exit.json)") == killed.count(9)
        assert [t["state"] for t in attempts] == ["interrupted" if signal else "done" for signal in killed]
    return signals


@pytest.mark.long
def test_a_killed_job_resumes_to_the_same_bits(tmp_path: Path) -> None:
    straight, broken = (Toy(tmp_path / name, gates="gpas", steps=LONG // 2) for name in ("straight", "broken"))
    straight("run", "grid")
    chooser = random.Random(3)
    running = broken.start("run", "grid")
    for _ in range(2):
        until(broken.stepping)
        time.sleep(chooser.random())
        victim = broken.stepping()[0]
        os.kill(victim, signal.SIGKILL)
        until(lambda victim=victim: not alive(victim))
    assert running.wait(240) == 0
    assert (broken.folder / "said.txt").read_text().count("was killed (signal 9); it starts again") == 2
    assert set(broken.states().values()) == {"done"}
    assert len(broken.attempts()) == 1 + 2
    assert why_ended(broken).count(9) == 2
    assert final_checkpoints(broken) == final_checkpoints(straight)


@pytest.mark.release
def test_a_killed_command_line_is_resumed_with_and_without_its_jobs(tmp_path: Path) -> None:
    toy = Toy(tmp_path / "toy", gates="gpas", steps=LONG)
    first = toy.start("run", "grid")
    until(toy.stepping)
    first.kill()
    first.wait()
    (job,) = toy.stepping()
    assert set(toy.states().values()) == {"running"}
    second = toy.start("run", "grid")
    until(lambda: len(list(toy.runs.glob(".submitters/*.json"))) >= 1)
    assert len(toy.attempts()) == 1
    second.kill()
    second.wait()
    os.kill(job, signal.SIGKILL)
    # The lock is held until the last thread has ended, which may be after the process counts as dead.
    until(lambda: set(toy.states().values()) == {"interrupted"})
    toy("run", "grid")
    assert set(toy.states().values()) == {"done"}
    assert len(toy.attempts()) == 2
    assert [event["outcome"] for event in toy.events(kind="outcome")] == ["done"]


@pytest.mark.release
def test_cancel_stops_one_cell_and_retry_resumes_it(tmp_path: Path) -> None:
    toy = Toy(tmp_path / "toy", steps=LONG)
    running = toy.start("run", "grid")
    until(lambda: len(toy.stepping()) == 2)
    toy("cancel", "pre-gpas-s1", "--yes")
    assert running.wait(120) == 3
    assert toy.states() == {"pre-s1": "done", "pre-gpas-s1": "cancelled"}
    toy("run", "grid", expect=3)
    assert toy.states()["pre-gpas-s1"] == "cancelled"
    toy("retry", "pre-gpas-s1")
    assert set(toy.states().values()) == {"done"}


@pytest.mark.long
def test_a_failing_job_fails_alone(tmp_path: Path) -> None:
    toy = Toy(tmp_path / "toy", gates="gpas")
    (tmp_path / "toy/bad.jsonl").write_text('{"txt": "a field of another name"}\n')
    bad = "{name: bad, source: files, path: bad.jsonl, tokenizer: bpe}"
    toy.edit("seed: [1]", f"seed: [1]\n      data: [notes, {bad}]")
    ran = toy("run", "grid", expect=4)
    assert sorted(toy.states().values()) == ["done", "failed"]
    assert "bad.jsonl" in ran.out
    assert "Traceback" not in ran.out


@pytest.mark.long
@pytest.mark.parametrize("leaving", release_but([0, 12_000], 0))
def test_a_disk_that_fills_up_costs_no_cell(
    tmp_path: Path, small_disk: Path, monkeypatch: pytest.MonkeyPatch, leaving: int
) -> None:
    toy = Toy(tmp_path / "toy", gates="gpas", steps=LONG // 2, checkpoint_every=20)
    environment = {**toy.environment(), "GPAS_RUNS_DIR": str(small_disk / "runs")}
    monkeypatch.setattr(toy, "environment", lambda: environment)
    running = toy.start("run", "grid")
    until(lambda: bool(list(small_disk.glob("runs/??/*/*/checkpoints/step-*"))))
    with full(small_disk, leaving):
        assert running.wait(120) in (0, 3, 4)
        output = "".join(path.read_text(errors="replace") for path in small_disk.glob("runs/??/*/*/*l*"))
        torn = [path for path in small_disk.glob("runs/??/*/*/journal.jsonl") if path.read_bytes()[-1:] != b"\n"]
        assert "No space" in output or torn  # the full disk may cut the line that says so
    toy("retry", expect=None)
    toy("run", "grid")
    assert set(toy.states().values()) == {"done"}


def test_an_unwritable_folder_is_one_message(tmp_path: Path) -> None:
    toy = Toy(tmp_path / "toy")
    (tmp_path / "toy/runs").write_text("a file where a folder should be")
    assert "runs" in toy("run", "grid", expect=2).err


def test_outside_a_project_the_remedy_is_named(tmp_path: Path) -> None:
    toy = Toy(tmp_path / "toy")
    (tmp_path / "toy/experiments.yaml").unlink()
    done = toy("status", expect=2)
    assert done.err.strip().endswith("`gpas init` writes one")


GUIDE = (Path(__file__).parents[1] / "docs/how-to/scheme.md").read_text()
AXIS = re.search(r"gate: (\[none, gpas, \{name: softsign.*\])", GUIDE)[1]
FORMULA = re.search(r"activation: ([^}]*)", AXIS)[1]


@pytest.fixture(scope="module")
def formula_toy(trained: Toy, tmp_path_factory: pytest.TempPathFactory) -> Toy:
    """Return a trained project with the axis of the guide, whose formula has not been trained."""
    made = trained.copied(tmp_path_factory.mktemp("formula") / "toy")
    made.edit("gate: [none, gpas]", f"gate: {AXIS}")
    return made


@pytest.mark.long
def test_a_formula_trains_and_has_its_row_and_its_gates_move(formula_toy: Toy) -> None:
    formula_toy("run", "grid", "--yes", "--jobs", "1")
    assert formula_toy.states() == {"pre-s1": "done", "pre-gpas-s1": "done", "pre-softsign-s1": "done"}
    assert re.search(r"\+ softsign +[0-9.]+", formula_toy("table", "small").out)
    assert f"G(x) = x - ({FORMULA}) sg(x)" in formula_toy("explain", "pre-softsign-s1").out
    bounds = formula_toy("theory", "bounds", "pre-softsign-s1", "--json").json["cells"][0]["bounds"]
    assert all(row["error"] < 1e-6 for row in bounds["preserved"])
    assert bounds["preserved"][0]["predicted"] != 1


@pytest.mark.long
def test_a_changed_formula_is_another_cell_and_a_space_is_none(formula_toy: Toy) -> None:
    key = formula_toy.status()["pre-softsign-s1"]["key"]
    with formula_toy.edited("1 + abs", "1+abs"):
        assert formula_toy.status()["pre-softsign-s1"]["key"] == key
    with formula_toy.edited("1 + abs", "2 + abs"):
        assert formula_toy.status()["pre-softsign-s1"]["key"] != key
        assert formula_toy.states()["pre-gpas-s1"] == "done"
    with formula_toy.edited(FORMULA, "alpha ** 2"):
        message = formula_toy("status", expect=2).err
    assert "gate.activation: alpha ** 2 has gradient 0 at 0, so a gate that starts there never changes" in message


RUN = ("run", "claims", "fast", "--executor", "local", "--yes")


@pytest.mark.long
def test_a_true_claim_is_supported_although_the_command_was_killed(tmp_path: Path) -> None:
    toy = Toy(tmp_path / "toy")
    toy.declare(toy_of(40) + file_text("experiments/rates.yaml"))
    first = toy.start(*RUN)
    until(lambda: len(toy.attempts()) >= 3)
    first.kill()
    first.wait()
    # The seeds of the round were written before its first job.
    assert (toy.folder / "experiments.seeds.yaml").read_text().count("[3, 4]") == 2
    found = toy(*RUN, "--json").json
    (part,) = found["claims"][0]["parts"]
    assert found["claims"][0]["verdict"] == "supported"
    assert part["seeds"] == list(range(1, len(part["seeds"]) + 1))
    assert max(part["effects"]) < 0
    # A job that the killed command had started is followed or resumed, and no seed is trained twice.
    assert len({path.parent for path in toy.attempts()}) == 2 * len(part["seeds"])
    assert toy("claims", "fast", "--json").json["claims"][0]["verdict"] == "supported"
    before = toy.attempts()
    assert toy(*RUN, "--json").json["rounds"] == 0
    assert toy.attempts() == before
    # The two files make the same cells on another machine.
    other = Toy(tmp_path / "other")
    for name in ("experiments.yaml", "experiments.seeds.yaml"):
        (other.folder / name).write_text((toy.folder / name).read_text())
    assert set(other.status()) == set(toy.status())


FINETUNE = (
    "finetune: {data: records.jsonl, validation: held-out.jsonl, length: 24, epochs: 1, batch: 4, lisa_layers: 1}"
)


@pytest.fixture(scope="module")
def finetuned_toy(trained: Toy, tmp_path_factory: pytest.TempPathFactory) -> Toy:
    """Return a project whose cells were trained, then declared to be finetuned, of which one was."""
    made = trained.copied(tmp_path_factory.mktemp("finetune") / "toy")
    for name, count in (("records", 20), ("held-out", 4)):
        lines = [json.dumps({"instruction": f"Add {i} and 1.", "output": f"{i + 1}"}) for i in range(count)]
        (made.folder / f"{name}.jsonl").write_text("\n".join(lines))
    made.edit("data: notes}", f"data: notes, {FINETUNE}}}")
    made.edit("columns: size,", "columns: size, value: answer_loss,")
    plan = made("plan").out
    assert "2 jobs to start" in plan, plan
    with jobs_run_here():
        made("run", "grid", "--where", "gate=gpas", "--yes")
    return made


@pytest.mark.long
def test_a_finetuning_follows_a_training_that_is_already_done(finetuned_toy: Toy) -> None:
    assert finetuned_toy.states()["pre-gpas-s1"] == "done"
    stages = [json.loads((folder / "attempt.json").read_text())["stage"] for folder in finetuned_toy.attempts()]
    assert sorted(stages) == ["finetune", "pretrain", "pretrain"]


def test_its_metrics_are_in_the_database_and_the_table(finetuned_toy: Toy) -> None:
    metrics = finetuned_toy.status()["pre-gpas-s1"]["metrics"]
    assert metrics["answer_loss"] > 0
    assert metrics["finetuned_perplexity"] > 1
    assert f"{metrics['answer_loss']:.3f}" in finetuned_toy("table", "small").out
    finetuned_toy("db", "rebuild", "--yes")
    assert f"{metrics['answer_loss']:.3f}" in finetuned_toy("table", "small").out


def test_another_setting_of_the_finetuning_keeps_the_training(finetuned_toy: Toy) -> None:
    with finetuned_toy.edited("epochs: 1", "epochs: 2"):
        plan = finetuned_toy("plan").out
    assert "2 jobs to start" in plan
    assert "the stage finetune has no result yet" in plan


def test_records_that_are_not_there_are_one_message(finetuned_toy: Toy) -> None:
    with finetuned_toy.edited("data: records.jsonl", "data: record.jsonl"):
        said = finetuned_toy("run", "grid", "--yes", expect=2)
    assert "finetune.data: there is no file or folder" in said.out + said.err


def test_the_finetuned_network_is_exported_with_its_tokenizer(finetuned_toy: Toy) -> None:
    pytest.importorskip("transformers")
    folder: Path = finetuned_toy.folder / "exported"
    said = finetuned_toy("export", "pre-gpas-s1", str(folder)).out
    assert (folder / "tokenizer.json").exists()
    assert "not the last update" not in said
    card = (folder / "README.md").read_text()
    assert "## Finetune\n\n- data: `records.jsonl`" in card


BLOCKS = [found[1:] for found in FENCE.findall((DOCS / "how-to/paper.md").read_text("utf-8"))]
COMMANDS = [shlex.split(line)[1:] for language, text in BLOCKS if language == "bash" for line in text.splitlines()]
RUN_GRID = COMMANDS.index(["run", "grid"])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with the files of the page."""
    for language, text in BLOCKS:
        if title := re.search(r'title="(.*)"', language):
            path = tmp_path / title[1]
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
    return tmp_path


def test_it_plans_and_prints_its_numbers_before_anything_is_trained(folder: Path) -> None:
    plan, explained, table = (gpas(folder, *words).out for words in COMMANDS[:RUN_GRID])
    assert "4 cells: 4 new" in plan
    assert "x <- x + 0.7071 f(N(x))" in explained
    assert re.search(r"Damped-LN +missing +239\.8 \(-1\.4\)", table)
    assert "the paper does not say how many seeds it averages" in table


def test_a_colleague_includes_it_under_another_name(folder: Path) -> None:
    plan, figure = (gpas(folder, *words, expect=None) for words in COMMANDS if "--config" in words)
    assert "theirs.damped-table1/damped-s1" in plan.out
    assert "4 cells without a result: theirs.damped-table1/pre-s1" in figure.out
    claims = gpas(folder, "--config", "colleague/experiments.yaml", "claims", "theirs.damping-lowers-perplexity")
    assert "Damped, Table 1" in claims.out
    assert "gpas run grid theirs.damped-table1" in claims.out


def test_an_installed_package_offers_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    information = folder / "mypaper-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: mypaper\nVersion: 1.0\n")
    project = tomllib.loads(next(text for language, text in BLOCKS if language.startswith("toml")))["project"]
    lines = [f"[{group}]\n{name} = {module}\n" for group, points in project["entry-points"].items()
             for name, module in points.items()]  # fmt: skip
    (information / "entry_points.txt").write_text("".join(lines))
    monkeypatch.syspath_prepend(str(folder))
    known_packs.cache_clear()
    installed.cache_clear()
    try:
        assert published(known_packs()["damped"], "table1").what == "validation perplexity after 60 updates"
        (folder / "experiments.yaml").write_text("version: 1\ninclude: [damped]\n")
        assert "4 cells: 4 new" in gpas(folder, "plan").out
    finally:
        monkeypatch.undo()
        known_packs.cache_clear()
        installed.cache_clear()


@pytest.mark.long
def test_it_runs_as_written(folder: Path) -> None:
    said: dict[str, Said] = {}
    with jobs_run_here():
        for words in COMMANDS:
            said[" ".join(words)] = gpas(folder, *words, expect=3 if "theirs.mypaper-1" in words else 0)
    assert "4 done" in said["run grid"].out
    assert re.search(r"Damped-LN +\d+\.\d\d ± \d", said["table --paper"].out)
    assert re.search(r"damping-lowers-variance +(un)?(decided|supported|contradicted)", said["claims"].out)
    assert "Damped, Table 1" in said["claims damping-lowers-perplexity"].out
    assert (folder / "figures/mypaper-1.svg").stat().st_size > 1000
    assert "Wrote figures/mypaper-1.pdf" in said["figure paper mypaper-1"].out


STAGE = next(code for _, code in PYTHON if "class Outliers" in code)


@pytest.fixture(scope="module")
def plugin_toy(tmp_path_factory: pytest.TempPathFactory) -> Toy:
    """Return a completed project with the files of the guides."""
    made = Toy(tmp_path_factory.mktemp("stranger"), norms="faded", gates="gpas", steps=6)
    made.folder.joinpath("my_schemes.py").write_text(CODE)
    made.folder.joinpath("my_stages.py").write_text(STAGE)
    made.edit("version: 1\n", "version: 1\nplugins: [my_schemes.py, my_stages.py]\n")
    made.edit("data: notes}", "data: notes, outliers: {sigmas: 2}}")
    made.edit("columns: size,", "columns: size, value: outlier_share,")
    with jobs_run_here():
        made("run", "grid", "--yes")
    return made


def test_a_plugin_scheme_trains_and_a_plugin_stage_follows_it_in_the_table(plugin_toy: Toy) -> None:
    assert plugin_toy.states() == {"faded-gpas-s1": "done"}
    share = plugin_toy.status()["faded-gpas-s1"]["metrics"]["outlier_share"]
    assert 0 < share < 50
    assert re.search(rf"Faded-LN \+ GPAS +{share:.4f}", plugin_toy("table", "small").out)
    assert "G(0.9 x + N(f(N(x))))" in plugin_toy("explain", "faded-gpas-s1").out


def test_their_texts_are_recorded_where_they_were_needed(plugin_toy: Toy) -> None:
    attempts = [json.loads((directory / "attempt.json").read_text()) for directory in plugin_toy.attempts()]
    assert sorted(attempt["stage"] for attempt in attempts) == ["outliers", "pretrain"]
    for attempt in attempts:
        assert attempt["plugin"] == {"name": "my_schemes.py", "source": CODE}
        of_stage = ([{"name": "my_stages.py", "source": STAGE}], "the outliers of {cell}")
        found = (attempt.get("stage_plugins"), attempt.get("title"))
        assert found == (of_stage if attempt["stage"] == "outliers" else (None, None))


def test_the_parameters_of_a_stage_are_in_its_key_and_not_in_that_of_the_training(plugin_toy: Toy) -> None:
    before = plugin_toy.status()["faded-gpas-s1"]["key"]
    with plugin_toy.edited("sigmas: 2", "sigmas: 3"):
        assert plugin_toy.status()["faded-gpas-s1"]["key"] != before
        assert "the stage outliers has no result yet" in plugin_toy("plan").out
    with plugin_toy.edited("sigmas: 2", "sigma: 2"):
        assert "outliers.sigma: unknown key 'sigma'; did you mean 'sigmas'?" in plugin_toy("plan", expect=2).err


def test_the_key_depends_on_what_a_plugin_computes_and_not_on_its_text(plugin_toy: Toy) -> None:
    file = plugin_toy.folder / "my_schemes.py"
    keys = {name: cell["key"] for name, cell in plugin_toy.status().items()}
    file.write_text(f"# A remark.\n{CODE}")
    assert {name: cell["key"] for name, cell in plugin_toy.status().items()} == keys
    file.write_text(CODE.replace("0.9", "0.8"))
    assert set(plugin_toy.states().values()) == {"missing"}
    file.write_text(CODE)


def job(toy: Toy, number: int, **changed: object) -> tuple[int, str]:
    """Run one more attempt at the first cell, as recorded except for `changed`; return its exit code and journal."""
    first = next(path for path in toy.attempts() if '"stage": "pretrain"' in (path / "attempt.json").read_text())
    directory = first.with_name(f"{number:03d}")
    directory.mkdir()
    attempt = {**json.loads((first / "attempt.json").read_text()), "number": number, **changed}
    (directory / "attempt.json").write_text(json.dumps(attempt))
    command = [sys.executable, "-P", "-m", "gpas_cli.worker.job", str(directory)]
    done = subprocess.run(command, cwd=toy.folder, env=toy.environment(), stdout=subprocess.DEVNULL, timeout=240)
    return done.returncode, (directory / "journal.jsonl").read_text()


@pytest.mark.long
def test_a_job_runs_the_recorded_text_and_not_the_file(plugin_toy: Toy) -> None:
    plugin_toy.folder.joinpath("my_schemes.py").write_text("raise RuntimeError\n")
    assert job(plugin_toy, 2)[0] == 0
    code, journal = job(plugin_toy, 3, plugin={"name": "my_schemes.py", "source": CODE.replace("self.fade)", "2)")})
    assert code == 1
    assert "the wiring of 'faded' has changed since this cell was recorded" in journal
    message = plugin_toy("status", expect=2).err
    assert "experiments.yaml:2:11: plugins: my_schemes.py:1: RuntimeError" in message

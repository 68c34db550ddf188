"""The texts that cells read, the jobs that tokenise them, and what attempts took."""

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from attempts import attempt_record, make_attempt
from launching import FOUR_CORES, entry, key

from gpas_cli.data.prepare import Need
from gpas_cli.data.records import FinetuneRecord, prompt
from gpas_cli.data.shards import Totals
from gpas_cli.data.text_usage import missing_texts, requirements
from gpas_cli.events import Event, Outcome, Phase, Started, fields_of
from gpas_cli.grid import Entry
from gpas_cli.plan.estimate import estimate
from gpas_cli.plan.stage_jobs import stage_jobs
from gpas_cli.plan.texts import Texts, how_far, with_texts
from gpas_cli.plan.usage import UsageMeter
from gpas_cli.project import Project
from gpas_cli.schedule.slurm.job import Job
from gpas_cli.spec.run import Resources
from gpas_cli.spec.stage import STAGE_KINDS, TOKENISE
from gpas_cli.state.status import CellStatus, Progress, StageStatus
from gpas_cli.store.journal import Journal, encode
from gpas_cli.store.rundir import AttemptDir, write_json
from gpas_cli.structure import to_mapping
from gpas_cli.words import byte_size
from gpas_cli.worker import tokenise

LOCAL = "arc_easy@0123456789ab"


def test_a_tokenizer_without_the_named_mask_token_is_refused(project: Project, tmp_path: Path) -> None:
    for name in ("text.txt", "held.txt"):
        (tmp_path / name).write_text("some text\n" * 100)
    (tmp_path / "own.json").write_text('{"model": {"vocab": {"<mask>": 0}}}')
    data = {"source": "files", "path": "text.txt", "validation": "held.txt", "tokenizer": "own.json", "length": 16}

    def reason(token: str) -> str:
        cell = entry(data=data, objective={"like": "mlm", "mask_token": token}).cell
        return Texts(project, [cell]).missing(cell)

    assert reason("<mask>") == ""
    assert "own.json has no token '[MASK]'" in reason("[MASK]")


def test_a_missing_file_of_questions_is_a_warning_and_refuses_no_cell(project: Project, tmp_path: Path) -> None:
    cell = entry(downstream={"tasks": [LOCAL, "piqa"]}).cell
    texts = Texts(project, [cell])
    (warning,) = (said for said in texts.warnings([cell]) if "tasks/" in said)
    assert warning.startswith(f"tasks/{LOCAL}.jsonl is missing")
    assert "gpas data import-task FILE --task arc_easy" in warning
    (tmp_path / "tasks").mkdir()
    (tmp_path / f"tasks/{LOCAL}.jsonl").touch()
    assert not any("tasks/" in said for said in texts.warnings([cell]))


def test_a_local_test_set_without_references_is_refused_before_anything_runs(project: Project, tmp_path: Path) -> None:
    size = {"hidden": 16, "ffn": 16, "heads": 2, "layers": 2, "vocab": 300}
    whole = {"size": size, "family": "encoder-decoder", "objective": "translation", "data": {"source": "languages"}}
    cell = entry(**whole, translation={"tests": ["languages", "mine=t.{en,de}"]}).cell
    (tmp_path / "t.en").write_text("a\n")
    assert "translation.tests: mine=t.{en,de}: there is no file" in Texts(project, [cell]).missing(cell)
    (tmp_path / "t.de").write_text("b\n")
    assert Texts(project, [cell]).missing(cell) == ""


def test_a_shared_training_keeps_the_checkpoints_that_any_of_its_cells_averages() -> None:
    size = {"hidden": 16, "ffn": 16, "heads": 2, "layers": 2, "vocab": 300}
    whole = {"size": size, "family": "encoder-decoder", "objective": "translation", "data": {"source": "languages"}}
    whole["optim"] = {"lr": 1e-3, "warmup": 1, "steps": 40, "batch": 4}
    cells = [
        entry(**whole, translation={"tests": ["languages"], "average": average, "average_every": every})
        for average, every in ((1, 0), (3, 2), (2, 5))
    ]
    for order in (cells, cells[::-1]):
        jobs = stage_jobs(order)
        assert len(jobs) == 4
        assert jobs[cells[0].cell.trained.key].record().cadence.keep == (35, 36, 38, 40)
        assert {job.cadence.keep for job in jobs.values() if job.kind == "translation"} == {()}


def test_a_row_of_zeros_that_the_text_may_begin_with_is_a_warning(project: Project, tmp_path: Path) -> None:

    def said(**values: object) -> list[str]:
        cell = entry(**values).cell
        return [text for text in Texts(project, [cell]).warnings([cell]) if "zero_last_row" in text]

    (warning,) = said(init={"zero_last_row": True})
    assert "keeps id 511 at zero, and tokenizer 'bpe' may emit it" in warning
    assert said() == said(size="71m", data="c4") == []


def test_a_job_costs_what_its_text_has(project: Project, tmp_path: Path) -> None:
    (tmp_path / "text").mkdir()
    for number in range(50):
        (tmp_path / f"text/{number}.txt").write_text(f"the gate of layer {number} is a number of its own\n" * 40)
    data = {"source": "files", "path": "text/*.txt", "tokenizer": "bpe", "length": 16}
    records = [{"instruction": f"Add {n} and {n}.", "input": "", "output": str(2 * n)} for n in range(400)]
    (tmp_path / "records.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    tuned = {"data": "records.jsonl", "epochs": 2, "batch": 4, "length": 64}
    job = entry(data=data, finetune=tuned)
    texts = Texts(project, [job.cell])
    held_out = 50 * 40 * len("the gate of layer 10 is a number of its own ") * 0.08 / 2
    sized = texts.sized(job.cell)
    assert sized.data.eval_tokens == pytest.approx(held_out, rel=0.1)
    (missing,) = missing_texts(requirements([job.cell]), project.cache, tmp_path)
    assert missing.tokens == pytest.approx(50 * 40 * len("the gate of layer 10 is a number of its own ") / 2, rel=0.1)
    size = sum(path.stat().st_size for path in (tmp_path / "text").iterdir())
    assert texts.files([job.cell]) == [f"text/*.txt: 50 files, {byte_size(size)}"]
    pretrain, finetune = STAGE_KINDS["pretrain"].cost, STAGE_KINDS["finetune"].cost
    own = job.cell.optim
    assert pretrain(sized, job.cadence, 0) == own.steps * own.batch * 16 + sized.data.eval_tokens / 3
    tokens = finetune(sized, job.cadence, 0)
    asked = sum(len(prompt(FinetuneRecord(**record), "alpaca") + record["output"]) for record in records)
    assert tokens == pytest.approx(2 * asked / 2, rel=0.3)
    assert finetune(job.cell, job.cadence, 0) > 1000 * tokens
    estimated = [
        estimate(tmp_path, stage_jobs([job]).values(), FOUR_CORES, {}, sized=how)
        for how in (texts.sized, lambda cell: cell)
    ]
    assert estimated[0].tokens == pytest.approx(pretrain(sized, job.cadence, 0) + tokens)
    assert estimated[1].tokens > 100 * estimated[0].tokens


def test_local_texts_and_questions_cost_what_their_files_have(project: Project, tmp_path: Path) -> None:
    cell = entry(downstream={"tasks": [LOCAL]}, texts={"texts": ["notes=notes.txt", "two/*.jsonl"]}).cell

    def tokens(kind: str) -> float:
        return 3 * STAGE_KINDS[kind].cost(Texts(project, [cell]).sized(cell), entry().cadence, 0)

    assert (tokens("downstream"), tokens("texts")) == (300_000, 500_000)
    (tmp_path / "tasks").mkdir()
    (tmp_path / f"tasks/{LOCAL}.jsonl").write_text((json.dumps({"question": "?" * 100}) + "\n") * 200)
    (tmp_path / "notes.txt").write_text("a text " * 1000)
    (tmp_path / "two").mkdir()
    for name in "ab":
        (tmp_path / f"two/{name}.jsonl").write_text((json.dumps({"text": "x" * 80}) + "\n") * 50)
    assert tokens("downstream") == pytest.approx(200 * 116 / 2, rel=0.05)  # two bytes a token with 512 ids
    assert tokens("texts") == pytest.approx((7_000 + 2 * 50 * 93) / 2, rel=0.05)
    cell = replace(cell, later=tuple(replace(one, parameters=replace(one.parameters, limit=10)) for one in cell.later))
    assert tokens("downstream") == pytest.approx(10 * 116 / 2, rel=0.05)


NOTES = {"source": "files", "path": "text/*.txt", "tokenizer": "bpe", "layout": "pack", "length": 16, "eval_tokens": 50}


@pytest.fixture
def notes(project: Project) -> Project:
    """Return the project with the text that `NOTES` names."""
    (project.config.parent / "text").mkdir()
    for i in range(60):
        (project.config.parent / f"text/{i}.txt").write_text("gate norm layer stream scale " * 40 + str(i))
    return project


def jobs(*entries: Entry) -> list[Any]:
    return list(stage_jobs(entries).values())


def run(project: Project, job: Any, stop: Any = lambda: None) -> tuple[Outcome, list[Event]]:
    """Return the outcome and the events of a text's job."""
    events: list[Event] = []
    about = {"cache": str(project.cache), "root": str(project.config.parent), "threads": 1, "code": "c0de"}
    asked = attempt_record(job.key, {**to_mapping(job.record()), **about})
    outcome = tokenise.tokenise(asked, events.append, stop)
    return outcome, events


def test_each_corpus_has_one_job_on_which_the_first_stages_wait(notes: Project) -> None:
    asked = {"kind_resources": {TOKENISE: Resources(cpus=8, mem="9G")}}
    cells = [replace(entry(seed=seed, data=NOTES, importance={"eval_tokens": 9}), **asked) for seed in (1, 2)]
    other = entry(seed=3, data={**NOTES, "length": 32})
    found = with_texts(notes, jobs(*cells, other))
    texts = [job for job in found if job.kind == TOKENISE]
    assert len(texts) == 2
    assert found[:2] == texts
    assert (texts[0].name, texts[0].resources) == ("text/*.txt", Resources(cpus=8, mem="9G"))
    waiting = {(job.kind, job.cell.seed): job.text for job in found[2:]}
    assert waiting == {
        ("pretrain", 1): texts[0].key, ("importance", 1): "", ("pretrain", 2): texts[0].key, ("importance", 2): "",
        ("pretrain", 3): texts[1].key,
    }  # fmt: skip


def test_a_text_has_one_job_however_much_of_it_is_read(notes: Project) -> None:
    short, long = (
        entry(data=NOTES),
        entry(seed=2, data={**NOTES, "eval_tokens": 99}, optim={"lr": 1e-3, "warmup": 1, "steps": 9, "batch": 2}),
    )
    keys = {with_texts(notes, jobs(cell))[0].key for cell in (short, long)}
    assert len(keys) == 1


def test_tokenised_text_needs_no_job_and_lost_text_another(notes: Project) -> None:
    cell = entry(data=NOTES)
    job, training = with_texts(notes, jobs(cell))
    outcome, events = run(notes, job)
    assert outcome.outcome == "done"
    assert outcome.metrics["train_tokens"] > 1000
    assert [type(event) for event in events[:2]] == [Started, Phase]
    assert with_texts(notes, [training]) == jobs(cell)
    attempt = make_attempt(notes.runs, job.key, to_mapping(job.record()))
    Journal(attempt.journal_path).append(outcome)
    next((notes.cache / "tokens").glob("*/train/00000.json")).unlink()
    again, _ = with_texts(notes, jobs(cell))
    assert again.key != job.key
    assert run(notes, again)[0].outcome == "done"


def test_an_unavailable_text_is_reported_by_the_job(notes: Project) -> None:
    for path in (notes.config.parent / "text").iterdir():
        path.unlink()
    assert len(with_texts(notes, jobs(entry(data=NOTES)))) == 2


def test_a_stopped_tokenisation_is_resumed(notes: Project) -> None:
    job, _ = with_texts(notes, jobs(entry(data=NOTES)))
    assert run(notes, job, stop=lambda: "interrupted")[0] == Outcome("interrupted")
    assert run(notes, job)[0].outcome == "done"


def test_progress_of_a_tokenisation() -> None:
    events: list[Event] = []
    reporter = tokenise._ProgressReporter(events.append, lambda: None)
    reporter.watch("train", Need("tokens", 1000), Totals(7, 345))
    lines = [encode({"n": 0, "t": 1.0, "kind": event.kind, **fields_of(event)})[:-1] for event in events]
    seen = StageStatus(state="running", evidence="its lock", journal_end=lines)
    assert how_far(seen) == "running 34 % (train: 7 documents, 345 tokens)"
    assert how_far(StageStatus(state="failed", evidence="x", cause="no file")) == "failed: no file"


HOUR = 3600.0


def attempt(runs: Path, cell: Entry, hours: float, *devices: str, ago: float = 10.0, seen: bool = True) -> AttemptDir:
    """Create an attempt of `hours` that began `ago` hours ago; without an exit `seen`, its last event ends it."""
    began = time.time() - ago * HOUR
    facts = {"created": began, "devices": list(devices), "submitter": {"host": "here"}}
    made = make_attempt(runs, key(cell), facts)
    if seen:
        write_json(made.exit_path, {"code": 0, "signal": None, "t": began + hours * HOUR})
    made.journal_path.write_bytes(encode({"n": 0, "t": began + hours * HOUR, "kind": "step", "step": 1}))
    return made


def state(cell: Entry, word: str, made: AttemptDir | None = None, eta: float | None = None, job: Job | None = None):
    progress = Progress(step=1, steps=2, eta=eta) if eta is not None else None
    return CellStatus(
        entry=cell, stage="pretrain", key=key(cell), state=word, evidence="", reached=progress, job=job,
        directory=made.path if made else None,
    )  # fmt: skip


@pytest.fixture
def cells() -> list[Entry]:
    return [replace(entry(seed=seed), axes={"size": "toy"}) for seed in range(1, 5)]


def test_hours_count_every_attempt_and_device(tmp_path: Path, cells: list[Entry]) -> None:
    attempt(tmp_path, cells[0], 1.5, "gpu-0", "gpu-1")
    attempt(tmp_path, cells[0], 0.5, "gpu-0", "gpu-1", seen=False)
    attempt(tmp_path, cells[1], 3.0, "cpu-0", "cpu-1")
    activity = UsageMeter(tmp_path).activity([state(cells[0], "done"), state(cells[1], "failed")])
    assert activity.total.spent.gpu_hours == pytest.approx(4.0)
    assert (activity.total.spent.core_hours, activity.total.left) == (pytest.approx(6.0), 1)
    assert (activity.total.to_go, activity.total.ends) == (None, None)  # nothing runs


def test_a_running_attempt_keeps_accumulating_cost(tmp_path: Path, cells: list[Entry]) -> None:
    made = attempt(tmp_path, cells[0], 0.1, "gpu-0", ago=2.0, seen=False)
    meter = UsageMeter(tmp_path)
    (run,) = meter.activity([state(cells[0], "running", made)]).running
    assert run.spent.gpu_hours == pytest.approx(2.0, abs=0.01)
    assert (run.node, run.devices) == ("here", ("gpu-0",))
    assert meter.activity([state(cells[0], "interrupted", made)]).total.spent.gpu_hours == pytest.approx(0.1)


def test_the_end_is_estimated_from_running_and_similar_cells(tmp_path: Path, cells: list[Entry]) -> None:
    attempt(tmp_path, cells[0], 2.0, "gpu-0")
    made = attempt(tmp_path, cells[1], 0.0, "gpu-0", ago=1.0, seen=False)
    states = [state(cells[0], "done"), state(cells[1], "running", made, eta=HOUR), state(cells[2], "queued")]
    activity = UsageMeter(tmp_path).activity([*states, state(cells[3], "queued")])
    assert activity.total.ends == pytest.approx(5 * HOUR, rel=0.01)  # one hour, and two cells of two hours after it
    assert activity.total.to_go.gpu_hours == pytest.approx(5.0, rel=0.01)


def test_there_is_no_end_while_nobody_has_queued_the_rest(tmp_path: Path, cells: list[Entry]) -> None:
    made = attempt(tmp_path, cells[1], 0.0, "gpu-0", ago=1.0, seen=False)
    running = state(cells[1], "running", made, eta=HOUR)
    ends = {
        word: UsageMeter(tmp_path).activity([running, state(cells[2], word)]).total.ends
        for word in ("done", "failed", "cancelled", "missing", "interrupted")
    }
    assert [word for word, end in ends.items() if end is not None] == ["done", "failed", "cancelled"]


def test_a_job_for_another_grid_ends_a_cell_without_later_stages(tmp_path: Path, cells: list[Entry]) -> None:
    made = attempt(tmp_path, cells[1], 0.0, "gpu-0", ago=1.0, seen=False)
    running = replace(state(cells[1], "running", made, eta=HOUR), claimed_for="other")
    assert UsageMeter(tmp_path).activity([running]).total.ends == pytest.approx(HOUR, rel=0.01)
    scored = entry(seed=2, downstream={"tasks": ["indent"]})
    assert UsageMeter(tmp_path).activity([replace(running, entry=scored)]).total.ends is None


def test_a_run_of_several_grids_is_listed_once(tmp_path: Path, cells: list[Entry]) -> None:
    made = attempt(tmp_path, cells[1], 0.0, "gpu-0", ago=1.0, seen=False)
    first = replace(state(cells[1], "running", made, eta=HOUR), claimed_for="other")
    second = replace(first, entry=replace(cells[1], grid="other"))
    activity = UsageMeter(tmp_path).activity([first, second])
    assert [run.state.entry.grid for run in activity.running] == ["other"]


def test_shared_cells_are_counted_once_in_the_total(tmp_path: Path, cells: list[Entry]) -> None:
    attempt(tmp_path, cells[0], 2.0, "gpu-0")
    activity = UsageMeter(tmp_path).activity([state(cells[0], "done"), state(replace(cells[0], grid="other"), "done")])
    assert [use.spent.gpu_hours for use in activity.grids] == pytest.approx([2.0, 2.0])
    assert activity.total.spent.gpu_hours == pytest.approx(2.0)


def test_the_queue_is_in_the_order_of_its_line(tmp_path: Path, cells: list[Entry]) -> None:
    places = {0: 7, 1: 0, 2: 3}
    queued = [state(cells[i], "queued", job=Job(f"1_{i}", "PENDING", place=n)) for i, n in places.items()]
    assert [s.job.place for s in UsageMeter(tmp_path).activity(queued).queued if s.job] == [3, 7, 0]

"""What the plan says about questions that are not there."""

import json
from pathlib import Path

import pytest
from launching import FOUR_CORES, entry

from gpas_cli.data.records import FinetuneRecord, prompt
from gpas_cli.plan.estimate import estimate
from gpas_cli.plan.stage_jobs import stage_jobs
from gpas_cli.plan.texts import Texts
from gpas_cli.project import Project
from gpas_cli.spec.stage import STAGE_KINDS

LOCAL = "arc_easy@0123456789ab"


def test_a_tokenizer_without_the_named_mask_token_is_refused(tmp_path: Path) -> None:
    project = Project(tmp_path / "experiments.yaml", tmp_path / "runs", tmp_path / "cache", "")
    for name in ("text.txt", "held.txt"):
        (tmp_path / name).write_text("some text\n" * 100)
    (tmp_path / "own.json").write_text('{"model": {"vocab": {"<mask>": 0}}}')
    data = {"source": "files", "path": "text.txt", "validation": "held.txt", "tokenizer": "own.json", "length": 16}

    def reason(token: str) -> str:
        cell = entry(data=data, objective={"like": "mlm", "mask_token": token}).cell
        return Texts(project, [cell]).missing(cell)

    assert reason("<mask>") == ""
    assert "own.json has no token '[MASK]'" in reason("[MASK]")


def test_a_missing_file_of_questions_is_a_warning_and_refuses_no_cell(tmp_path: Path) -> None:
    project = Project(tmp_path / "experiments.yaml", tmp_path / "runs", tmp_path / "cache", "")
    cell = entry(downstream={"tasks": [LOCAL, "piqa"]}).cell
    texts = Texts(project, [cell])
    (warning,) = (said for said in texts.warnings([cell]) if "tasks/" in said)
    assert warning.startswith(f"tasks/{LOCAL}.jsonl is missing")
    assert "gpas data import-task FILE --task arc_easy" in warning
    (tmp_path / "tasks").mkdir()
    (tmp_path / f"tasks/{LOCAL}.jsonl").touch()
    assert not any("tasks/" in said for said in texts.warnings([cell]))


def test_a_local_test_set_without_references_is_refused_before_anything_runs(tmp_path: Path) -> None:
    project = Project(tmp_path / "experiments.yaml", tmp_path / "runs", tmp_path / "cache", "")
    size = {"hidden": 16, "ffn": 16, "heads": 2, "layers": 2, "vocab": 300}
    whole = {"size": size, "family": "encoder-decoder", "objective": "translation", "data": {"source": "languages"}}
    cell = entry(**whole, translation={"tests": ["languages", "mine=t.{en,de}"]}).cell
    (tmp_path / "t.en").touch()
    assert "translation.tests: mine=t.{en,de}: there is no file" in Texts(project, [cell]).missing(cell)
    (tmp_path / "t.de").touch()
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


def test_a_row_of_zeros_that_the_text_may_begin_with_is_a_warning(tmp_path: Path) -> None:
    project = Project(tmp_path / "experiments.yaml", tmp_path / "runs", tmp_path / "cache", "")

    def said(**values: object) -> list[str]:
        cell = entry(**values).cell
        return [text for text in Texts(project, [cell]).warnings([cell]) if "zero_last_row" in text]

    (warning,) = said(init={"zero_last_row": True})
    assert "keeps id 511 at zero, and tokenizer 'bpe' may emit it" in warning
    assert said() == said(size="71m", data="c4") == []


def test_a_job_costs_what_its_text_has(tmp_path: Path) -> None:
    project = Project(tmp_path / "experiments.yaml", tmp_path / "runs", tmp_path / "cache", "")
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
    assert texts.untokenised([job.cell]) == ["text/*.txt"]
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

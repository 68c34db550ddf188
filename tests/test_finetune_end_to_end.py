"""Finetuning from YAML to the database and the table: a stage after the training, which is not trained twice."""

import json
from pathlib import Path

import pytest
from end_to_end import Toy, jobs_run_here

FINETUNE = (
    "finetune: {data: records.jsonl, validation: held-out.jsonl, length: 24, epochs: 1, batch: 4, lisa_layers: 1}"
)


@pytest.fixture(scope="module")
def toy(trained: Toy, tmp_path_factory: pytest.TempPathFactory) -> Toy:
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
def test_a_finetuning_follows_a_training_that_is_already_done(toy: Toy) -> None:
    assert toy.states()["pre-gpas-s1"] == "done"
    stages = [json.loads((folder / "attempt.json").read_text())["stage"] for folder in toy.attempts()]
    assert sorted(stages) == ["finetune", "pretrain", "pretrain"]


def test_its_metrics_are_in_the_database_and_the_table(toy: Toy) -> None:
    metrics = toy.status()["pre-gpas-s1"]["metrics"]
    assert metrics["answer_loss"] > 0
    assert metrics["finetuned_perplexity"] > 1
    assert f"{metrics['answer_loss']:.3f}" in toy("table", "small").out
    toy("db", "rebuild", "--yes")
    assert f"{metrics['answer_loss']:.3f}" in toy("table", "small").out


def test_another_setting_of_the_finetuning_keeps_the_training(toy: Toy) -> None:
    with toy.edited("epochs: 1", "epochs: 2"):
        plan = toy("plan").out
    assert "2 jobs to start" in plan
    assert "the stage finetune has no result yet" in plan


def test_records_that_are_not_there_are_one_message(toy: Toy) -> None:
    with toy.edited("data: records.jsonl", "data: record.jsonl"):
        said = toy("run", "grid", "--yes", expect=2)
    assert "finetune.data: there is no file or folder" in said.out + said.err


def test_the_finetuned_network_is_exported_with_its_tokenizer(toy: Toy) -> None:
    pytest.importorskip("transformers")
    folder: Path = toy.folder / "exported"
    said = toy("export", "pre-gpas-s1", str(folder)).out
    assert (folder / "tokenizer.json").exists()
    assert "not the last update" not in said
    card = (folder / "README.md").read_text()
    assert "## Finetune\n\n- data: `records.jsonl`" in card
    assert f"loss on held-out answers {toy.status()['pre-gpas-s1']['metrics']['answer_loss']:.4g}" in card

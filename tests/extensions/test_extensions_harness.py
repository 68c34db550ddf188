"""lm-evaluation-harness on our network: the papers' tasks on local documents, and agreement with its `hf` backend."""

import importlib.util
import json
import math
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from documents import WORDS
from exporting import CPU, Room, needs_harness, needs_transformers, run_alone
from goldens import golden_cases
from local_documents import score_local, write

from gpas_cli.data import hub
from gpas_cli.data.tokenizer import Tokenizer
from gpas_cli.errors import GpasError
from gpas_cli.evaluate.likelihood import Request, Scorer, ScoringStopped
from gpas_cli.evaluate.tasks import TaskUnavailable
from gpas_cli.events import Score
from gpas_cli.extensions.harness import scoring as harness
from gpas_cli.extensions.harness.scoring import official_scorer
from gpas_cli.spec.cell import Cell

pytestmark = needs_harness
MAX_LENGTH = 64
COUNT = 12
CHOOSER = random.Random(7)
CELLS: dict[str, dict[str, object]] = {
    "plain": {"norm": "pre", "gate": "gpas"},
    "bundled": {"norm": "mix", "gate": "gpas"},
}


def words(fewest: int, most: int) -> str:
    return " ".join(CHOOSER.choice(WORDS) for _ in range(CHOOSER.randint(fewest, most)))


def filled(document: Any) -> Any:
    """Return a document with words and choices drawn."""
    if isinstance(document, dict):
        chosen = document.get("any of")
        return CHOOSER.choice(chosen) if chosen else {name: filled(own) for name, own in document.items()}
    if isinstance(document, list):
        return list(map(filled, document))
    if not isinstance(document, str):
        return document
    return re.sub(r"<(\d+)-(\d+)>", lambda found: words(*map(int, found.groups())), document)


def random_states() -> tuple[Any, ...]:
    return random.getstate(), str(np.random.get_state()), torch.get_rng_state().tolist()


DOCUMENTS = golden_cases("harness_documents")
SHARED = ("arc_easy", "openbookqa", "social_iqa")


@pytest.fixture(scope="module")
def folder(room: Room) -> Path:
    """Return a folder with COUNT documents of each task, 4 for solved examples, and 3 of each subject of MMLU."""
    folder = room.folder / "documents"
    folder.mkdir()
    for task, own in DOCUMENTS.items():
        write(folder / f"{task}.jsonl", [filled(own["document"]) for _ in range(COUNT)])
        write(folder / f"{task}.train.jsonl", [filled(own["document"]) for _ in range(4)])
    return folder


def trained(room: Room, cell: Cell) -> tuple[Scorer, Tokenizer]:
    network, tokenizer = room.opened(cell)
    return Scorer(network, CPU, max_length=MAX_LENGTH), tokenizer


@pytest.fixture(scope="module")
def ours(room: Room) -> tuple[Scorer, Tokenizer]:
    return trained(room, room.cell(**CELLS["plain"]))


@pytest.mark.parametrize("task", DOCUMENTS)
def test_every_task_of_the_papers_is_scored_on_local_documents(
    ours: tuple[Scorer, Tokenizer], folder: Path, task: str, capfd: pytest.CaptureFixture[str]
) -> None:
    before = random_states()
    seen: list[tuple[int, int]] = []
    scores = score_local(task, *ours, folder, progress=lambda done, total: seen.append((done, total)))
    assert {score.metric for score in scores} == set(DOCUMENTS[task].get("metrics", ("acc", "acc_norm")))
    for score in scores:
        assert (score.task, score.examples, score.shots) == (task, COUNT, 0)
        assert score.harness.startswith("lm_eval 0.4.")
        assert score.task_version
        if score.metric.startswith("acc"):
            assert score.value * COUNT == pytest.approx(round(score.value * COUNT))
            assert score.stderr == pytest.approx(math.sqrt(score.value * (1 - score.value) / (COUNT - 1)))
    assert seen[-1][0] == seen[-1][1]
    # Training continues with the same random numbers, and nothing was printed.
    assert random_states() == before
    assert capfd.readouterr() == ("", "")


def test_accuracy_is_that_of_the_likeliest_choice(ours: tuple[Scorer, Tokenizer], folder: Path) -> None:
    scorer, tokenizer = ours
    right, right_by_length, logs = 0, 0, []
    for line in (folder / "arc_easy.jsonl").read_text().splitlines():
        document = json.loads(line)
        choices = document["choices"]["text"]
        prompt = f"Question: {document['question']}\nAnswer:"
        found = scorer.score([Request.of_text(tokenizer, prompt, f" {choice}") for choice in choices])
        totals = [one.total for one in found]
        by_length = [total / len(choice) for total, choice in zip(totals, choices, strict=True)]
        answer = "ABCD".index(document["answerKey"])
        right += totals.index(max(totals)) == answer
        right_by_length += by_length.index(max(by_length)) == answer
        logs.append(([pytest.approx(total, rel=1e-5) for total in totals], answer))
    scorer.samples = []
    scores = {score.metric: score.value for score in score_local("arc_easy", scorer, tokenizer, folder)}
    samples, scorer.samples = scorer.samples, None
    assert [([total for total, _ in one["filtered_resps"]], one["target"]) for one in samples] == logs
    assert sum(one["acc"] for one in samples) == right
    assert [one["doc_id"] for one in samples] == list(range(COUNT))
    assert scores == {"acc": pytest.approx(right / COUNT), "acc_norm": pytest.approx(right_by_length / COUNT)}


def test_word_perplexity_scores_every_token_of_a_long_page_once(ours: tuple[Scorer, Tokenizer], tmp_path: Path) -> None:
    scorer, tokenizer = ours
    page = " ".join(CHOOSER.choice(WORDS) for _ in range(150))
    write(tmp_path / "wikitext.jsonl", [{"page": page}])
    ids = (tokenizer.eos_id, *tokenizer.encode(page))
    assert len(ids) > 2 * MAX_LENGTH
    total = 0.0
    for start in range(0, len(ids) - 1, MAX_LENGTH):
        # The last window is moved to the left, so that its tokens have as much context as fits.
        end = min(start + MAX_LENGTH, len(ids) - 1)
        first = max(0, end - MAX_LENGTH) if start else 0
        total += scorer.score([Request(ids[first : start + 1], ids[start + 1 : end + 1])])[0].total
    scores = {score.metric: score for score in score_local("wikitext", scorer, tokenizer, tmp_path)}
    assert scores["word_perplexity"].value == pytest.approx(math.exp(-total / 150))
    assert scores["bits_per_byte"].value == pytest.approx(-total / len(page) / math.log(2))
    assert scores["word_perplexity"].stderr is None


def test_mmlu_is_the_mean_over_all_questions_of_all_subjects(ours: tuple[Scorer, Tokenizer], tmp_path: Path) -> None:
    subjects = sorted(
        path.stem.removeprefix("mmlu_")
        for path in (Path(importlib.util.find_spec("lm_eval").origin).parent / "tasks/mmlu/default").glob("mmlu_*.yaml")  # type: ignore[union-attr,arg-type]
    )
    assert len(subjects) == 57
    question = {"question": "<3-6>", "choices": ["<1-2>"] * 4, "answer": {"any of": [0, 1, 2, 3]}}
    documents = [
        filled({"subject": subject, **question})
        for number, subject in enumerate(subjects)
        for _ in range(1 + number % 3)
    ]  # fmt: skip
    write(tmp_path / "mmlu.jsonl", documents)
    (score,) = score_local("mmlu", *ours, tmp_path)
    assert (score.task, score.metric, score.examples) == ("mmlu", "acc", len(documents))
    scorer, tokenizer = ours
    right = 0
    for document in documents:
        name = document["subject"].replace("_", " ")
        options = "".join(f"\n{letter}. {choice}" for letter, choice in zip("ABCD", document["choices"], strict=True))
        prompt = (
            f"The following are multiple choice questions (with answers) about {name}.\n\n"
            f"{document['question']}{options}\nAnswer:"
        )
        totals = [one.total for one in scorer.score([Request.of_text(tokenizer, prompt, f" {x}") for x in "ABCD"])]
        right += totals.index(max(totals)) == document["answer"]
    assert score.value == pytest.approx(right / len(documents))


def test_a_group_of_tasks_without_a_score_of_its_own_gives_the_scores_of_its_tasks(
    ours: tuple[Scorer, Tokenizer], folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(harness._FOLDERS, "ai2_arc", "arc")
    (tmp_path / "ai2_arc.jsonl").write_bytes((folder / "arc_easy.jsonl").read_bytes())
    scores = score_local("ai2_arc", *ours, tmp_path)
    alone = score_local("arc_easy", *ours, folder)
    assert {score.task for score in scores} == {"arc_easy", "arc_challenge"}
    assert [score for score in scores if score.task == "arc_easy"] == alone


def test_solved_examples_come_before_the_question(ours: tuple[Scorer, Tokenizer], folder: Path) -> None:
    scorer, tokenizer = ours
    longer = Scorer(scorer.network, CPU, max_length=4 * MAX_LENGTH)
    (none, *_) = score_local("arc_easy", longer, tokenizer, folder)
    asked: list[Request] = []

    class Spy(Scorer):
        def score(self, requests: Any, *rest: Any) -> Any:
            asked.extend(requests)
            return super().score(requests, *rest)

    spy = Spy(scorer.network, CPU, max_length=4 * MAX_LENGTH)
    (two, *_) = score_local("arc_easy", spy, tokenizer, folder, shots=2)
    assert (none.shots, two.shots) == (0, 2)
    assert all(tokenizer.decode(request.context).count("Question:") == 3 for request in asked)
    assert not any(tokenizer.eos_id in request.context + request.continuation for request in asked)


def test_a_limit_and_a_stop_end_a_task_early(ours: tuple[Scorer, Tokenizer], folder: Path) -> None:
    scores = score_local("piqa", *ours, folder, limit=7)
    assert {score.examples for score in scores} == {7}
    with pytest.raises(ScoringStopped):
        score_local("piqa", Scorer(ours[0].network, CPU, max_length=MAX_LENGTH, stop=lambda: True), ours[1], folder)


def test_a_task_that_generates_text_is_refused(ours: tuple[Scorer, Tokenizer]) -> None:
    from gpas_cli.extensions.harness.model import HarnessModel

    with pytest.raises(GpasError, match="generate"):
        HarnessModel(*ours).generate_until([])


def test_without_network_a_task_is_unavailable_at_once(
    ours: tuple[Scorer, Tokenizer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import datasets.config
    import huggingface_hub.constants

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(hub, "getproxies", dict)
    with pytest.raises(TaskUnavailable, match=r"cannot load the documents of piqa: .*baber/piqa.*HF_HOME"):
        official_scorer("piqa", *ours)
    assert not datasets.config.HF_HUB_OFFLINE
    assert not huggingface_hub.constants.HF_HUB_OFFLINE


# In a process of its own: the harness's own backend on exported folders. Independent of gpas_cli.
HF = """
import json, logging, sys
from pathlib import Path
import torch
torch.set_num_threads(1)
from datasets import Dataset
from lm_eval.api.instance import Instance
from lm_eval.evaluator import evaluate
from lm_eval.models.huggingface import HFLM
import lm_eval.tasks
folders, documents, texts, tasks, length = sys.argv[1:]
pairs = json.loads(Path(texts).read_text())
asked = [Instance("loglikelihood", {}, tuple(pair), i) for i, pair in enumerate(pairs)]
pages = [Instance("loglikelihood_rolling", {}, (context + continuation,), 0) for context, continuation in pairs]
definitions = Path(lm_eval.tasks.__file__).parent
needed = [str(definitions / name) for name in ("arc", "openbookqa", "siqa")]
manager = lm_eval.tasks.TaskManager(include_path=needed, include_defaults=False)
found = {}
for folder in folders.split(":"):
    lm = HFLM(pretrained=folder, device="cpu", dtype="float32", batch_size=4, add_bos_token=False,
              max_length=int(length), trust_remote_code=True)
    totals = lm.loglikelihood(asked, disable_tqdm=True)
    rolling = lm.loglikelihood_rolling(pages, disable_tqdm=True)
    scores = {}
    for task in tasks.split():
        rows = [json.loads(line) for line in (Path(documents) / (task + ".jsonl")).read_text().splitlines()]
        def dataset(**_rest):
            return {"test": Dataset.from_list(rows)}
        splits = {"training_split": None, "validation_split": None, "test_split": "test"}
        spec = {"task": task, "custom_dataset": dataset, **splits}
        result = evaluate(lm, manager.load([{"group": "x", "task": [spec]}]), log_samples=False)["results"][task]
        scores[task] = {key.split(",")[0]: value for key, value in result.items() if key.endswith(",none")}
    found[Path(folder).name] = {"totals": totals, "rolling": rolling, "scores": scores}
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def texts(room: Room) -> list[tuple[str, str]]:
    pairs = [(words(1, 30), f" {words(1, 8)}") for _ in range(12)]
    shared = words(8, 9)
    odd = [
        ("", "the start"), (f"{words(2, 3)} ", "a blank"), (words(2, 3) + "\n", "a line"), (words(90, 99), " too long"),
    ]  # fmt: skip
    return [*pairs, *((shared, f" {letter}") for letter in "ABCD"), *odd]


@pytest.fixture(scope="module")
def backend(room: Room, folder: Path, texts: list[tuple[str, str]]) -> dict[str, Any]:
    """Return what the harness's own backend finds with each exported network."""
    for name, form in (("plain", "llama"), ("bundled", "bundled")):
        assert room.export(room.cell(**CELLS[name]), name).form == form
    path = room.folder / "texts.json"
    path.write_text(json.dumps(texts))
    exported = ":".join(str(room.folder / "out" / name) for name in CELLS)
    return run_alone(room.folder, HF, exported, folder, path, " ".join(SHARED), MAX_LENGTH)


@pytest.mark.long
@needs_transformers
@pytest.mark.parametrize("name", CELLS)
def test_likelihoods_and_scores_agree_with_the_hf_backend_on_an_exported_network(
    room: Room, folder: Path, texts: list[tuple[str, str]], name: str, backend: dict[str, Any]
) -> None:
    from lm_eval.api.instance import Instance

    from gpas_cli.extensions.harness.model import HarnessModel

    theirs = backend[name]
    scorer, tokenizer = trained(room, room.cell(**CELLS[name]))
    model = HarnessModel(scorer, tokenizer)
    asked = [Instance("loglikelihood", {}, pair, i) for i, pair in enumerate(texts)]
    found = model.loglikelihood(asked)
    assert [total for total, _ in found] == pytest.approx([total for total, _ in theirs["totals"]], abs=1e-4)
    assert [greedy for _, greedy in found] == [greedy for _, greedy in theirs["totals"]]
    assert scorer.truncated > 0
    requests = [Request.of_text(tokenizer, *pair) for pair in texts]
    assert [one.total for one in scorer.score(requests)] == [total for total, _ in found]
    pages = [Instance("loglikelihood_rolling", {}, ("".join(pair),), 0) for pair in texts]
    # The backend adds up a text's likelihoods in float32.
    assert model.loglikelihood_rolling(pages) == pytest.approx(theirs["rolling"], abs=1e-4, rel=1e-6)

    scores: list[Score] = [one for task in SHARED for one in score_local(task, scorer, tokenizer, folder)]
    for score in scores:
        assert score.value == theirs["scores"][score.task][score.metric]
        assert score.stderr == theirs["scores"][score.task][f"{score.metric}_stderr"]
    assert len(scores) == 5
    assert len({score.value for score in scores}) > 1

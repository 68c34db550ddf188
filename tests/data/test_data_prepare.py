"""The whole path from `Data` to batches, in one process and in several; how much text a training uses.

Mixtures of corpora: the weights, the order of rows, what is tokenised and repeated, and the loss on each corpus.
"""

import math
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cases import cases
from small_corpus import sentences, write_jsonl

import gpas_cli.data
from gpas_cli.data.corpora import SurveyUnknown
from gpas_cli.data.loader import Batches, RowOrder, validation_batches
from gpas_cli.data.prepare import Corpus, cached, prepare
from gpas_cli.data.rows import rows_needed
from gpas_cli.data.shards import Totals
from gpas_cli.data.text_usage import TextUsage, estimate_usage, text_usage, unreadable_reason
from gpas_cli.errors import DataError, Problem
from gpas_cli.events import TextFacts, fields_of
from gpas_cli.spec.data import Data
from gpas_cli.spec.parse_cell import Catalogue, cell_from, parse_cell
from gpas_cli.spec.run import Cadence
from gpas_cli.train.training import Execution, RunPaths, train

PACKAGE = Path(gpas_cli.data.__file__).parent
FILES = {"source": "files", "path": "corpus/*.jsonl", "tokenizer": "bpe"}


def make(root: Path, cache: Path, said: list[str] | None = None, **changes: object) -> Corpus:
    data = Data(**{**FILES, "layout": "pack", "length": 16, **changes})  # type: ignore[arg-type]
    return prepare(data, 320, cache, root=root, rows=1, notify=(said if said is not None else []).append)


def folders(cache: Path) -> list[Path]:
    return [spec.parent for spec in cache.glob("tokens/*/spec.json")]


@pytest.mark.parametrize("layout", ["pack", "pad"])
def test_facts_describe_the_text(root: Path, tmp_path: Path, layout: str):
    corpus = make(root, tmp_path / "cache", layout=layout)
    facts = corpus.facts()
    assert facts.train_documents + facts.validation_documents == 120
    assert (facts.source, facts.tokenizer) == ("files", corpus.tokenizer.identity)
    assert facts.fingerprint != facts.validation_fingerprint
    assert set(fields_of(facts)) == {
        "source", "fingerprint", "validation_fingerprint", "tokenizer", "train_tokens", "validation_tokens",
        "train_documents", "validation_documents", "shared_documents",
    }  # fmt: skip
    assert corpus.train.width == (17 if layout == "pack" else 16)
    assert corpus.train.pad_id == (None if layout == "pack" else 0)


def test_bytes_per_token_of_whole_documents(root: Path, tmp_path: Path):
    corpus = make(root, tmp_path / "cache")
    from gpas_cli.data.files import Files

    texts = [d.text for d in Files("corpus/*.jsonl", "text", root).documents("validation")]
    tokens = sum(len(corpus.tokenizer.encode(text)) + 1 for text in texts)
    assert corpus.validation_bytes_per_token == sum(len(text.encode()) for text in texts) / tokens


def test_a_second_call_neither_builds_nor_reads(root: Path, tmp_path: Path):
    said: list[str] = []
    first = make(root, tmp_path / "cache", said)
    assert [line.split()[0] for line in said] == ["training", "tokenising", "tokenising", "tokenising", "tokenising"]
    said.clear()
    second = make(root, tmp_path / "cache", said)
    assert said == []
    assert second.facts() == first.facts()
    assert Batches(second.train, 4, 1).at(7).digest() == Batches(first.train, 4, 1).at(7).digest()


def test_layouts_of_one_corpus_share_tokenizer_and_survey(root: Path, tmp_path: Path):
    corpora = [make(root, tmp_path / "cache", layout=layout) for layout in ("pack", "pad")]
    assert corpora[0].tokenizer.identity == corpora[1].tokenizer.identity
    assert len(folders(tmp_path / "cache")) == 2
    assert len(list((tmp_path / "cache" / "tokenizers").glob("*.json"))) == 1
    make(root, tmp_path / "cache", length=8)
    assert len(folders(tmp_path / "cache")) == 2  # packed rows are cut when read


PROGRAM = """
import sys
from pathlib import Path
from gpas_cli.data.loader import Batches, validation_batches
from gpas_cli.data.prepare import prepare
from gpas_cli.spec.data import Data
data = Data(source="files", path="corpus/*.jsonl", tokenizer="bpe", layout="pack", length=16)
corpus = prepare(data, 320, Path(sys.argv[2]), root=Path(sys.argv[1]), rows=1)
batches = Batches(corpus.train, 4, 9)
print(corpus.tokenizer.identity, *(batches.at(step).digest() for step in (0, 3, 500)))
print(*(b.digest() for b in validation_batches(corpus.validation, 4, 100)))
assert "torch" not in sys.modules
"""


def test_another_process_with_another_cache_sees_the_same_batches(root: Path, tmp_path: Path):
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE.parents[1]), "PYTHONHASHSEED": "77",
                   "RAYON_NUM_THREADS": "1"}  # fmt: skip
    command = [sys.executable, "-c", PROGRAM, str(root), str(tmp_path / "other")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    corpus = make(root, tmp_path / "cache")
    batches = Batches(corpus.train, 4, 9)
    here = [corpus.tokenizer.identity, *(batches.at(step).digest() for step in (0, 3, 500))]
    here += [b.digest() for b in validation_batches(corpus.validation, 4, 100)]
    assert done.stdout.split() == here


def test_too_little_text_for_a_row_is_refused(root: Path, tmp_path: Path):
    message = r"the validation split of data\.source: files has \d+ documents with \d+ tokens, too few for one row"
    with pytest.raises(DataError, match=message):
        make(root, tmp_path / "cache", length=2000)


def test_presence_is_known_without_reading_text(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def there() -> bool:
        data = Data(**{**FILES, "layout": "pack", "length": 16})  # type: ignore[arg-type]
        return cached(data, 320, tmp_path / "cache", root=root, rows=10) is not None

    assert there() is False
    assert not (tmp_path / "cache").exists()
    make(root, tmp_path / "cache")
    monkeypatch.setattr("gpas_cli.data.files.Files.survey", None)
    assert there() is True
    (folders(tmp_path / "cache")[0] / "validation/00000.json").unlink()
    assert there() is False
    make_again = next((root / "corpus").glob("*.jsonl"))
    make_again.write_text(make_again.read_text() + '{"text": "more"}\n')
    assert there() is False


def test_no_network_is_asked_whether_c4_is_there(tmp_path: Path):
    assert cached(Data(), 32_000, tmp_path, root=tmp_path, rows=10) is None
    with pytest.raises(SurveyUnknown):
        cached(Data(source="hf", path="some/where"), 32_000, tmp_path, root=tmp_path, rows=10)


VOCAB = 300


@pytest.fixture
def short_texts(tmp_path: Path) -> Path:
    """Return a folder with 100 documents of 400 words each."""
    write_jsonl(tmp_path / "text/a.jsonl", [f"{number} " + "gate norm " * 200 for number in range(100)])
    return tmp_path


def both(totals: Totals) -> list[dict[str, Totals]]:
    return [{"train": totals, "validation": totals}]


def data(**values: object) -> Data:
    return Data(source="files", path="text/*.jsonl", tokenizer="bpe", **{"length": 64, "eval_tokens": 10, **values})


def exact(short_texts: Path, what: Data, rows: int) -> TextUsage:
    corpus = prepare(what, VOCAB, short_texts / "cache", root=short_texts, rows=rows)
    found = text_usage(what, rows, corpus.totals)
    assert found.epochs == rows / len(corpus.train)
    return found


def test_pad_reports_truncated_tokens(short_texts: Path):
    found = exact(short_texts, data(layout="pad"), rows=50)
    corpus = prepare(data(layout="pad"), VOCAB, short_texts / "cache", root=short_texts, rows=50)
    assert found.cut == 1 - corpus.train_totals.bytes / corpus.train_totals.text_bytes
    assert found.cut > 0.5
    assert [warning for warning in found.warnings() if "cuts off" in warning] == found.warnings()
    assert exact(short_texts, data(layout="pack"), rows=50).cut == 0


@pytest.mark.parametrize("layout", ["pack", "pad"])
def test_text_that_is_read_again_and_too_little_to_evaluate_on(short_texts: Path, layout: str):
    corpus = prepare(data(layout=layout), VOCAB, short_texts / "cache", root=short_texts, rows=1)
    found = exact(short_texts, data(layout=layout, eval_tokens=10**6), rows=3 * len(corpus.train))
    assert "the training text is read 3.0 times" in found.warnings()
    targets = corpus.validation.sizes(range(len(corpus.validation))) - 1
    assert found.targets == targets.sum()
    assert any(f"evaluations use {targets.sum():,} tokens" in warning for warning in found.warnings())
    usual = Data().eval_tokens  # nobody asked for so many
    assert not any(
        "eval" in warning for warning in exact(short_texts, data(layout=layout, eval_tokens=usual), 1).warnings()
    )


def test_text_use_is_estimated_before_tokenisation(short_texts: Path):
    estimated = estimate_usage(data(layout="pad"), VOCAB, short_texts / "cache", short_texts, 300)
    assert not (short_texts / "cache").exists()
    assert estimated is not None
    assert estimated.estimated
    known = exact(short_texts, data(layout="pad"), rows=300)
    assert estimated.epochs == pytest.approx(known.epochs, rel=0.15)
    assert estimated.cut is None
    assert known.targets / 3 < estimated.targets < 3 * known.targets
    assert estimate_usage(data(layout="pad"), VOCAB, short_texts / "cache", short_texts, 300) in (
        known,
        estimated,
    )  # which of the two depends on the age of the files


def test_the_cut_of_an_older_cache_is_unknown():
    old = Totals(10, 100, 400, True, None)
    assert (old.cut, (Totals() + old).cut, Totals(1, 2, 3, True, 4).cut) == (None, None, 0.25)
    assert text_usage(data(layout="pad"), 5, both(old)).warnings() == []


def test_the_papers_cut_of_c4_is_not_reported():
    c4 = Data()
    totals = {"train": Totals(10, 2560, 100, False, 1000), "validation": Totals(10, 10**8, 100, False, 1000)}
    assert text_usage(c4, 1000, [totals]).warnings() == []
    assert Totals(10, 2560).rows(c4) == 10


def test_unreadable_text_is_reported_without_reading_any(short_texts: Path):
    assert unreadable_reason(data(), short_texts, short_texts) == ""
    assert "no file matches 'txt/*.jsonl'" in unreadable_reason(
        Data(source="files", path="txt/*.jsonl"), short_texts, short_texts
    )
    assert "data.validation: no file matches" in unreadable_reason(data(validation="held/*"), short_texts, short_texts)
    assert "there is no file" in unreadable_reason(
        Data(source="files", path="text/*", tokenizer="mine.json"), short_texts, short_texts
    )
    assert unreadable_reason(Data(), short_texts, short_texts) == ""


MIXTURE_VOCAB = 320
SIZE = {"hidden": 16, "ffn": 32, "heads": 2, "layers": 2, "vocab": MIXTURE_VOCAB}
OPTIM = {"lr": 1e-3, "steps": 4, "warmup": 1, "batch": 8}


def corpus(path: str, **more: Any) -> Data:
    return Data(**{"source": "files", "path": path, "tokenizer": "bpe", "layout": "pack", "length": 16, **more})


NAMED = {
    "small": corpus("small.jsonl", eval_tokens=200),
    "large": corpus("large.jsonl", eval_tokens=200),
    "long": corpus("large.jsonl", eval_tokens=200, length=32),
}
USUAL = {"mixture": {"small": 0.1, "large": 0.9}, "repeat": True}


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    """Return a project folder with a small and a large corpus."""
    write_jsonl(tmp_path / "small.jsonl", sentences(60, seed=4))
    write_jsonl(tmp_path / "large.jsonl", sentences(600, seed=2))
    return tmp_path


def mixture(text: Mapping[str, Any]) -> Data:
    values = {"size": SIZE, "data": text, "optim": OPTIM}
    return cell_from(values, Catalogue(corpora=NAMED)).data


def made(texts: Path, rows: int = 3000, **changes: Any) -> Corpus:
    return prepare(mixture({**USUAL, **changes}), MIXTURE_VOCAB, texts / "cache", root=texts, rows=rows)


def test_each_corpus_has_its_share_of_every_thousand_rows_in_its_own_order(texts: Path) -> None:
    rows = made(texts).train
    small = len(rows.parts["small"])
    batches = Batches(rows, 8, 3)
    seen = np.concatenate([batches._order.at(step) for step in range(375)])
    for start in (0, 1000, 2000):
        assert (seen[start : start + 1000] < small).sum() == 100
    # Each corpus is read in the order in which a run on it alone reads it, and to its end before it begins again.
    mine = seen[seen < small]
    assert mine.tolist() == RowOrder(small, 1, 3).rows(np.arange(len(mine))).tolist()
    others = seen[seen >= small] - small
    assert others.tolist() == RowOrder(len(rows.parts["large"]), 1, 3).rows(np.arange(len(others))).tolist()
    # Rows are a function of seed and position: not of the batch, nor of the updates before.
    assert Batches(rows, 24, 3)._order.at(100).tolist() == seen[2400:2424].tolist()
    assert Batches(rows, 8, 4)._order.at(0).tolist() != seen[:8].tolist()


def test_rows_are_those_of_the_corpora(texts: Path) -> None:
    rows = made(texts).train
    small = rows.parts["small"]
    first = np.array([0, len(small), len(small) - 1])
    alone = [small.tokens(np.array([0])), rows.parts["large"].tokens(np.array([0])), small.tokens(first[2:])]
    assert rows.tokens(first).tolist() == np.concatenate(alone).tolist()
    for outside in (-1, len(rows)):
        with pytest.raises(IndexError):
            rows.read(np.array([0, outside]))


def test_weights_of_a_thousandth_are_exact() -> None:
    assert rows_needed((0.09, 0.57, 0.17, 0.17), 1000) == [90, 570, 170, 170]
    assert rows_needed((0.09, 0.57, 0.17, 0.17), 1100) == [180, 670, 270, 270]
    assert rows_needed((1 / 3, 1 / 3, 1 / 3), 1) == [1, 1, 1]
    assert rows_needed((1.0,), 7) == [7]


def test_another_weight_tokenises_nothing_and_gives_other_rows(texts: Path) -> None:
    first = made(texts)
    caches = sorted(path.name for path in (texts / "cache" / "tokens").iterdir())
    assert len(caches) == 2
    said: list[str] = []
    changed = mixture({**USUAL, "mixture": {"small": 0.5, "large": 0.5}})
    second = prepare(changed, MIXTURE_VOCAB, texts / "cache", root=texts, rows=3000, notify=said.append)
    assert said == []
    assert sorted(path.name for path in (texts / "cache" / "tokens").iterdir()) == caches
    assert Batches(second.train, 8, 3).at(0).digest() != Batches(first.train, 8, 3).at(0).digest()


def test_a_corpus_that_runs_out_is_repeated_only_if_told_to(texts: Path) -> None:
    rows = len(made(texts).validation), len(made(texts).train)
    assert min(rows) > 0
    message = (
        r"data.mixture: small has \d+ rows of 16 tokens, and the run reads up to 300, .* times as many; add `repeat"
    )
    with pytest.raises(DataError, match=message):
        made(texts, repeat=False)
    enough = {"small": 0.001, "large": 0.999}
    assert len(made(texts, rows=400, repeat=True, mixture=enough).train) == rows[1]


def test_how_often_a_mixture_is_read_is_known_before_and_after_it_is_tokenised(texts: Path) -> None:
    data = mixture({**USUAL, "repeat": False})
    before = estimate_usage(data, MIXTURE_VOCAB, texts / "cache", texts, 3000)
    found = made(texts)
    after = text_usage(data, 3000, found.totals)
    assert (before.most_read, after.most_read) == ("small", "small")
    assert before.estimated
    assert after.epochs == 300 / len(found.train.parts["small"])
    assert after.warnings()[0].startswith(f"the training text of small is read {after.epochs:,.1f} times; without `rep")


def test_the_validation_text_has_the_weights_of_the_training_text(texts: Path) -> None:
    rows = made(texts).validation
    parts = {name: sum(b.predicted for b in validation_batches(part, 4, 10**9)) for name, part in rows.parts.items()}
    read = sum(batch.predicted for batch in validation_batches(rows, 4, 200))
    assert min(parts.values()) > 32
    assert read == 32 + 192  # the shares of 200 are 20 and 180, in whole rows


def test_training_reports_the_loss_on_each_corpus_and_their_weighted_mean(texts: Path) -> None:
    cell = cell_from({"size": SIZE, "data": USUAL, "optim": OPTIM}, Catalogue(corpora=NAMED))
    events: list[object] = []
    paths = RunPaths(texts / "checkpoints", (), texts / "cache", texts)
    metrics = train(cell, paths, events.append, Execution(Cadence(), lambda: None)).metrics
    own = [metrics[f"corpus_loss/{name}"] for name in ("small", "large")]
    assert own[0] != own[1]
    assert metrics["loss"] == pytest.approx(0.1 * own[0] + 0.9 * own[1], rel=1e-12)
    assert metrics["perplexity"] == pytest.approx(math.exp(metrics["loss"]), rel=1e-12)
    (facts,) = [event for event in events if isinstance(event, TextFacts)]
    assert facts.source == "mixture"
    assert facts.train_documents + facts.validation_documents == 660


def test_a_recorded_mixture_is_read_again_as_the_same_cell() -> None:
    cell = cell_from({"size": SIZE, "data": USUAL, "optim": OPTIM}, Catalogue(corpora=NAMED))
    assert (cell.data.length, cell.data.tokenizer) == (16, "bpe")
    again = cell_from(cell.to_mapping())  # without the names
    assert again == cell
    assert again.key == cell.key
    assert cell_from({"size": SIZE, "data": {**USUAL, "mixture": {"small": 0.2, "large": 0.8}}, "optim": OPTIM},
                     Catalogue(corpora=NAMED)).key != cell.key  # fmt: skip
    changed = {"like": "both", "mixture": {"large": 1.0}}
    like = Catalogue(corpora={**NAMED, "both": cell.data})
    assert cell_from({"size": SIZE, "data": changed, "optim": OPTIM}, like).data.names == ("large",)


@cases("data/cases.yaml")
def test_a_faulty_mixture_is_refused_with_its_place_and_the_nearest_choice(
    text: dict[str, Any], place: str, message: str
) -> None:
    named = {**NAMED, "both": mixture(USUAL)}
    problems: list[Problem] = []
    assert parse_cell({"size": SIZE, "data": text, "optim": OPTIM}, problems, Catalogue(corpora=named)) is None
    assert [".".join(map(str, problem.path)) for problem in problems] == [place]
    assert problems[0].message.startswith(message)

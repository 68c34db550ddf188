"""Mixtures of corpora: the weights, the order of rows, what is tokenised and repeated, and the loss on each corpus."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_corpus import sentences, write_jsonl

from gpas_cli.data.loader import Batches, RowOrder, rows_needed, validation_batches
from gpas_cli.data.prepare import Corpus, prepare
from gpas_cli.data.rows import MixedRows
from gpas_cli.data.text_usage import estimate_usage, text_usage
from gpas_cli.errors import DataError, Problem
from gpas_cli.events import Outcome, TextFacts
from gpas_cli.spec.data import Data
from gpas_cli.spec.parse_cell import Catalogue, cell_from, parse_cell
from gpas_cli.spec.run import Cadence
from gpas_cli.train.run import RunPaths, train

VOCAB = 320
SIZE = {"hidden": 16, "ffn": 32, "heads": 2, "layers": 2, "vocab": VOCAB}
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
    write_jsonl(tmp_path / "small.jsonl", sentences(60, seed=1))
    write_jsonl(tmp_path / "large.jsonl", sentences(600, seed=2))
    return tmp_path


def mixture(text: Mapping[str, Any]) -> Data:
    values = {"size": SIZE, "data": text, "optim": OPTIM}
    return cell_from(values, Catalogue(corpora=NAMED)).data


def made(texts: Path, rows: int = 3000, **changes: Any) -> Corpus:
    return prepare(mixture({**USUAL, **changes}), VOCAB, texts / "cache", root=texts, rows=rows)


def test_each_corpus_has_its_share_of_every_thousand_rows_in_its_own_order(texts: Path) -> None:
    rows = made(texts).train
    assert isinstance(rows, MixedRows)
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
    assert isinstance(rows, MixedRows)
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
    second = prepare(changed, VOCAB, texts / "cache", root=texts, rows=3000, notify=said.append)
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
    before = estimate_usage(data, VOCAB, texts / "cache", texts, 3000)
    found = made(texts)
    after = text_usage(data, 3000, found.totals)
    assert before is not None
    assert (before.most_read, after.most_read) == ("small", "small")
    assert before.estimated
    assert isinstance(found.train, MixedRows)
    assert after.epochs == 300 / len(found.train.parts["small"])
    assert after.warnings()[0].startswith(f"the training text of small is read {after.epochs:,.1f} times; without `rep")


def test_the_validation_text_has_the_weights_of_the_training_text(texts: Path) -> None:
    rows = made(texts).validation
    assert isinstance(rows, MixedRows)
    parts = {name: sum(b.predicted for b in validation_batches(part, 4, 10**9)) for name, part in rows.parts.items()}
    read = sum(batch.predicted for batch in validation_batches(rows, 4, 200))
    assert min(parts.values()) > 32
    assert read == 32 + 192  # the shares of 200 are 20 and 180, in whole rows


def test_training_reports_the_loss_on_each_corpus_and_their_weighted_mean(texts: Path) -> None:
    cell = cell_from({"size": SIZE, "data": USUAL, "optim": OPTIM}, Catalogue(corpora=NAMED))
    events: list[object] = []
    paths = RunPaths(texts / "checkpoints", (), texts / "cache", texts)
    outcome = train(cell, paths, events.append, cadence=Cadence(), stop=lambda: None)
    assert isinstance(outcome, Outcome)
    metrics = outcome.metrics
    own = [metrics[f"corpus_loss/{name}"] for name in ("small", "large")]
    assert own[0] != own[1]
    assert metrics["loss"] == pytest.approx(0.1 * own[0] + 0.9 * own[1], rel=1e-12)
    assert metrics["perplexity"] == pytest.approx(math.exp(metrics["loss"]), rel=1e-12)
    (facts,) = [event for event in events if isinstance(event, TextFacts)]
    assert facts.source == "mixture"
    assert facts.train_documents + facts.validation_documents == 660


def test_a_recorded_mixture_is_read_again_as_the_same_cell() -> None:
    cell = cell_from({"size": SIZE, "data": USUAL, "optim": OPTIM}, Catalogue(corpora=NAMED))
    assert cell.data.length == 16
    assert cell.data.tokenizer == "bpe"
    again = cell_from(cell.to_mapping())  # without the names
    assert again == cell
    assert again.key == cell.key
    assert cell_from({"size": SIZE, "data": {**USUAL, "mixture": {"small": 0.2, "large": 0.8}}, "optim": OPTIM},
                     Catalogue(corpora=NAMED)).key != cell.key  # fmt: skip
    changed = {"like": "both", "mixture": {"large": 1.0}}
    like = Catalogue(corpora={**NAMED, "both": cell.data})
    assert cell_from({"size": SIZE, "data": changed, "optim": OPTIM}, like).data.names == ("large",)


FAULTS: dict[str, tuple[dict[str, Any], str, str]] = {
    "sum": ({"mixture": {"small": 0.1, "large": 0.8}}, "data.mixture", "the weights sum to 0.9, not to 1"),
    "unknown": ({"mixture": {"smal": 0.1, "large": 0.9}}, "data.mixture.smal", "unknown data 'smal'; did you"),
    "nested": ({"mixture": {"both": 1.0}}, "data.mixture.both", "'both' is a mixture itself"),
    "no weight": ({"mixture": {"small": 0, "large": 1.0}}, "data.mixture.small.weight", "0.0 is too small; at least"),
    "word": ({"mixture": {"small": "much", "large": 1.0}}, "data.mixture.small.weight", "'much' is not a number"),
    "no mapping": ({"mixture": "small"}, "data.mixture", "'small' is not a mapping of corpora to their weights"),
    "differ": ({"mixture": {"small": 0.1, "long": 0.9}}, "data.mixture", "length is 16 in small and 32 in long; give"),
    "pad": ({**USUAL, "layout": "pad"}, "data.layout", "a mixture needs layout: pack"),
    "path": ({**USUAL, "path": "x.txt"}, "data.path", "has no effect with mixture"),
    "source": ({**USUAL, "source": "files"}, "data.source", "has no effect with mixture"),
    "empty": ({"source": "mixture"}, "data.mixture", "is required with source: mixture"),
    "repeat": ({"like": "small", "repeat": True}, "data.repeat", "has no effect without mixture"),
}  # fmt: skip


@pytest.mark.parametrize("case", FAULTS)
def test_a_faulty_mixture_is_refused_with_its_place_and_the_nearest_choice(case: str) -> None:
    text, place, message = FAULTS[case]
    named = {**NAMED, "both": mixture(USUAL)}
    problems: list[Problem] = []
    assert parse_cell({"size": SIZE, "data": text, "optim": OPTIM}, problems, Catalogue(corpora=named)) is None
    assert [".".join(map(str, problem.path)) for problem in problems] == [place]
    assert problems[0].message.startswith(message)

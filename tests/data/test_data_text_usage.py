"""How a run uses its text: repeated, cut off, too little for evaluation; and missing text."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_corpus import write_jsonl

from gpas_cli.data.prepare import prepare
from gpas_cli.data.shards import Totals
from gpas_cli.data.text_usage import TextUsage, estimate_usage, rows_in, text_usage, unreadable_reason
from gpas_cli.spec.data import Data

VOCAB = 300


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a folder with 100 documents of 400 words each."""
    write_jsonl(tmp_path / "text/a.jsonl", [f"{number} " + "gate norm " * 200 for number in range(100)])
    return tmp_path


def data(**values: object) -> Data:
    return Data(source="files", path="text/*.jsonl", tokenizer="bpe", **{"length": 64, "eval_tokens": 10, **values})


def exact(root: Path, what: Data, rows: int) -> TextUsage:
    corpus = prepare(what, VOCAB, root / "cache", root=root)
    found = text_usage(what, rows, corpus.train_totals, corpus.validation_totals)
    assert found.epochs == rows / len(corpus.train)
    return found


def test_pad_reports_truncated_tokens(root: Path):
    found = exact(root, data(layout="pad"), rows=50)
    corpus = prepare(data(layout="pad"), VOCAB, root / "cache", root=root)
    assert found.cut == 1 - corpus.train_totals.bytes / corpus.train_totals.text_bytes
    assert found.cut > 0.5
    assert [warning for warning in found.warnings() if "cuts off" in warning] == found.warnings()
    assert exact(root, data(layout="pack"), rows=50).cut == 0


@pytest.mark.parametrize("layout", ["pack", "pad"])
def test_text_that_is_read_again_and_too_little_to_evaluate_on(root: Path, layout: str):
    corpus = prepare(data(layout=layout), VOCAB, root / "cache", root=root)
    found = exact(root, data(layout=layout, eval_tokens=10**6), rows=3 * len(corpus.train))
    assert "the training text is read 3.0 times" in found.warnings()
    targets = corpus.validation.sizes(range(len(corpus.validation))) - 1
    assert found.targets == targets.sum()
    assert any(f"evaluations use {targets.sum():,} tokens" in warning for warning in found.warnings())
    usual = Data().eval_tokens  # nobody asked for so many
    assert not any("eval" in warning for warning in exact(root, data(layout=layout, eval_tokens=usual), 1).warnings())


def test_text_use_is_estimated_before_tokenisation(root: Path):
    estimated = estimate_usage(data(layout="pad"), VOCAB, root / "cache", root, 300)
    assert not (root / "cache").exists()
    assert estimated is not None
    assert estimated.estimated
    known = exact(root, data(layout="pad"), rows=300)
    assert estimated.epochs == pytest.approx(known.epochs, rel=0.15)
    assert estimated.cut == pytest.approx(known.cut, abs=0.3)
    assert known.targets / 2 < estimated.targets < 2 * known.targets
    assert estimate_usage(data(layout="pad"), VOCAB, root / "cache", root, 300) in (
        known,
        estimated,
    )  # which of the two depends on the age of the files


def test_the_cut_of_an_older_cache_is_unknown():
    old = Totals(10, 100, 400, True, None)
    assert (old.cut, (Totals() + old).cut, Totals(1, 2, 3, True, 4).cut) == (None, None, 0.25)
    assert text_usage(data(layout="pad"), 5, old, old).warnings() == []


def test_the_papers_cut_of_c4_is_not_reported():
    c4 = Data()
    assert (
        text_usage(c4, 1000, Totals(10, 2560, 100, False, 1000), Totals(10, 10**8, 100, False, 1000)).warnings() == []
    )
    assert rows_in(c4, Totals(10, 2560)) == 10


def test_the_documents_of_a_row_are_reported_where_attention_keeps_them_separate():
    totals = Totals(100, 2_000, 8_000, False, 8_000)
    separate = text_usage(data(layout="pack", documents="separate", length=40, eval_tokens=10), 5, totals, totals)
    (warning,) = separate.warnings()
    assert separate.pieces == 3.0
    assert "a row has 3.0 documents or parts of one" in warning
    assert text_usage(data(layout="pack", length=40, eval_tokens=10), 5, totals, totals).warnings() == []
    few = Totals(10, 2_000, 8_000, False, 8_000)
    assert text_usage(separate.data, 5, few, few).warnings() == []


def test_unreadable_text_is_reported_without_reading_any(root: Path):
    assert unreadable_reason(data(), root, root) == ""
    assert "no file matches 'txt/*.jsonl'" in unreadable_reason(Data(source="files", path="txt/*.jsonl"), root, root)
    assert "data.validation: no file matches" in unreadable_reason(data(validation="held/*"), root, root)
    assert "there is no file" in unreadable_reason(
        Data(source="files", path="text/*", tokenizer="mine.json"), root, root
    )
    assert unreadable_reason(Data(), root, root) == ""

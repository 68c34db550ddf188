"""The whole path from `Data` to batches, in one process and in several; how much text a training uses."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from small_corpus import write_jsonl

import gpas_cli.data
from gpas_cli.data.loader import Batches, validation_batches
from gpas_cli.data.prepare import Corpus, prepare, present
from gpas_cli.data.shards import Totals
from gpas_cli.data.text_usage import TextUsage, estimate_usage, text_usage, unreadable_reason
from gpas_cli.errors import DataError
from gpas_cli.events import fields_of
from gpas_cli.spec.data import Data

PACKAGE = Path(gpas_cli.data.__file__).parent
FILES = {"source": "files", "path": "corpus/*.jsonl", "tokenizer": "bpe"}


def make(root: Path, cache: Path, said: list[str] | None = None, **changes: object) -> Corpus:
    data = Data(**{**FILES, "layout": "pack", "length": 16, **changes})  # type: ignore[arg-type]
    return prepare(data, 320, cache, root=root, notify=(said if said is not None else []).append)


def folders(cache: Path) -> list[Path]:
    return [spec.parent for spec in cache.glob("tokens/*/spec.json")]


@pytest.mark.parametrize("layout", ["pack", "pad"])
def test_facts_describe_the_text(root: Path, tmp_path: Path, layout: str):
    corpus = make(root, tmp_path / "cache", layout=layout)
    facts = corpus.facts()
    assert facts.train_documents + facts.validation_documents == 120
    assert facts.source == "files"
    assert facts.tokenizer == corpus.tokenizer.identity
    assert facts.fingerprint != facts.validation_fingerprint
    assert set(fields_of(facts)) == {
        "source", "fingerprint", "validation_fingerprint", "tokenizer", "train_tokens", "validation_tokens",
        "train_documents", "validation_documents",
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


def test_train_and_validation_rows_come_from_different_documents(root: Path, tmp_path: Path):
    corpus = make(root, tmp_path / "cache", layout="pad", length=400)
    train = {r.tobytes() for r in corpus.train.tokens(np.arange(len(corpus.train)))}
    validation = {r.tobytes() for r in corpus.validation.tokens(np.arange(len(corpus.validation)))}
    assert len(validation) > 1
    assert not train & validation


PROGRAM = """
import sys
from pathlib import Path
from gpas_cli.data.loader import Batches, validation_batches
from gpas_cli.data.prepare import prepare
from gpas_cli.spec.data import Data
data = Data(source="files", path="corpus/*.jsonl", tokenizer="bpe", layout="pack", length=16)
corpus = prepare(data, 320, Path(sys.argv[2]), root=Path(sys.argv[1]))
batches = Batches(corpus.train, 4, 9)
print(corpus.tokenizer.identity, *(batches.at(step).digest() for step in (0, 3, 500)))
print(*(b.digest() for b in validation_batches(corpus.validation, 4, 100)))
assert "torch" not in sys.modules
"""


def test_another_process_with_another_cache_sees_the_same_batches(root: Path, tmp_path: Path):
    outputs = set()
    for seed, threads in (("0", "1"), ("77", "2")):
        environment = {**os.environ, "PYTHONPATH": str(PACKAGE.parents[1]), "PYTHONHASHSEED": seed,
                       "RAYON_NUM_THREADS": threads}  # fmt: skip
        command = [sys.executable, "-c", PROGRAM, str(root), str(tmp_path / f"cache{seed}")]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        outputs.add(done.stdout)
    assert len(outputs) == 1
    corpus = make(root, tmp_path / "cache")
    batches = Batches(corpus.train, 4, 9)
    here = [corpus.tokenizer.identity, *(batches.at(step).digest() for step in (0, 3, 500))]
    here += [b.digest() for b in validation_batches(corpus.validation, 4, 100)]
    assert outputs.pop().split() == here


def test_too_little_text_for_a_row_is_refused(root: Path, tmp_path: Path):
    message = r"the validation split of data\.source: files has \d+ documents with \d+ tokens, too few for one row"
    with pytest.raises(DataError, match=message):
        make(root, tmp_path / "cache", length=2000)


def test_changed_text_is_another_corpus(root: Path, tmp_path: Path):
    first = make(root, tmp_path / "cache")
    path = root / "corpus" / "b.jsonl"
    path.write_text(path.read_text().replace("gate", "gait"))
    second = make(root, tmp_path / "cache")
    assert first.facts().fingerprint != second.facts().fingerprint
    assert len(folders(tmp_path / "cache")) == 2


def test_presence_is_known_without_reading_text(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def there() -> bool | None:
        data = Data(**{**FILES, "layout": "pack", "length": 16})  # type: ignore[arg-type]
        return present(data, 320, tmp_path / "cache", root=root, rows=10)

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
    assert present(Data(), 32_000, tmp_path, root=tmp_path, rows=10) is False
    assert present(Data(source="hf", path="some/where"), 32_000, tmp_path, root=tmp_path, rows=10) is None


def test_data_never_imports_torch():
    for path in PACKAGE.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not [n for n in names if n.split(".")[0] == "torch"], path


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
    corpus = prepare(what, VOCAB, short_texts / "cache", root=short_texts)
    found = text_usage(what, rows, corpus.totals)
    assert found.epochs == rows / len(corpus.train)
    return found


def test_pad_reports_truncated_tokens(short_texts: Path):
    found = exact(short_texts, data(layout="pad"), rows=50)
    corpus = prepare(data(layout="pad"), VOCAB, short_texts / "cache", root=short_texts)
    assert found.cut == 1 - corpus.train_totals.bytes / corpus.train_totals.text_bytes
    assert found.cut > 0.5
    assert [warning for warning in found.warnings() if "cuts off" in warning] == found.warnings()
    assert exact(short_texts, data(layout="pack"), rows=50).cut == 0


@pytest.mark.parametrize("layout", ["pack", "pad"])
def test_text_that_is_read_again_and_too_little_to_evaluate_on(short_texts: Path, layout: str):
    corpus = prepare(data(layout=layout), VOCAB, short_texts / "cache", root=short_texts)
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
    assert estimated.cut == pytest.approx(known.cut, abs=0.3)
    assert known.targets / 2 < estimated.targets < 2 * known.targets
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


def test_the_documents_of_a_row_are_reported_where_attention_keeps_them_separate():
    totals = Totals(100, 2_000, 8_000, False, 8_000)
    separate = text_usage(data(layout="pack", documents="separate", length=40, eval_tokens=10), 5, both(totals))
    (warning,) = separate.warnings()
    assert separate.pieces == 3.0
    assert "a row has 3.0 documents or parts of one" in warning
    assert text_usage(data(layout="pack", length=40, eval_tokens=10), 5, both(totals)).warnings() == []
    few = Totals(10, 2_000, 8_000, False, 8_000)
    assert text_usage(separate.data, 5, both(few)).warnings() == []


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

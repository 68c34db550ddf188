"""Readers of corpora, records and tokenizers on bytes from outside: tests/real, and what the libraries write."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from gpas_cli.data.files import Files
from gpas_cli.data.records import files, read_records
from gpas_cli.data.text_documents import joined, read_text
from gpas_cli.data.tokenizer import Tokenizer, make_tokenizer
from gpas_cli.errors import DataError

REAL = Path(__file__).parents[1] / "real"
WIKITEXT = (REAL / "wikitext-2/test.txt").read_bytes()
VOCAB = 400


@pytest.mark.parametrize("path", sorted((REAL / "llm_adapters").glob("*.json")), ids=lambda path: path.stem)
def test_records_of_llm_adapters_are_finetuning_records_in_every_form(path: Path, tmp_path: Path) -> None:
    raw = json.loads(path.read_bytes())
    found = list(read_records(path))
    assert [tuple(one) for one in found] == [(one["instruction"], one["input"], one["output"]) for one in raw]
    assert all(one.output.startswith("the correct answer is ") for one in found)
    lines = tmp_path / "lines.jsonl"
    lines.write_text("".join(json.dumps(one) + "\n" for one in raw))
    assert list(read_records(lines)) == found
    (tmp_path / path.stem).mkdir()
    (tmp_path / path.stem / "train.json").write_bytes(path.read_bytes())
    assert files("finetune.data", ".", "train", tmp_path) == [tmp_path / path.stem / "train.json"]


def test_a_list_in_a_file_of_lines_and_lines_in_a_file_of_a_list_are_refused(tmp_path: Path) -> None:
    content = (REAL / "llm_adapters/boolq.json").read_bytes()
    (tmp_path / "a.jsonl").write_bytes(content)
    with pytest.raises(DataError, match=r"a\.jsonl:1: not a line of JSON"):
        list(read_records(tmp_path / "a.jsonl"))
    (tmp_path / "a.json").write_text(json.dumps(json.loads(content)[0]) + "\n")
    with pytest.raises(DataError, match=r"a\.json:1: not a list of records"):
        list(read_records(tmp_path / "a.json"))


def written(folder: Path, form: str) -> Path:
    """Return a file with the lines of WikiText that have text, in a form that the corpora read."""
    import pyarrow
    from pyarrow import parquet

    lines = [line for line in WIKITEXT.decode().split("\n") if line.strip()]
    path = folder / f"text.{form}"
    json_lines = "".join(json.dumps({"text": line}) + "\n" for line in lines).encode()
    if form == "parquet":
        parquet.write_table(pyarrow.table({"text": lines}), path)
    else:
        path.write_bytes(gzip.compress(json_lines) if form.endswith("gz") else json_lines)
    return path


@pytest.mark.parametrize("form", ["jsonl", "jsonl.gz", "parquet"])
def test_wikitext_is_the_same_in_every_form_of_a_corpus(tmp_path: Path, form: str) -> None:
    path = written(tmp_path, form)
    found = [document.text for document in Files(path.name, "text", tmp_path).everything()]
    assert found == [line for line in WIKITEXT.decode().split("\n") if line.strip()]
    with pytest.raises(DataError, match="content"):
        list(Files(path.name, "content", tmp_path).everything())
    renamed = path.rename(tmp_path / "text.jsonl.xz")
    with pytest.raises(DataError, match=r"does not end in \.txt, \.jsonl, \.jsonl\.gz, \.jsonl\.zst, \.parquet"):
        list(Files(renamed.name, "text", tmp_path).everything())


def test_wikitext_as_a_text_file(tmp_path: Path) -> None:
    (tmp_path / "test.txt").write_bytes(WIKITEXT)
    (document,) = read_text("test.txt", tmp_path).documents
    assert document.text == WIKITEXT.decode()
    assert (document.words, document.size) == (len(WIKITEXT.split()), len(WIKITEXT))
    plain = joined(WIKITEXT.decode())
    assert "He had a guest-starring role on the television series The Bill in 2000. This was" in plain
    assert (
        'landed a role as "Craig" in the episode "Teddy\'s Story" of the television series The Long Firm; he' in plain
    )
    assert not any(mark in plain for mark in (" @-@ ", " ,", " .", " ;", " 's"))


def trainer(kind: str) -> Any:
    """Return a tokenizer of the `tokenizers` library, trained by its own implementation on WikiText."""
    from tokenizers import implementations

    lines = WIKITEXT.decode().split("\n")
    if kind == "gpt2":
        made = implementations.ByteLevelBPETokenizer()
        made.train_from_iterator(lines, VOCAB, special_tokens=["<|endoftext|>"], show_progress=False)
    elif kind == "t5":
        made = implementations.SentencePieceUnigramTokenizer()
        special = ["<pad>", "</s>", "<unk>"]
        made.train_from_iterator(lines, VOCAB, special_tokens=special, unk_token="<unk>", show_progress=False)
    elif kind == "llama":
        made = implementations.SentencePieceBPETokenizer()
        made.train_from_iterator(lines, VOCAB, special_tokens=["<unk>", "<s>", "</s>"], show_progress=False)
    else:
        made = implementations.BertWordPieceTokenizer()
        made.train_from_iterator(lines, VOCAB, show_progress=False)
    return made


def read(path: Path) -> Tokenizer:
    return make_tokenizer(str(path), VOCAB, None, None, path.parent, root=path.parent, notify=print)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "end"), [("gpt2", "<|endoftext|>"), ("t5", "</s>"), ("llama", "</s>"), ("bert", "[SEP]")]
)
def test_tokenizers_as_their_library_writes_them(tmp_path: Path, kind: str, end: str) -> None:
    made = trainer(kind)
    made.enable_truncation(5)
    made.enable_padding(length=5)
    made.save(str(tmp_path / "tokenizer.json"))
    found = read(tmp_path / "tokenizer.json")
    assert found.eos_id == made.token_to_id(end)
    text = "He had a guest role in the television series"
    made.no_truncation()
    made.no_padding()
    (document,) = found.encode_documents([text])
    assert document.ids == [*made.encode(text, add_special_tokens=False).ids, found.eos_id]
    assert found.decode(document.ids[:-1]).strip().lower() == text.lower()


def test_other_files_of_a_tokenizer_are_refused(tmp_path: Path) -> None:
    trainer("gpt2").save_model(str(tmp_path))
    for name in ("vocab.json", "merges.txt"):
        with pytest.raises(DataError, match=f"{name}: not a tokenizer.json of the `tokenizers` library"):
            read(tmp_path / name)

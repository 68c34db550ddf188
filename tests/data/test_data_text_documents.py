"""Texts that networks are scored on: local files, and data sets in the form in which the hub has them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from gpas_cli.data import text_documents
from gpas_cli.data.text_documents import joined, read_text
from gpas_cli.errors import DataError
from gpas_cli.spec.downstream import KNOWN_TEXTS

PAGE = (
    " = Ada Lovelace = \n \n Ada was an English writer , chiefly of notes ( 1 @,@ 500 words ) . \n"
    ' She wrote the " first program " , a well @-@ known one . \n = = Notes = = \n It \'s note G . \n'
)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with both data sets of the hub, two documents each, loaded as those of the hub are."""
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    datasets.disable_progress_bars()
    rows = {
        "wikitext": ("page", [PAGE, "", " = Two = \n"]),
        "lambada_openai": ("text", ["she said yes", "he ran away"]),
    }
    for name, (column, texts) in rows.items():
        known = KNOWN_TEXTS[name]
        folder = tmp_path / name
        folder.mkdir()
        (folder / "test.jsonl").write_text("".join(json.dumps({column: text}) + "\n" for text in texts))
        (folder / "train.jsonl").write_text(json.dumps({column: "not this"}) + "\n")
        files = [{"split": split, "path": f"{split}.jsonl"} for split in ("train", "test")]
        configs = json.dumps([{"config_name": known.configuration, "data_files": files}])
        (folder / "README.md").write_text(f"---\nconfigs: {configs}\n---\n")
        monkeypatch.setitem(KNOWN_TEXTS, name, replace(known, repo=str(folder)))
    return tmp_path


def test_wikitext_is_ordinary_text_with_the_words_of_the_tokenised_one(hub: Path) -> None:
    found = read_text("wikitext", hub)
    first, second = found.documents
    assert first.text == joined(PAGE)
    assert (first.context, first.words, first.size) == ("", len(PAGE.split()), len(PAGE))
    assert second.words == 3
    assert len(found.digest) == 12
    assert read_text("wikitext", hub, limit=1).documents == (first,)
    assert read_text("wikitext", hub, limit=1).digest != found.digest


def test_joined() -> None:
    assert joined(PAGE) == (
        " = Ada Lovelace =\n\nAda was an English writer, chiefly of notes (1,500 words).\n"
        'She wrote the "first program", a well-known one.\n== Notes ==\nIt\'s note G.\n'
    )


def test_of_lambada_only_the_last_word_is_predicted(hub: Path) -> None:
    first, second = read_text("lambada_openai", hub).documents
    assert (first.context, first.text, first.words) == ("she said", " yes", 1)
    assert (second.context, second.text) == ("he ran", " away")


def test_local_files_are_read_whole_and_in_order(tmp_path: Path) -> None:
    (tmp_path / "b.jsonl").write_text("".join(json.dumps({"text": f"line {i}"}) + "\n" for i in range(12)))
    (tmp_path / "a.txt").write_text("first of all\n" * 3)
    found = read_text("own=*.*", tmp_path)
    assert [one.text.strip() for one in found.documents][-12:] == [f"line {i}" for i in range(12)]
    assert found.documents[0].text.startswith("first of all")
    assert {one.words for one in found.documents[-12:]} == {2}
    (tmp_path / "a.txt").write_text("other\n")
    assert read_text("own=*.*", tmp_path).digest != found.digest


def test_what_cannot_be_read_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match=r"texts\.texts.*absent"):
        read_text("absent/*.txt", tmp_path)
    (tmp_path / "empty.txt").write_text("  \n")
    with pytest.raises(DataError, match="has no document with text"):
        read_text("./empty.txt", tmp_path)

    def unreachable(known: object) -> object:
        raise ConnectionError("Couldn't reach the Hub\nmore")

    monkeypatch.setattr(text_documents, "_load", unreachable)
    with pytest.raises(
        DataError, match=r"EleutherAI/lambada_openai .*ConnectionError: Couldn't reach the Hub; connect"
    ):
        read_text("lambada_openai", tmp_path)

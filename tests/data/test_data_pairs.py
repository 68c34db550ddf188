"""Pairs of texts: files and their faults, the invented languages, and how rows become sources and targets."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest

from gpas_cli.data import pairs
from gpas_cli.data.loader import IGNORED, Draw, _TokenOrder
from gpas_cli.data.objective import reader_of
from gpas_cli.data.pairs import FilePairs, HubPairs, Languages, invented
from gpas_cli.data.prepare import prepare
from gpas_cli.errors import DataError
from gpas_cli.spec.cell import Cell
from gpas_cli.spec.parse_cell import cell_from


def write(folder: Path, name: str, sources: list[str], targets: list[str]) -> None:
    (folder / f"{name}.en").write_text("".join(f"{line}\n" for line in sources))
    (folder / f"{name}.de").write_text("".join(f"{line}\n" for line in targets))


def test_pairs_of_two_files(tmp_path: Path) -> None:
    write(tmp_path, "train", ["one  thing ", "", "three", "four\t4"], ["ein\u00a0Ding", "zwei", "", "vier 4"])
    write(tmp_path, "dev", ["x"], ["y"])
    source = FilePairs("train.{en,de}", tmp_path, "dev.{en,de}")
    assert [one[:2] for one in source.documents("train")] == [
        ("train.en:1", "one thing\nein Ding"),
        ("train.en:4", "four 4\nvier 4"),
    ]
    assert [one.text for one in source.documents("train", after="train.en:1")] == ["four 4\nvier 4"]
    assert [one.text for one in source.documents("validation")] == ["x\ny"]


@pytest.mark.parametrize(("sources", "targets"), [(3, 2), (2, 3), (1, 4)])
def test_pairs_of_different_length_are_refused(tmp_path: Path, sources: int, targets: int) -> None:
    write(tmp_path, "train", ["a"] * sources, ["b"] * targets)
    with pytest.raises(DataError, match=rf"train\.en has {sources} lines and .*train\.de has {targets}; line n of one"):
        list(FilePairs("train.{en,de}", tmp_path).documents("train"))


def test_a_file_that_is_missing_or_no_text_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "train", ["a"], ["b"])
    with pytest.raises(DataError, match=r"data\.path: there is no file .*train\.fr; did you mean 'train\."):
        FilePairs("train.{en,fr}", tmp_path).check()
    (tmp_path / "train.fr").symlink_to("gone")
    with pytest.raises(DataError, match=r"data\.path: .*train\.fr is a link to gone, which cannot be read"):
        FilePairs("train.{en,fr}", tmp_path).check()
    (tmp_path / "train.de").write_bytes(b"")
    with pytest.raises(DataError, match=r"data\.path: .*train\.de is empty \(0 bytes\)"):
        FilePairs("train.{en,de}", tmp_path).stamp()
    (tmp_path / "train.de").write_bytes(b"\xff\n")
    with pytest.raises(DataError, match=r"train\.de:1: not UTF-8 text"):
        list(FilePairs("train.{en,de}", tmp_path).documents("train"))


def test_pairs_of_a_data_set(tmp_path: Path) -> None:
    import datasets

    rows = [{"translation": {"de": f"z{n}", "en": f"a {n}"}} for n in range(3)]
    datasets.Dataset.from_list(rows).to_parquet(tmp_path / "train.parquet")
    source = HubPairs("*.parquet/{en,de}", tmp_path)
    source._splits["validation"] = source._splits["train"]
    assert [one.text for one in source.documents("train", after="train/0")] == ["a 1\nz1", "a 2\nz2"]
    with pytest.raises(DataError, match="has no language 'fr'"):
        list(HubPairs("*.parquet/{en,fr}", tmp_path).documents("train"))


def test_no_sentence_of_the_invented_languages_is_in_two_splits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pairs, "_sentence", cache(pairs._sentence))  # each is needed six times
    found = {split: {source for source, _ in invented(split)} for split in ("train", "validation", "test")}
    assert not found["train"] & found["test"]
    assert not found["validation"] & (found["test"] | found["train"])
    assert min(map(len, found.values())) > 1000
    # The grammar is data of published numbers: a change needs another name.
    assert Languages().survey().fingerprint == "afa5d83faf08b60b"


def cell(tmp_path: Path, **data: object) -> Cell:
    return cell_from(
        {
            "size": {"hidden": 16, "ffn": 16, "heads": 2, "layers": 2, "vocab": 300},
            "family": "encoder-decoder",
            "objective": "translation",
            "data": {"source": "pairs", "path": "train.{en,de}", "validation": "dev.{en,de}", "length": 8, **data},
            "optim": {"lr": 1e-3, "warmup": 1, "steps": 4, "batch": 4},
        }
    )


def test_updates_by_tokens_have_rows_of_equal_length_and_every_row_once_an_epoch() -> None:
    sizes = np.random.default_rng(0).integers(3, 25, 500)
    own, other = _TokenOrder(sizes, 60, 1), _TokenOrder(sizes, 60, 2)
    for epoch in range(2):
        updates = [own.at(epoch * own.groups + step) for step in range(own.groups)]
        assert sorted(np.concatenate(updates).tolist()) == list(range(500))
        for rows in updates:
            assert len(rows) * sizes[rows].max() <= 60
            assert np.ptp(sizes[rows]) <= 1
    assert own.groups < 500 * sizes.mean() / 60 * 1.2, "updates are nearly full"
    assert any(own.at(step).tolist() != own.at(step + own.groups).tolist() for step in range(5))
    assert any(own.at(step).tolist() != other.at(step).tolist() for step in range(5))
    assert own.at(7).tolist() == _TokenOrder(sizes, 60, 1).at(7).tolist()
    alone = _TokenOrder(np.array([5, 70, 5]), 60, 1)
    assert sorted(len(alone.at(step)) for step in range(alone.groups)) == [1, 2], "a long row has an update of its own"


def test_a_row_is_a_source_a_separator_and_a_target(tmp_path: Path) -> None:
    write(tmp_path, "train", ["ab cd", "e", "far too long for a row of only eight tokens"], ["xy", "zw v", "u"])
    write(tmp_path, "dev", ["ab"], ["xy"])
    declared = cell(tmp_path)
    corpus = prepare(declared.data, 300, tmp_path / "cache", root=tmp_path, rows=3)
    reader = reader_of(declared, corpus.tokenizer)
    rows = np.arange(3)
    batch = reader.batch(*corpus.train.read(rows), rows, Draw.training(1, 0))
    decode, end = corpus.tokenizer.decode, corpus.tokenizer.eos_id
    texts = [decode(row[:size].tolist()) for row, size in zip(batch.inputs, batch.prefix, strict=True)]
    assert texts[:2] == ["ab cd\n", "e\n"]
    for number, target in enumerate(["xy", "zw v"]):
        own = batch.targets[number][batch.targets[number] != IGNORED].tolist()
        assert (decode(own[:-1]), own[-1]) == (target, end)
        first = int(batch.prefix[number]) - 1
        # What the decoder reads is the target, one place later, after the separator.
        assert batch.inputs[number, first + 1 : first + len(own)].tolist() == own[:-1]
    assert (batch.targets[2] == IGNORED).all(), "a pair that is cut does not count"

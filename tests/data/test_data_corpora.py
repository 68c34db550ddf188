"""Sources: order, ids, the split, fingerprints, and the messages when text is unavailable."""

import gzip
import json
import os
import random
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cases import cases
from small_corpus import sentences, write_jsonl

from gpas_cli.data import corpora, stdlib
from gpas_cli.data.corpora import SPLITS, Survey, cached_survey, side
from gpas_cli.data.files import Files, pieces, read_lines
from gpas_cli.data.prepare import open_source
from gpas_cli.data.shards import TokenCache, read_shard, sum_of
from gpas_cli.data.stdlib import Stdlib
from gpas_cli.errors import DataError
from gpas_cli.spec.data import _CORPUS_SOURCES, Data


def both(source) -> tuple[list, list]:
    return list(source.documents("train")), list(source.documents("validation"))


@pytest.fixture(scope="module")
def library() -> Stdlib:
    return Stdlib()


def test_split_takes_about_eight_percent_by_id_alone():
    sides = [side(f"document {n}") for n in range(20_000)]
    assert 0.075 < sides.count("validation") / len(sides) < 0.085
    assert [side("lib/abc.py"), side("lib/json/decoder.py")] == ["train", "train"]
    assert [side("lib/code.py"), side("lib/antigravity.py")] == ["validation", "validation"]


@pytest.mark.parametrize("word", _CORPUS_SOURCES)
def test_every_source_of_the_spec_opens_without_reading(word: str, tmp_path: Path):
    data = Data(source=word, path="x/*.txt" if word in ("files", "hf") else "")
    assert open_source(data, tmp_path, tmp_path).name == word
    assert not list(tmp_path.iterdir())


def test_stdlib_splits_are_disjoint_sorted_and_complete(library: Stdlib):
    train, validation = both(library)
    ids = [{d.id for d in part} for part in (train, validation)]
    assert not ids[0] & ids[1]
    assert not {d.text for d in train} & {d.text for d in validation}
    assert [d.id for d in train] == sorted(ids[0])
    assert len(train) + len(validation) >= stdlib._MIN_DOCUMENTS
    assert 0.02 < len(validation) / len(train) < 0.2


def test_stdlib_skips_modules_that_distributions_change(library: Stdlib):
    ids = {d.id for part in both(library) for d in part}
    assert {"lib/json/decoder.py", "lib/asyncio/events.py", "topic/for"} <= ids
    folders = {part for identity in ids for part in identity.split("/")[1:-1]}
    assert not folders & {"test", "idlelib", "tkinter", "site-packages", "encodings", "pydoc_data", "__pycache__"}
    assert not ids & {"lib/token.py", "lib/html/entities.py", "lib/turtle.py", "lib/sitecustomize.py"}


def make_library(folder: Path, number: int, size: int) -> Stdlib:
    for n in range(number):
        (folder / f"m{n}.py").write_text(f"# module {n}\n" + f"value_{n} = {n}\n" * (size // 12))
    return Stdlib(folder, topics={})


def test_stdlib_normalises_and_drops_short_and_doubled_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(stdlib, "_MIN_DOCUMENTS", 1)
    monkeypatch.setattr(stdlib, "_MIN_BYTES", 1)
    body = "x = 1  # a line to fill\n" * 30
    (tmp_path / "a.py").write_bytes(b"\n\n\tif:\r\n" + body.encode() + b"\n\n")
    (tmp_path / "b.py").write_text("    if:\n\n" + body)  # differs only in whitespace
    (tmp_path / "c.py").write_text("short\n")
    (tmp_path / "d.py").write_text("long\n" * 100_000)
    documents = [d for part in both(Stdlib(tmp_path, topics={"topic": "words " * 100})) for d in part]
    assert sorted(d.id for d in documents) == ["lib/a.py", "topic/topic"]
    assert next(d.text for d in documents if d.id == "lib/a.py") == "    if:\n" + body


@pytest.mark.parametrize(("number", "size"), [(199, 30_000), (250, 5_000)])
def test_stdlib_without_its_sources_is_refused(tmp_path: Path, number: int, size: int):
    with pytest.raises(DataError, match=r"needs the source files.*data\.source: files with data\.path"):
        make_library(tmp_path, number, size).survey()


def test_fingerprint_is_the_same_in_another_process(library: Stdlib):
    code = "from gpas_cli.data.stdlib import Stdlib; s = Stdlib().survey(); print(s.fingerprint)"
    environment = {**os.environ, "PYTHONHASHSEED": "12345", "PYTHONPATH": str(Path(corpora.__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == library.survey().fingerprint


def test_fingerprints_distinguish_validation_text(root: Path, source: Files):
    before = source.survey()
    validation = next(source.documents("validation"))
    train = next(source.documents("train"))
    edit(root, train.id, "other words")
    middle = source.survey()
    edit(root, validation.id, "other words")
    after = source.survey()
    assert len({before.fingerprint, middle.fingerprint, after.fingerprint}) == 3
    assert before.validation_fingerprint == middle.validation_fingerprint != after.validation_fingerprint


def edit(root: Path, identity: str, text: str) -> None:
    name, line = identity.split(":")
    path = root / "corpus" / name
    lines = path.read_text().splitlines()
    lines[int(line) - 1] = json.dumps({"text": text})
    path.write_text("\n".join(lines) + "\n")


def test_jsonl_gz_and_txt_are_read_in_order_with_their_ids(tmp_path: Path):
    folder = tmp_path / "texts" / "deep"
    folder.mkdir(parents=True)
    (folder / "b.txt").write_text("\ufeffwhole file\nof two lines\n")
    (folder / "empty.txt").write_text(" \n")
    lines = '{"body": "one", "text": "no"}\n\n{"body": " "}\n{"body": "two"}'
    (folder / "a.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    source = Files("texts/**/*", "body", tmp_path)
    documents = sorted(d[:2] for part in both(source) for d in part)
    assert documents == [
        ("deep/a.jsonl.gz:1", "one"),
        ("deep/a.jsonl.gz:4", "two"),
        ("deep/b.txt", "whole file\nof two lines\n"),
    ]


def write_parquet(path: Path, column: str, values: list[object], groups: int = 7) -> None:
    import pyarrow
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({column: values, "n": range(len(values))}), path, row_group_size=groups)


def test_parquet_is_read_row_by_row(tmp_path: Path):
    texts: list[object] = [f"text {n}" for n in range(40)]
    texts[3] = ""
    texts[20] = " "
    write_parquet(tmp_path / "a.parquet", "body", texts)
    (tmp_path / "b.txt").write_text("a file beside it")
    source = Files("*", "body", tmp_path)
    documents = [d[:2] for part in both(source) for d in part]
    assert sorted(documents) == sorted(
        [(f"a.parquet:{n + 1}", text) for n, text in enumerate(texts) if n not in (3, 20)]
        + [("b.txt", "a file beside it")]
    )
    train = list(source.documents("train"))
    assert list(source.documents("train", after=train[9].id)) == train[10:]
    assert source.survey() == Files("*", "body", tmp_path).survey()


@cases("data/cases.yaml")
def test_files_without_text_are_refused(
    tmp_path: Path, files: dict[str, Any], words: tuple[str, ...], message: str
) -> None:
    """`files`: their texts, a list for the column of a parquet file; `words`: the arguments of `Files`."""
    for name, content in files.items():
        if name.endswith(".parquet"):
            write_parquet(tmp_path / name, "body", list(content))
        else:
            (tmp_path / name).write_text(content)
    path, field, *validation = words
    with pytest.raises(DataError, match=message):
        Files(path, field, tmp_path, *validation).survey()


def test_a_split_without_text_is_refused_before_a_job_reads_the_text(tmp_path: Path):
    (tmp_path / "a.txt").write_text("a short text")
    with pytest.raises(DataError, match="has 1 document, and none is in the validation split"):
        Files("?.txt", "text", tmp_path).check()


def link_to_nothing(path: Path) -> None:
    path.symlink_to("/nonexistent/a.jsonl")


def socket_at(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


UNREADABLE = {
    "a link to nothing": ("a.jsonl", link_to_nothing,
        r"a\.jsonl is a link to /nonexistent/a\.jsonl, which cannot be read"),
    "a link to itself": ("a.jsonl", lambda path: path.symlink_to(path.name),
        r"a\.jsonl is a link .* Too many levels of symb"),
    "a folder": ("old", Path.mkdir, r"'t/\*' matches the folder .*/t/old, whose files are not read"),
    "a folder named as a file": ("a.jsonl", Path.mkdir, r"matches the folder .*/t/a\.jsonl, whose files are not read"),
    "a pipe": ("a.jsonl", os.mkfifo, r"a\.jsonl is not a file that can be read, but"),
    "a socket": ("a.jsonl", socket_at, r"a\.jsonl is not a file that can be read, but"),
    **{
        f"an empty {name}": (name, Path.touch, rf"/{name} is empty \(0 bytes\)")
        for name in ("a.jsonl", "a.jsonl.gz", "a.jsonl.zst", "a.parquet")
    },
}  # fmt: skip


@pytest.mark.parametrize("name", UNREADABLE)
@pytest.mark.parametrize("setting", ["data.path", "data.validation"])
def test_what_a_glob_matches_and_cannot_be_read_is_named(tmp_path: Path, monkeypatch, name: str, setting: str):
    monkeypatch.chdir(tmp_path)  # the path of a socket is short
    write_jsonl(tmp_path / "t/b.jsonl", sentences(30))
    write_jsonl(tmp_path / "c.jsonl", sentences(30))
    file, make, message = UNREADABLE[name]
    make(Path("t", file))
    source = Files(*(("t/*", "text", tmp_path) if setting == "data.path" else ("c.jsonl", "text", tmp_path, "t/*")))
    for look in (source.check, source.survey, source.stamp, source.paths):
        with pytest.raises(DataError, match=rf"^{setting}: .*{message}"):
            look()


def test_a_glob_over_folders_reads_what_is_in_them(tmp_path: Path):
    """A folder on the way is no mistake; one with the name of a file, none of whose files match, is."""
    for path in ("t/b.jsonl", "t/deep/c.jsonl", "t/parts.jsonl/p.jsonl"):
        write_jsonl(tmp_path / path, sentences(3))
    (tmp_path / "t/none").mkdir()
    (tmp_path / "t/empty.txt").touch()  # a document without text, like a blank line
    for pattern in ("t/**", "t/**/*"):
        assert len(Files(pattern, "text", tmp_path).paths()) == 4
    source = Files("t/**/*.jsonl", "text", tmp_path)
    assert [path.name for path in source.paths()] == ["b.jsonl", "c.jsonl", "p.jsonl"]
    (tmp_path / "t/parts.jsonl/p.jsonl").rename(tmp_path / "t/parts.jsonl/p")
    with pytest.raises(DataError, match=r"matches the folder .*/t/parts\.jsonl, whose files are not read"):
        source.check()


def test_ids_do_not_depend_on_the_location_of_the_corpus(root: Path, tmp_path: Path):
    elsewhere = tmp_path / "elsewhere"
    (root / "corpus").rename(elsewhere)
    moved = Files(f"{elsewhere}/*.jsonl", "text", root)
    assert next(moved.documents("train")).id.split(":")[0] == "a.jsonl"
    exact = Files(str(elsewhere / "b.jsonl"), "text", root)
    assert next(exact.documents("train")).id.split(":")[0] == "b.jsonl"


def test_wildcards_in_the_project_folder_are_literal(tmp_path: Path):
    root = tmp_path / "run[1]"
    root.mkdir()
    (root / "a.txt").write_text("text")
    assert list(Files("*.txt", "text", root).files()["train"]) == ["a.txt"]


def test_after_continues_behind_a_document(source: Files):
    train = list(source.documents("train"))
    assert list(source.documents("train", after=train[30].id)) == train[31:]
    assert list(source.documents("train", after=train[-1].id)) == []
    with pytest.raises(DataError, match="no longer in the corpus"):
        list(source.documents("train", after="gone.jsonl:1"))


@cases("data/cases.yaml")
def test_bad_files_are_named(tmp_path: Path, name: str, content: str, message: str):
    (tmp_path / name).write_bytes(content.encode("latin-1"))
    with pytest.raises(DataError, match=message):
        Files("bad*", "text", tmp_path).survey()


def test_a_compressed_file_that_is_cut_is_named(tmp_path: Path):
    (tmp_path / "bad.jsonl.gz").write_bytes(gzip.compress(b'{"text": "a"}\n' * 1000)[:-12])
    with pytest.raises(DataError, match=r"bad\.jsonl\.gz: cannot be read"):
        Files("bad*", "text", tmp_path).survey()


def test_validation_files_are_not_training_text(tmp_path: Path):
    write_jsonl(tmp_path / "train/a.jsonl", sentences(50))
    write_jsonl(tmp_path / "held/b.jsonl", sentences(20, seed=1))
    source = Files("train/*.jsonl", "text", tmp_path, "held/*.jsonl")
    assert [d.text for d in source.documents("train")] == sentences(50)
    assert [d.text for d in source.documents("validation")] == sentences(20, seed=1)
    before = source.survey()
    write_jsonl(tmp_path / "held/b.jsonl", sentences(21, seed=1))
    after = source.survey()
    assert before.fingerprint != after.fingerprint
    assert before.validation_fingerprint != after.validation_fingerprint
    train = list(source.documents("train"))
    assert list(source.documents("train", after=train[7].id)) == train[8:]


def test_a_stamp_depends_on_the_files_held_out(tmp_path: Path, monkeypatch):
    for name in ("a", "b"):
        (tmp_path / f"{name}.txt").write_text(f"text {name}")
    stamps = [
        Files("a.txt", "text", tmp_path, "b.txt").stamp(),
        Files("b.txt", "text", tmp_path, "a.txt").stamp(),
        Files("*.txt", "text", tmp_path).stamp(),
    ]
    assert len({json.dumps(stamp) for stamp in stamps}) == 3


def book(characters: int) -> str:
    """Return a text of at least so many characters: a word and what follows it have five or more."""
    draw = random.Random(3)
    pairs = characters // 5
    words = draw.choices(["chapter", "gate", "épsilon", "norm", "loss"], k=pairs)
    ends = draw.choices([" ", " ", "\n", "\n\n", "\r\n\r\n"], k=pairs)
    return "".join(word + end for word, end in zip(words, ends, strict=True))


def test_one_large_text_is_divided_at_blank_lines(tmp_path: Path):
    text = book(200_000)
    (tmp_path / "book.txt").write_text(text, newline="")
    source = Files("book.txt", "text", tmp_path)
    train, validation = both(source)
    assert (len(train) > 50, len(validation) > 2) == (True, True)
    assert source.survey() == Survey("3b5b076c284f4290", "a10f130b0421aac8", len(validation), 0, by_text=True)
    source.by_text = False  # as ever: it is in the names of shards
    assert source.survey() == Survey("7a5ccaa67f6944e0", "e3068cd03b7d6d37", 12, 0)
    numbered = sorted([*train, *validation], key=lambda d: int(d.id.removeprefix("book.txt:")))
    assert "".join(d.text for d in numbered) == text
    assert all(d.text.rstrip(" \t").endswith("\n") for d in numbered[:-1])
    (tmp_path / "more.txt").write_text("beside it")
    assert {d.id for part in both(Files("*.txt", "text", tmp_path)) for d in part} == {"book.txt", "more.txt"}
    (tmp_path / "book.txt").write_text(book(1_100_000), newline="")  # large enough even beside others
    assert len([d for part in both(Files("*.txt", "text", tmp_path)) for d in part]) > 60


@pytest.mark.parametrize("between", ["\n\n", "\n", " ", ""])
@pytest.mark.parametrize("chunk", [1, 7, 1000])
def test_pieces_do_not_depend_on_how_a_text_is_read(between: str, chunk: int):
    text = between.join(["word"] * 2_000)
    found = list(pieces(iter([text[i : i + chunk] for i in range(0, len(text), chunk)]), 100))
    assert "".join(found) == text
    assert all(100 <= len(piece) <= 200 for piece in found[:-1])
    assert all(piece.endswith(between) for piece in found[:-1])
    assert found == list(pieces(iter([text]), 100))


def test_equal_documents_are_on_one_side(tmp_path: Path):
    write_jsonl(tmp_path / "a.jsonl", sentences(100) * 3)
    write_parquet(tmp_path / "b.parquet", "text", [*sentences(100)])
    source = Files("?.*", "text", tmp_path)
    train, validation = ({d.text for d in part} for part in both(source))
    assert (len(train) + len(validation), train & validation) == (100, set())
    assert source.survey().overlap.startswith("0 of ")
    source.by_text = False  # the rule of before: most validation documents are training text, too
    survey = source.survey()
    assert (survey.validation_documents, survey.shared) == (28, 28)
    separate = Files("a.jsonl", "text", tmp_path, "b.parquet").survey()
    assert separate.overlap == "100 of 100 validation documents also occur in the training text"
    write_jsonl(tmp_path / "a.jsonl", sentences(1) * 300)
    with pytest.raises(DataError, match="the corpus has 300 documents, and none is in the validation split"):
        Files("a.jsonl", "text", tmp_path).survey()


def test_a_text_that_was_tokenised_when_ids_decided_keeps_its_split(
    root: Path, source: Files, tokenizer, tmp_path: Path
):
    """Its survey and its tokens have the names that they had, also after its files were copied."""
    before, cache = Files("corpus/*.jsonl", "text", root), tmp_path / "cache"
    before.by_text = False
    survey = before.survey()
    TokenCache(before, survey, tokenizer, None, cache).ensure("train", lambda totals: False, print)
    for path in source.paths():
        path.write_bytes(path.read_bytes())
    found = cached_survey(source, cache)
    assert (found, source.by_text) == (survey, False)
    tokens = TokenCache(source, found, tokenizer, None, cache)
    assert tokens.built("train", lambda totals: False)
    assert "split" not in tokens.spec
    write_jsonl(root / "corpus" / "a.jsonl", sentences(90))
    assert cached_survey(Files("corpus/*.jsonl", "text", root), cache).by_text
    assert cached_survey(Files("corpus/*.jsonl", "text", root), tmp_path / "other").by_text
    (known,) = (tmp_path / "other").glob("sources/*.json")
    before.by_text = False
    now = before.survey()
    facts = {"fingerprint": now.fingerprint, "validation_fingerprint": now.validation_fingerprint}
    known.write_text(json.dumps(facts))  # as a version before wrote it
    source = Files("corpus/*.jsonl", "text", root)
    assert (source.known(tmp_path / "other"), source.by_text) == (Survey(**facts), False)
    assert cached_survey(Files("corpus/*.jsonl", "text", root), tmp_path / "other") == now


BAD_LINES = (b'{"text": null}', b'{"text": ', b'{"txet": "a"}', b"[1]", b'{"text": 7}', b'{"text": "\xff"}')


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "txt"])
def test_malformed_records_are_left_out_and_counted(tmp_path: Path, tokenizer, kind: str):
    texts = sentences(60)
    write_jsonl(tmp_path / "a.jsonl", texts)
    if kind == "jsonl":
        lines = (tmp_path / "a.jsonl").read_bytes().splitlines()
        (tmp_path / "a.jsonl").write_bytes(b"\n".join([lines[0], *BAD_LINES, *lines[1:]]))
        expected = {"null": 1, "not JSON": 1, "no field": 2, "not text": 1, "not UTF-8": 1}
    elif kind == "txt":
        (tmp_path / "b.txt").write_bytes(b"\xff")
        expected = {"not UTF-8": 1}
    else:
        import pyarrow

        column = pyarrow.Array.from_buffers(pyarrow.string(), 4, pyarrow.array([b"a", None, b"\xff", None]).buffers())
        write_parquet(tmp_path / "b.parquet", "text", column)
        texts, expected = [*texts, "a"], {"null": 2, "not UTF-8": 1}
    source = Files("?.*", "text", tmp_path)
    with pytest.raises(DataError, match=r"a\.jsonl:2: |b\.parquet, row 2: |b\.txt: "):
        source.survey()
    source.skip = True
    tokens = TokenCache(source, cached_survey(source, tmp_path / "cache"), tokenizer, None, tmp_path / "cache", 10)
    shards = [shard for split in SPLITS for shard in tokens.ensure(split, lambda totals: False, print)]
    totals = sum_of(shards)
    assert (totals.documents, totals.left_out) == (len(texts), expected)
    assert sum_of([read_shard(shard.stem) for shard in shards]).left_out == expected


def test_a_survey_is_read_from_the_cache_until_a_file_changes(root: Path, source: Files, tmp_path: Path, monkeypatch):
    cache = tmp_path / "cache"
    first = cached_survey(source, cache)
    monkeypatch.setattr(Files, "survey", lambda self: pytest.fail("read again"))
    assert cached_survey(source, cache) == first
    monkeypatch.undo()
    path = root / "corpus" / "a.jsonl"
    facts = path.stat()
    path.write_text(path.read_text().replace("gate", "gait"))
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))  # same size, same modification time
    assert path.stat().st_size == facts.st_size
    assert cached_survey(source, cache) != first


def test_a_text_is_surveyed_once_and_any_change_is_seen(source: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.undo()  # wait as long as for a user
    for path in source.files()["train"].values():
        path.write_bytes(path.read_bytes())
    survey = cached_survey(source, tmp_path / "cache")
    assert source.known(tmp_path / "cache") == survey
    path = next(iter(source.files()["train"].values()))
    path.write_bytes(path.read_bytes())  # at once, with the same size
    assert source.known(tmp_path / "cache") is None


@pytest.mark.parametrize(("changed", "waited"), [(0.01, 0.05), (0.1, 0), (-60, 5 * 0.05)])
def test_a_stamp_waits_until_a_change_would_change_it(tmp_path: Path, monkeypatch, changed: float, waited: float):
    """`changed`: seconds ago, by the clock of the file system."""
    monkeypatch.undo()  # wait as long as for a user
    (tmp_path / "a.txt").write_text("a")
    clock = [(tmp_path / "a.txt").stat().st_ctime + changed]
    start = clock[0]
    monkeypatch.setattr(corpora.time, "time", lambda: clock[0])
    monkeypatch.setattr(corpora.time, "sleep", lambda seconds: clock.append(clock.pop() + seconds))
    corpora.file_stamp([tmp_path / "a.txt"])
    assert clock[0] - start == pytest.approx(waited, abs=1e-4)


def test_a_line_without_an_end_does_not_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "bomb.jsonl.gz"
    path.write_bytes(gzip.compress(b"short\n" + b"0" * 1000))
    monkeypatch.setattr("gpas_cli.data.files._MOST_LINE_BYTES", 100)
    lines = read_lines(path)
    assert next(lines) == b"short\n"
    with pytest.raises(DataError, match=r"bomb\.jsonl\.gz: a line is longer than 100 bytes"):
        next(lines)

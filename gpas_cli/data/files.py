"""The user's own text, files that match a glob. A document is a .txt file, a line of a .jsonl or a row of a .parquet.

A .txt file of more than 1 MB, or the only file of a corpus, is divided into documents at blank lines.
"""

from __future__ import annotations

import glob
import gzip
import io
import json
import re
import stat
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from gpas_cli.data.corpora import Document, Source, Survey, file_stamp, skip_to, survey_of
from gpas_cli.errors import DataError, nearest
from gpas_cli.files import parse_json

_SUFFIXES = (".txt", ".jsonl", ".jsonl.gz", ".jsonl.zst", ".parquet")
_MOST_LINE_BYTES = 1 << 28  # a compressed file of kilobytes may hold a line of many gigabytes
_BATCH_ROWS = 1024  # of a Parquet file, read at once
_EXAMPLE = "it is a glob: * matches any name, ** any folders"

# A .txt file is divided if it has more bytes than this, or if it is the only file of its corpus, than the second.
_DIVIDED_BYTES = 2**20
_DIVIDED_BYTES_ALONE = 2**15
# A small file is cut into about this many pieces, about ten of them validation text; a large file into longer pieces.
_PIECES = 128
_SHORTEST_CHARACTERS = 512
_LONGEST_CHARACTERS = 16_384
_READ_CHARACTERS = 2**20
_BLANK_LINE = re.compile(r"\n[ \t\r]*\n\s*")
_LINE_END = re.compile(r"\n")
_SPACE = re.compile(r"\s")


class Files(Source):
    """Documents in ascending order of file name, then of line, row or piece, counted from 1.

    Ids (`a/b.txt`, `a/b.jsonl:7`) start where the glob's wildcards do, so that a corpus keeps its split when its folder
    is moved. The files that the glob `validation` matches, if given, are the validation text, and all others are
    training text; otherwise a hash splits the documents.
    """

    name = "files"

    def __init__(self, pattern: str, text_field: str, root: Path, validation: str = ""):
        self.pattern = pattern
        self.text_field = text_field
        self.root = root
        self.validation = validation
        self.separate = bool(validation)
        self.by_text = not validation

    @property
    def title(self) -> str:
        return self.pattern

    def documents(self, split: str, after: str = "") -> Iterator[Document]:
        if self.validation:
            return skip_to(self._read(self.files()[split]), after)
        return skip_to((d for d in self._read(self.files()["train"]) if self.side(d) == split), after)

    def everything(self) -> Iterator[Document]:
        """Yield the documents of `pattern` in order, whatever their split: a .txt is one, since nothing is held out.

        Raises DataError as `records` does.
        """
        for name, path in self.files()["train"].items():
            yield from documents_of(name, path, self.text_field)

    def survey(self) -> Survey:
        if self.separate:
            return super().survey()
        return survey_of(self, ((self.side(d), d) for d in self._read(self.files()["train"])))

    def stamp(self) -> Any:
        files = self.files()
        stamp = file_stamp(path for named in files.values() for path in named.values())
        facts: dict[str, Any] = {"field": self.text_field, "pattern": self.pattern, "files": stamp}
        facts |= {"malformed": "skip"} if self.skip else {}
        if self.validation:
            facts["validation"] = [self.validation, sorted(map(str, files["validation"].values()))]
        if any(_is_divided(named, name) for named in files.values() for name in named):
            facts["divided"] = [
                _DIVIDED_BYTES,
                _DIVIDED_BYTES_ALONE,
                _PIECES,
                _SHORTEST_CHARACTERS,
                _LONGEST_CHARACTERS,
            ]
        return facts

    def files(self) -> dict[str, dict[str, Path]]:
        """Return split -> name -> file, in order; only `train` if a hash splits the documents.

        Raises DataError if a glob matches nothing or what cannot be read, or if both globs match one file.
        """
        found = {"train": self._named(self.pattern, "data.path")}
        if self.validation:
            found["validation"] = self._named(self.validation, "data.validation")
            if both := set(found["train"].values()) & set(found["validation"].values()):
                raise DataError(
                    f"{min(both)} is matched by data.path and by data.validation, so it would be both training and "
                    "validation text; narrow one of them, or move the file"
                )
        return found

    def check(self) -> None:
        """Raise DataError as `files` does, or if the text is one document, of which a split has none."""
        files = self.files()["train"]
        if not self.validation and [name.endswith(".txt") and not _is_divided(files, name) for name in files] == [True]:
            self.survey()

    def paths(self) -> list[Path]:
        return [path for named in self.files().values() for path in named.values()]

    def _read(self, files: dict[str, Path]) -> Iterator[Document]:
        for name, path in files.items():
            if _is_divided(files, name):
                numbered = enumerate(_pieces_of(path), start=1)
                yield from (Document(f"{name}:{n}", text) for n, text in numbered if text.strip())
            else:
                yield from documents_of(name, path, self.text_field, skip=self.skip)

    def _named(self, words: str, setting: str) -> dict[str, Path]:
        """Return the files that a glob matches, sorted by name. Raises DataError if there are none, or if it matches
        what cannot be read."""
        pattern = Path(words).expanduser()
        found = [self.root / p for p in glob.glob(str(pattern), root_dir=self.root, recursive=True)]  # noqa: PTH207
        base = _rooted_base(self.root, pattern)
        folders = {path for path in found if path.is_dir()}
        files = {path.relative_to(base).as_posix(): path for path in found if path not in folders}
        if "**" in pattern.parts:  # it matches folders on the way to what is in them
            passed = {folder for path in files.values() for folder in path.parents}
            folders = {path for path in folders - passed if path.name.endswith(_SUFFIXES)}
        if folders:
            raise DataError(
                f"{setting}: '{words}' matches the folder {min(folders)}, whose files are not read; move it "
                "away, narrow the glob, or write **/* for the files of all folders"
            )
        if not files:
            hint = _nearest(self.root, pattern) or _EXAMPLE
            raise DataError(f"{setting}: no file matches '{words}' in {self.root}; {hint}")
        for name, path in files.items():
            check_suffix(name, setting, path)
            check_file(path, f"{setting}: ")
        return dict(sorted(files.items()))


def check_suffix(name: str, setting: str, path: object) -> None:
    """Raise DataError, beginning with the name of the `setting`, if a file of that name cannot be read."""
    if not name.endswith(_SUFFIXES):
        raise DataError(
            f"{setting}: {path} does not end in {', '.join(_SUFFIXES)}; narrow the glob, or use data.source: hf for "
            ".json and .csv files"
        )


def check_file(path: Path, setting: str = "") -> None:
    """Raise DataError, beginning with `setting`, if a path is no file, or an empty one of another kind than .txt, whose
    writing or download was cut off. Opens no file: a FIFO would wait for a writer."""
    try:
        facts = path.stat()
    except OSError as error:
        link = f"is a link to {path.readlink()}, which " if path.is_symlink() else ""
        raise DataError(f"{setting}{path} {link}cannot be read: {error.strerror}") from error
    if not stat.S_ISREG(facts.st_mode):
        raise DataError(f"{setting}{path} is not a file that can be read, but a folder, pipe, socket or device")
    if not facts.st_size and path.suffix != ".txt":
        raise DataError(f"{setting}{path} is empty (0 bytes): write it again, or remove it")


class Malformed(DataError):
    """A record without text. `reason`: in a few words, the same for all records of this kind."""

    def __init__(self, reason: str, message: str):
        super().__init__(message)
        self.reason = reason


def documents_of(name: str, path: Path, field: str, *, skip: bool = False) -> Iterator[Document]:
    """Yield the documents of one file in order: its lines, its rows with text under `field`, or a .txt as a whole.

    Ids begin with `name`. Blank ones are left out. Raises DataError if the file cannot be read and,
    without `skip`, at the first malformed record.
    """
    for identity, read in _records(name, path, field):
        try:
            text, fault = read(), ""
        except Malformed as error:
            if not skip:
                raise
            text, fault = "", error.reason
        if fault or text.strip():
            yield Document(identity, text, fault)


def _records(name: str, path: Path, field: str) -> Iterator[tuple[str, Callable[[], str]]]:
    """Yield the id of each record of a file, and what reads its text or raises Malformed."""
    if name.endswith(".txt"):
        yield name, partial(whole, path)
    elif name.endswith(".parquet"):
        for number, raw in enumerate(_column(path, field), start=1):
            yield f"{name}:{number}", partial(_text_of_row, raw, field, f"{path}, row {number}")
    else:
        for number, line in enumerate(read_lines(path), start=1):
            if line.strip():
                yield f"{name}:{number}", partial(_field_of, line, field, f"{path}:{number}")


def content(path: Path) -> bytes:
    """Return the bytes of a file. Raises DataError if it cannot be read."""
    check_file(path)
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error


def whole(path: Path) -> str:
    """Return the text of a UTF-8 file. Raises DataError if it cannot be read, and Malformed if it is not UTF-8."""
    try:
        return content(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Malformed("not UTF-8", f"{path}: cannot be read as UTF-8 text: {error}") from error


def _column(path: Path, field: str) -> Iterator[bytes | None]:
    """Yield the bytes of the text of each row of a Parquet file.

    Raises DataError if the file has no such column of text, or cannot be read.
    """
    with opened_parquet(path) as file:
        if field not in file.schema_arrow.names:
            raise DataError(f"{path}: no column '{field}' (data.text_field); {nearest(field, file.schema_arrow.names)}")
        if str(file.schema_arrow.field(field).type) not in ("string", "large_string", "string_view"):
            raise DataError(f"{path}: the column '{field}' is not text but {file.schema_arrow.field(field).type}")
        for batch in file.iter_batches(_BATCH_ROWS, columns=[field]):
            yield from batch.column(0).cast("large_binary").to_pylist()


def _text_of_row(raw: bytes | None, field: str, where: str) -> str:
    if raw is None:
        raise Malformed("null", f"{where}: the column '{field}' is not text but null")
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise Malformed("not UTF-8", f"{where}: the column '{field}' is not UTF-8: {error}") from error


@contextmanager
def opened_parquet(path: Path) -> Iterator[Any]:
    """Open a Parquet file with pyarrow. Raises DataError if it cannot be opened, or read inside the context."""
    import pyarrow
    from pyarrow import parquet

    check_file(path)
    try:
        with parquet.ParquetFile(path) as file:
            yield file
    except (OSError, pyarrow.ArrowException) as error:
        raise DataError(f"{path}: cannot be read as Parquet: {error}") from error


def read_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file, decompressed if it is a .gz or .zst. Raises DataError if it cannot be read."""
    check_file(path)
    try:
        with _opened(path) as file:
            while line := file.readline(_MOST_LINE_BYTES):
                if len(line) == _MOST_LINE_BYTES and not line.endswith(b"\n"):
                    raise DataError(f"{path}: a line is longer than {_MOST_LINE_BYTES:,} bytes")
                yield line
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read: {error}") from error


def _opened(path: Path) -> io.BufferedIOBase:
    """Open a file of lines. Raises OSError if it cannot be opened or, while it is read, decompressed."""
    if path.suffix == ".zst":
        import pyarrow

        return io.BufferedReader(pyarrow.input_stream(str(path), compression="zstd"))
    return gzip.open(path) if path.suffix == ".gz" else path.open("rb")


def _field_of(line: bytes, field: str, where: str) -> str:
    """Return the text under `field` of a JSON line. Raises DataError, beginning with `where`, if there is none."""
    try:
        record = parse_json(line.decode("utf-8-sig"))
    except ValueError as error:
        reason = "not UTF-8" if isinstance(error, UnicodeDecodeError) else "not JSON"
        raise Malformed(reason, f"{where}: not a line of JSON: {error}") from error
    if not isinstance(record, dict):
        raise Malformed("no field", f"{where}: a {type(record).__name__}, not a JSON object with a field '{field}'")
    return text_of(record, field, where, " (data.text_field)")


def text_of(record: Mapping[str, Any], field: str, where: object, setting: str = "") -> str:
    """Return the text under `field`. Raises DataError, beginning with `where`, if there is none.

    `setting`: what names the field, for the message.
    """
    if field not in record:
        raise Malformed("no field", f"{where}: no field '{field}'{setting}; {nearest(field, record)}")
    text = record[field]
    if not isinstance(text, str):
        reason = "null" if text is None else "not text"
        raise Malformed(reason, f"{where}: the field '{field}' is not text but {json.dumps(text)[:40]}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        surrogate = f"the unpaired surrogate \\u{ord(text[error.start]):04x}"
        fault = f"the field '{field}' is not Unicode: it has {surrogate} at character {error.start + 1}"
        raise Malformed("not UTF-8", f"{where}: {fault}") from error
    return text


def _nearest(root: Path, pattern: Path) -> str:
    """Return a hint for the first part of the pattern that does not exist, "" if no name is close to it."""
    folder = root
    for part in pattern.parts:
        if glob.has_magic(part) or not (folder / part).exists():
            break
        folder = folder / part
    else:
        return ""
    try:
        hint = "" if glob.has_magic(part) else nearest(part, sorted(path.name for path in folder.iterdir()))
    except OSError:  # the folder may not be listed
        return ""
    return f"there is no {folder / part}, {hint}" if hint.startswith("did") else ""


def _rooted_base(root: Path, pattern: Path) -> Path:
    """Return the folder that file names are relative to: the part of the pattern before its first wildcard."""
    fixed: list[str] = []
    for part in pattern.parts[:-1]:
        if glob.has_magic(part):
            break
        fixed.append(part)
    return root.joinpath(*fixed)


# Dividing one long text into many documents, so that it can be split into training and validation text. A piece ends at
# the first blank line after `length` characters; if none follows within another `length`, at a line end; else at white
# space; else after exactly `length` characters. The concatenated pieces are the text. They depend only on the text and
# its size, so every machine divides a text in the same way.


def _is_divided(files: dict[str, Path], name: str) -> bool:
    """Return whether the file of that name is divided. Raises DataError."""
    if not name.endswith(".txt"):
        return False
    try:
        return files[name].stat().st_size > (_DIVIDED_BYTES_ALONE if len(files) == 1 else _DIVIDED_BYTES)
    except OSError as error:
        raise DataError(f"{files[name]}: cannot be read: {error.strerror or error}") from error


def _pieces_of(path: Path) -> Iterator[str]:
    """Yield the pieces of a UTF-8 file in order, with at most a few MB of it in memory.

    Raises DataError if it cannot be read.
    """
    try:
        length = max(_SHORTEST_CHARACTERS, min(_LONGEST_CHARACTERS, path.stat().st_size // _PIECES))
        with path.open(encoding="utf-8-sig", newline="") as file:
            yield from pieces(iter(lambda: file.read(_READ_CHARACTERS), ""), length)
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read as UTF-8 text: {error}") from error


def pieces(chunks: Iterator[str], length: int) -> Iterator[str]:
    """Yield the pieces of the concatenated `chunks`, of `length` to 2 `length` characters; the last may be shorter."""
    text = ""
    start = 0
    for chunk in chunks:
        text = text[start:] + chunk
        start = 0
        # Three lengths: the white space of a blank line may continue in the next chunk.
        while len(text) - start > 3 * length:
            end = _end(text, start + length, start + 2 * length)
            yield text[start:end]
            start = end
    while start < len(text):
        end = _end(text, start + length, start + 2 * length) if len(text) - start > 2 * length else len(text)
        yield text[start:end]
        start = end


def _end(text: str, earliest: int, latest: int) -> int:
    """Return where the piece ends, between `earliest` and `latest` at the best boundary there."""
    for boundary in (_BLANK_LINE, _LINE_END, _SPACE):
        if found := boundary.search(text, earliest, latest):
            return found.end()
    return earliest

"""The user's own text: files under a glob, a whole .txt file or one line of a .jsonl file being a document."""

from __future__ import annotations

import glob
import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpas_cli.data.corpora import Document, Source, Survey, file_stamp, side, skip_to, survey_of
from gpas_cli.errors import DataError, nearest

SUFFIXES = (".txt", ".jsonl", ".jsonl.gz")
_EXAMPLE = "data.path is a glob, for example texts/**/*.txt"


class Files(Source):
    """Documents by ascending file name, then line. Ids (`a/b.txt`, `a/b.jsonl:7`) start where the glob's wildcards do,
    so that a corpus keeps its split when its folder is moved."""

    name = "files"

    def __init__(self, pattern: str, text_field: str, root: Path):
        self.pattern = pattern
        self.text_field = text_field
        self.root = root

    def documents(self, split: str, after: str = "") -> Iterator[Document]:
        return skip_to((d for d in self._all() if side(d.id) == split), after)

    def survey(self) -> Survey:
        return survey_of((side(d.id), d) for d in self._all())

    def stamp(self) -> Any:
        stamp = file_stamp(iter(self._named().values()))
        return {"field": self.text_field, "pattern": self.pattern, "files": stamp} if stamp else None

    def _all(self) -> Iterator[Document]:
        for name, path in self._named().items():
            yield from self._text(name, path) if name.endswith(".txt") else self._lines(name, path)

    def _named(self) -> dict[str, Path]:
        """The files by name, in order. Raises DataError when there are none, or one is of no known kind."""
        pattern = Path(self.pattern).expanduser()
        found = [Path(p) for p in glob.glob(str(_rooted(self.root, pattern)), recursive=True)]  # noqa: PTH207
        base = _rooted_base(self.root, pattern)
        files = {path.relative_to(base).as_posix(): path for path in found if path.is_file()}
        if not files:
            raise DataError(f"data.path: no file matches '{self.pattern}' in {self.root}; {_EXAMPLE}")
        for name, path in files.items():
            if not name.endswith(SUFFIXES):
                raise DataError(
                    f"data.path: {path} is none of {', '.join(SUFFIXES)}; narrow the glob, or use data.source: hf "
                    "for .json, .parquet and .csv files"
                )
        return dict(sorted(files.items()))

    def _text(self, name: str, path: Path) -> Iterator[Document]:
        try:
            text = path.read_bytes().decode("utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"{path}: cannot be read as UTF-8 text: {error}") from error
        if text.strip():
            yield Document(name, text)

    def _lines(self, name: str, path: Path) -> Iterator[Document]:
        for number, line in enumerate(read_lines(path), start=1):
            if not line.strip():
                continue
            text = field_of(line, self.text_field, f"{path}:{number}")
            if text.strip():
                yield Document(f"{name}:{number}", text)


def read_lines(path: Path) -> Iterator[bytes]:
    """The lines of a file, unpacked if its name ends in .gz. Raises DataError when it is damaged or unreadable."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            yield from file
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read: {error}") from error


def field_of(line: bytes, field: str, where: str) -> str:
    """The text under `field` of one JSON line. Raises DataError, beginning with `where`, when there is none."""
    try:
        record = json.loads(line.decode("utf-8-sig"))
    except ValueError as error:
        raise DataError(f"{where}: not a line of JSON: {error}") from error
    if not isinstance(record, dict):
        raise DataError(f"{where}: a {type(record).__name__}, not a JSON object with a field '{field}'")
    if field not in record:
        raise DataError(f"{where}: no field '{field}' (data.text_field); {nearest(field, record)}")
    if not isinstance(record[field], str):
        raise DataError(f"{where}: the field '{field}' is not text but {json.dumps(record[field])[:40]}")
    text: str = record[field]
    return text


def _rooted(root: Path, pattern: Path) -> Path:
    return pattern if pattern.is_absolute() else Path(glob.escape(str(root))) / pattern


def _rooted_base(root: Path, pattern: Path) -> Path:
    """The folder the names of the files start from: the part of the pattern before its first wildcard."""
    fixed: list[str] = []
    for part in pattern.parts[:-1]:
        if glob.has_magic(part):
            break
        fixed.append(part)
    return root.joinpath(*fixed)

"""Pairs of a text and its translation as documents of two lines: from two files, a `datasets` data set, or invented.

White space within a side becomes single spaces, so that the line end separates the sides. A pair with an empty side is
left out.

The invented languages need no data. The first one has the order subject, verb, object, marks the plural and puts the
past tense before the verb; the second one has the verb last, the adjective after its noun, which has one of two genders
that the adjective takes over, a case of objects, and tenses as endings. A sentence decides its own split, so that no
sentence of one split is in another.
"""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from gpas_cli.data import disk
from gpas_cli.data.corpora import Document, Source, file_stamp, skip_to
from gpas_cli.data.files import check_file, read_lines
from gpas_cli.data.hub import HfDataset
from gpas_cli.errors import DataError, nearest
from gpas_cli.spec.data import Data
from gpas_cli.spec.translation import Translation, both, languages, test_path

SEPARATOR = "\n"
TEST = "test"  # the split of the invented languages that is translated
_SENTENCES = 30_000
_HELD_OUT = 20  # of 20 sentences one is validation text and one is of the test set


def joined(source: str, target: str) -> str:
    """Return the document of a pair, "" if a side is empty."""
    sides = [" ".join(text.split()) for text in (source, target)]
    return SEPARATOR.join(sides) if all(sides) else ""


class FilePairs(Source):
    """Two files whose lines with the same number translate each other; ids such as `train.en:7`. `validation` names
    files of their own; without it, a hash splits the pairs."""

    name = "pairs"
    normalisation = "single spaces"

    def __init__(self, path: str, root: Path, validation: str = ""):
        self.root = root
        self.separate = bool(validation)
        self.by_text = not validation
        self.settings = {"data.path": path} | ({"data.validation": validation} if validation else {})

    @property
    def title(self) -> str:
        return self.settings["data.path"]

    def documents(self, split: str, after: str = "") -> Iterator[Document]:
        found = self._read("data.validation" if self.separate and split == "validation" else "data.path")
        return skip_to((d for d in found if self.separate or self.side(d) == split), after)

    def stamp(self) -> Any:
        return {"paths": self.settings, "files": file_stamp(self.paths())}

    def check(self) -> None:
        self.paths()

    def paths(self) -> list[Path]:
        return [path for setting in self.settings for path in self._files(setting)]

    def _files(self, setting: str) -> list[Path]:
        return existing(self.settings[setting], self.root, setting)

    def _read(self, setting: str) -> Iterator[Document]:
        first, second = self._files(setting)
        for number, texts in enumerate(lines_of(first, second, setting), 1):
            if text := joined(*texts):
                yield Document(f"{first.name}:{number}", text)


def existing(path: str, root: Path, setting: str) -> list[Path]:
    """Return both files that `path` names. Raises DataError, beginning with `setting`, for one that cannot be read."""
    files = [root / Path(one).expanduser() for one in both(path) or ()]
    for file in files:
        if not os.path.lexists(file):
            known = [one.name for one in file.parent.glob("*")] if file.parent.is_dir() else []
            raise DataError(f"{setting}: there is no file {file}; {nearest(file.name, sorted(known))}")
        check_file(file, f"{setting}: ")
    return files


def opened(data: Data, root: Path) -> Source:
    """Return the `Source` of pairs. Relative paths start from `root`. Reads nothing yet."""
    if data.source == "pairs":
        return FilePairs(data.path, root, data.validation)
    return HubPairs(data.path, root) if data.source == "hf-pairs" else Languages()


def unreadable_reason(section: Translation, cache: Path, root: Path) -> str:
    """Return which file of a local test set is missing, "" if none is. Opens no file, uses no network."""
    try:
        for test in section.tests:
            existing(test_path(test), root, f"translation.tests: {test}")
    except DataError as error:
        return str(error)
    return ""


def lines_of(first: Path, second: Path, setting: str) -> Iterator[tuple[str, str]]:
    """Yield the lines of two files in pairs. Raises DataError if one has more, or is no UTF-8 text."""
    counts = [0, 0]
    readers = [_lines(first), _lines(second)]
    while True:
        texts = [next(reader, None) for reader in readers]
        counts = [count + (text is not None) for count, text in zip(counts, texts, strict=True)]
        if None in texts:
            break
        yield str(texts[0]), str(texts[1])
    counts = [count + sum(1 for _ in reader) for count, reader in zip(counts, readers, strict=True)]
    if counts[0] != counts[1]:
        raise DataError(
            f"{setting}: {first} has {counts[0]:,} lines and {second} has {counts[1]:,}; line n of one must be the "
            "translation of line n of the other"
        )


def _lines(path: Path) -> Iterator[str]:
    for number, line in enumerate(read_lines(path), 1):
        try:
            yield line.decode("utf-8-sig" if number == 1 else "utf-8").strip()
        except UnicodeDecodeError as error:
            raise DataError(f"{path}:{number}: not UTF-8 text: {error}") from error


class HubPairs(HfDataset):
    """A `datasets` data set with a column `translation` of mappings from language to text, such as wmt/wmt16.

    path: "NAME:CONFIGURATION/{SOURCE,TARGET}".
    """

    name = "hf-pairs"
    normalisation = "single spaces"

    def __init__(self, path: str, root: Path):
        super().__init__(path.partition("{")[0].rstrip("/"), "translation", root)
        self.languages = languages(path)

    def _rows(self, split: str, after: str = "") -> Iterator[Document]:
        start = int(after.rpartition("/")[2]) + 1 if after else 0
        for number, row in enumerate(self._splits[split].select_columns([self.text_field]).skip(start), start):
            if text := joined(*(row[self.text_field][language] for language in self.languages)):
                yield Document(f"{split}/{number}", text)

    def stamp(self) -> Any:
        found = super().stamp()
        return found and {**found, "languages": self.languages}

    def _check_field(self, rows: Any) -> None:
        if self.text_field not in rows.column_names:
            raise DataError(f"data.path: '{self.path}' has no column '{self.text_field}' with pairs of texts")
        column = rows.features[self.text_field]
        known = getattr(column, "languages", None) or (list(column) if isinstance(column, Mapping) else [])
        for language in self.languages:
            if language not in known:
                raise DataError(f"data.path: '{self.path}' has no language '{language}'; {nearest(language, known)}")


# The invented languages.


class _Word(NamedTuple):
    """A word in both languages; `second`: the second gender, or the second form of the past."""

    source: str
    target: str
    second: bool


@cache
def _words(kind: str, count: int, syllables: int) -> Sequence[_Word]:
    """Return words of a kind, which end in consonants, the same ones on every machine."""
    random_number = random.Random(f"gpas {kind}")
    onsets = {"source": "b d f g k l m n p r s t v z".split(), "target": "br ch d gr h j kl m p sh t tr w y".split()}
    made: dict[str, list[str]] = {}
    for language, heads in onsets.items():
        beginnings = ["".join(pair) for pair in product(heads, "aeiou")]
        found = dict[str, None]()
        while len(found) < count:
            parts = [random_number.choice(beginnings) for _ in range(syllables)]
            found["".join(parts) + random_number.choice("lnrst")] = None
        made[language] = list(found)
    return [_Word(a, b, random_number.random() < 0.5) for a, b in zip(made["source"], made["target"], strict=True)]


def _noun_phrase(draw: random.Random, case: str) -> tuple[str, str, bool]:
    """Return a phrase in both languages, and whether it is plural. case: the ending of nouns in the second one."""
    noun = draw.choice(_words("noun", 60, 2))
    plural, definite = draw.random() < 0.4, draw.random() < 0.6
    source = [("la" if definite else "un")]
    target = [noun.target + ("im" if plural else "") + case + ("" if definite else "ek")]
    if draw.random() < 0.5:
        adjective = draw.choice(_words("adjective", 30, 1))
        source.append(adjective.source)
        target.append(adjective.target + ("u" if noun.second else "e"))
    source.append(noun.source + ("es" if plural else ""))
    return " ".join(source), " ".join(target), plural


def _clause(draw: random.Random) -> tuple[str, str]:
    subject, subject_there, plural = _noun_phrase(draw, "")
    thing, thing_there, _ = _noun_phrase(draw, "on")
    verb = draw.choice(_words("verb", 40, 2))
    past, negated = draw.random() < 0.4, draw.random() < 0.2
    source = [subject, *(["no"] if negated else []), *(["ha"] if past else []), verb.source + ("en" if plural else "a")]
    source.append(thing)
    ending = ("ath" if verb.second else "oth") if past else "i"
    target = [subject_there, thing_there, ("nu" if negated else "") + verb.target + ending]
    if draw.random() < 0.4:
        preposition = draw.choice(_words("preposition", 8, 1))
        place, place_there, _ = _noun_phrase(draw, "ar")
        source += [preposition.source, place]
        target[1:1] = [place_there, preposition.target]
    return " ".join(source), " ".join(target)


def _sentence(number: int) -> tuple[str, str]:
    draw = random.Random(f"gpas sentence {number}")
    source, target = _clause(draw)
    if draw.random() < 0.25:
        more, more_there = _clause(draw)
        source, target = f"{source} e {more}", f"{target} , {more_there} ya"
    return f"{source} .", f"{target} ."


class Languages(Source):
    """Sentences of the invented pair of languages. A hash of the sentence decides its split."""

    name = "languages"

    def documents(self, split: str, after: str = "") -> Iterator[Document]:
        return skip_to((Document(str(n), joined(*pair)) for n, pair in _pairs(split)), after)

    def stamp(self) -> Any:
        """Return a digest of this file, which has the grammar."""
        return hashlib.sha256(Path(__file__).read_bytes()).hexdigest()


def _pairs(split: str) -> Iterator[tuple[int, tuple[str, str]]]:
    sides = {0: "validation", 1: TEST}
    for number in range(_SENTENCES):
        pair = _sentence(number)
        place = int(disk.digest(pair[0]), 16) % _HELD_OUT
        if sides.get(place, "train") == split:
            yield number, pair


def invented(split: str) -> list[tuple[str, str]]:
    """Return the sentences of a split with their translations, each sentence once."""
    return list(dict(pair for _, pair in _pairs(split)).items())

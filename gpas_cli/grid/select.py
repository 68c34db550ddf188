"""Which entries a command means: `--where gate=gpas -w optim.lr=1e-3 -w seed!=2`, a name, or the start of a key."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from gpas_cli.errors import GpasError, UnknownCell, nearest
from gpas_cli.grid.entry import Entry
from gpas_cli.grid.scalar import Label, resolve, same, spelled
from gpas_cli.grid.settings import SETTINGS
from gpas_cli.spec import parse
from gpas_cli.spec.cell import MODEL_PARTS, Cell
from gpas_cli.words import listed

MIN_PREFIX = 4
_CONDITION = re.compile(r"\s*([^=!\s]+)\s*(!?=)\s*(.*?)\s*")


@dataclass(frozen=True)
class _Condition:
    name: str
    wanted: tuple[str, ...]
    negated: bool

    def holds(self, entry: Entry) -> bool:
        """Entries without the axis and the field are kept only by a negated condition."""
        found = any(_means(word, value) for value in _values(entry, self.name) for word in self.wanted)
        return found != self.negated


def select(entries: Sequence[Entry], where: Sequence[str]) -> list[Entry]:
    """The entries for which every condition holds: `NAME=VALUE[,VALUE...]` or `NAME!=VALUE[,VALUE...]`.

    A name is an axis or a field of the cell as it is run (`optim.lr`, `size.layers`), whether a grid varies it or not.
    A dotted name may be shortened to its last part. Numbers are equal as numbers: 1e-3 is 0.001. Raises GpasError for a
    condition that cannot be read, a name or value that no entry has, or when nothing is left.
    """
    conditions = [_parse(text, entries) for text in where]
    chosen = [entry for entry in entries if all(condition.holds(entry) for condition in conditions)]
    if not chosen and entries:
        raise GpasError(f"no cell matches --where {' '.join(where)}")
    return chosen


def find(entries: Sequence[Entry], word: str) -> Entry:
    """The entry called `grid/name`, `name`, or whose key (of any stage) begins with `word` (at least 4 digits).

    Raises UnknownCell when none fits, with the nearest name, or when several different cells fit.
    """
    by_id = [entry for entry in entries if entry.id == word]
    named = by_id or [entry for entry in entries if entry.name == word]
    fitting = named or _by_key(entries, word.lower())
    if not fitting and re.fullmatch(rf"[0-9a-f]{{1,{MIN_PREFIX - 1}}}", word.lower()):
        raise UnknownCell(f"no cell is called '{word}', and the start of a key has at least {MIN_PREFIX} digits")
    if not fitting:
        raise UnknownCell(f"no cell '{word}'; {_nearest_name(entries, word)}")
    if len({entry.key for entry in fitting}) > 1:
        raise UnknownCell(f"'{word}' fits {len(fitting)} cells: {listed([entry.id for entry in fitting], 6)}")
    return fitting[0]


def _parse(text: str, entries: Sequence[Entry]) -> _Condition:
    match = _CONDITION.fullmatch(text)
    if match is None or not match[3]:
        raise GpasError(f"--where '{text}' is not NAME=VALUE, NAME=VALUE,VALUE or NAME!=VALUE")
    name = _name(match[1], entries)
    wanted = tuple(word.strip() for word in match[3].split(","))
    valid = list(dict.fromkeys(value for entry in entries for value in _values(entry, name)))
    for word in wanted:
        if not any(_means(word, value) for value in valid):
            raise GpasError(f"--where {text}: no cell has {name} '{word}'; {nearest(word, map(spelled, valid))}")
    return _Condition(name, wanted, match[2] == "!=")


def _name(word: str, entries: Sequence[Entry]) -> str:
    """The axis or else the field that `word` names, in full or by its last part."""
    axes = list(dict.fromkeys(axis for entry in entries for axis in entry.axes))
    if name := _named(word, axes):
        return name
    fields = list(dict.fromkeys(".".join(path) for entry in entries for path, _ in _flat((), entry.cell.to_mapping())))
    if name := _named(word, fields):
        return name
    hint = nearest(word, [*axes, *fields])
    hint = hint if hint.startswith("did") else f"{nearest(word, axes)}, or a field such as optim.lr"
    raise GpasError(f"--where: no axis or field '{word}'; {hint}")


def _named(word: str, names: Sequence[str]) -> str:
    """The one of `names` that is `word` or ends in it, "" if none. Raises GpasError if several end in it."""
    ends = [name for name in names if name.rpartition(".")[2] == word]
    if word in names or len(ends) < 2:
        return word if word in names else "".join(ends)
    raise GpasError(f"--where: '{word}' is not clear; it could be {' or '.join(ends)}")


def _values(entry: Entry, name: str) -> list[Label]:
    """What the entry has under this name: the label of the axis, and the values of the field."""
    labels = [entry.axes[name]] if name in entry.axes else []
    section, *path = name.split(".")
    found = [value for at, values in _flat((), _section(entry.cell, section)) if list(at) == path for value in values]
    return labels + found


def _section(cell: Cell, name: str) -> Any:
    """A part of the cell as plain data, an empty mapping if there is no such part."""
    if name in MODEL_PARTS:
        return cell.model.to_mapping()["norm"] if name == "norm" else parse.plain(getattr(cell.model, name))
    return parse.plain(getattr(cell, name)) if name in SETTINGS else {}


def _flat(path: tuple[str, ...], value: Any) -> Iterator[tuple[tuple[str, ...], list[Label]]]:
    """Every field below `path` with its values: those of a list, else one."""
    if isinstance(value, dict):
        for name, below in value.items():
            yield from _flat((*path, name), below)
    else:
        yield path, ["none" if item is None else item for item in (value if isinstance(value, list) else [value])]


def _means(word: str, label: Label) -> bool:
    """Whether `word` on the command line is this label: `1e-3` is 0.001."""
    if word == spelled(label):
        return True
    try:
        value = resolve(word)
    except ValueError:
        return False
    return value is not None and same(value, label)


def _by_key(entries: Sequence[Entry], word: str) -> list[Entry]:
    if not re.fullmatch(rf"[0-9a-f]{{{MIN_PREFIX},16}}", word):
        return []
    last = [entry for entry in entries if entry.key.startswith(word)]
    return last or [entry for entry in entries if any(stage.key.startswith(word) for stage in entry.cell.stages)]


def _nearest_name(entries: Sequence[Entry], word: str) -> str:
    ids = [entry.id for entry in entries]
    names = list(dict.fromkeys(entry.name for entry in entries))
    if not entries:
        return "there are no cells"
    hint = nearest(word, ids if "/" in word else names)
    return hint if hint.startswith("did") else f"there are {listed(names, 8)}"

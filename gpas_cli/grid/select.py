"""Which entries a command means: `--where gate=gpas size=71m,130m seed!=2`, a name, or the start of a key."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from gpas_cli.errors import GpasError, UnknownCell, nearest
from gpas_cli.grid.entry import Entry
from gpas_cli.grid.scalar import Label, resolve, same, spelled

MIN_PREFIX = 4
_CONDITION = re.compile(r"\s*([^=!\s]+)\s*(!?=)\s*(.*?)\s*")


@dataclass(frozen=True)
class _Condition:
    axis: str
    wanted: tuple[str, ...]
    negated: bool

    def holds(self, entry: Entry) -> bool:
        """Entries without the axis are kept only by a negated condition."""
        found = self.axis in entry.axes and any(_means(word, entry.axes[self.axis]) for word in self.wanted)
        return found != self.negated


def select(entries: Sequence[Entry], where: Sequence[str]) -> list[Entry]:
    """The entries for which every condition holds: `AXIS=LABEL[,LABEL...]` or `AXIS!=LABEL[,LABEL...]`.

    A dotted axis may be named by its last part. Raises GpasError for a condition that cannot be read, an axis or label
    that no entry has, or when nothing is left.
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
    if not fitting:
        raise UnknownCell(f"no cell '{word}'; {_nearest_name(entries, word)}")
    if len({entry.key for entry in fitting}) > 1:
        names = ", ".join(entry.id for entry in fitting[:6])
        raise UnknownCell(f"'{word}' fits {len(fitting)} cells: {names}{', ...' if len(fitting) > 6 else ''}")
    return fitting[0]


def _parse(text: str, entries: Sequence[Entry]) -> _Condition:
    match = _CONDITION.fullmatch(text)
    if match is None or not match[3]:
        raise GpasError(f"--where '{text}' is not AXIS=LABEL, AXIS=LABEL,LABEL or AXIS!=LABEL")
    axis = _axis(match[1], entries)
    wanted = tuple(word.strip() for word in match[3].split(","))
    valid = list(dict.fromkeys(entry.axes[axis] for entry in entries if axis in entry.axes))
    for word in wanted:
        if not any(_means(word, label) for label in valid):
            raise GpasError(f"--where {text}: no cell has {axis} '{word}'; {nearest(word, map(spelled, valid))}")
    return _Condition(axis, wanted, match[2] == "!=")


def _axis(word: str, entries: Sequence[Entry]) -> str:
    axes = list(dict.fromkeys(axis for entry in entries for axis in entry.axes))
    if word in axes:
        return word
    ends = [axis for axis in axes if axis.rpartition(".")[2] == word]
    if len(ends) == 1:
        return ends[0]
    hint = f"it could be {' or '.join(ends)}" if ends else nearest(word, axes)
    raise GpasError(f"--where: no axis '{word}'; {hint}")


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
    few = names[:8]
    return hint if hint.startswith("did") else f"there are {', '.join(few)}{', ...' if len(names) > len(few) else ''}"

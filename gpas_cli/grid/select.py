"""Select entries by `--where gate=gpas -w optim.lr=1e-3 -w seed!=2`, by name, or by the start of a key."""

import re
import shlex
from collections.abc import Sequence
from typing import Any

from gpas_cli.errors import GpasError, UnknownCell, closest, nearest
from gpas_cli.grid.declared import Entry
from gpas_cli.grid.document import Label, resolve, same, spelled
from gpas_cli.spec import parse
from gpas_cli.spec.extensions import stage_kinds
from gpas_cli.words import listed

MIN_PREFIX_DIGITS = 4
_WRITABLE = re.compile(r"[^\s,]([^,]*[^\s,])?", re.DOTALL)  # labels that can be the value of a condition
_FILTER = re.compile(r"\s*([^=!\s]+)\s*(!?=)\s*(.*?)\s*")


def select(entries: Sequence[Entry], where: Sequence[str]) -> list[Entry]:
    """Return the entries that match every condition, `NAME=VALUE[,VALUE...]` or `NAME!=VALUE[,VALUE...]`.

    A name is an axis or a field of the resolved cell (`optim.lr`, `size.layers`), whether a grid varies it or not. A
    dotted name may be shortened to its last part. Numbers are compared as numbers: 1e-3 is 0.001. Raises GpasError for
    a malformed condition, a name or value that no entry has, and if no entry matches.
    """
    chosen = list(entries)
    for name, wanted, negated in [_parse(text, entries) for text in where]:
        # An entry with neither the axis nor the field matches only negated conditions.
        chosen = [
            entry
            for entry in chosen
            if any(_equals(text, value) for value in _values(entry, name) for text in wanted) != negated
        ]
    if not chosen and entries:
        raise GpasError(f"no cell matches --where {' '.join(where)}")
    return chosen


def conditions(chosen: Sequence[Entry], entries: Sequence[Entry]) -> list[str]:
    """Return conditions with which `select` finds the chosen entries among `entries`, as few as labels of axes allow.

    They may select further entries if the chosen ones are no combination of labels, or have a label with a comma, which
    no condition can express.
    """
    found = []
    for axis in dict.fromkeys(axis for entry in entries for axis in entry.axes):
        wanted = list(dict.fromkeys(spelled(entry.axes[axis]) for entry in chosen if axis in entry.axes))
        others = {spelled(entry.axes[axis]) for entry in entries if axis in entry.axes} - set(wanted)
        if wanted and others and all(axis in entry.axes for entry in chosen) and all(map(_WRITABLE.fullmatch, wanted)):
            found.append(f"{axis}={','.join(wanted)}")
    return found


def names_in(where: Sequence[str]) -> set[str]:
    """Return the names of axes and fields in conditions that `select` accepts, as they are written."""
    return {match[1] for text in where if (match := _FILTER.fullmatch(text))}


def run_words(chosen: Sequence[Entry], entries: Sequence[Entry]) -> list[str]:
    """Return the words of the command that runs the chosen cells, and as few others of their grids as conditions allow.

    `entries` has all cells of these grids. Without a chosen cell, the list is empty.
    """
    if not chosen:
        return []
    grids = list(dict.fromkeys(entry.grid for entry in chosen))
    declared = [entry for entry in entries if entry.grid in grids]
    where = [word for condition in conditions(chosen, declared) for word in ("--where", condition)]
    return ["gpas", "run", "grid", *grids, *where]


def run_command(chosen: Sequence[Entry], entries: Sequence[Entry]) -> str:
    """Return the command of `run_words` as a line for a shell."""
    return shlex.join(run_words(chosen, entries))


def find(entries: Sequence[Entry], query: str) -> Entry:
    """Return the entry with the id `grid/name`, the name, or a stage key that begins with `query` (at least 4 digits).

    Raises UnknownCell if no cell matches, with the nearest name, or if several different cells match.
    """
    by_id = [entry for entry in entries if entry.id == query]
    named = by_id or [entry for entry in entries if entry.name == query]
    matching = named or _by_key(entries, query.lower())
    if not matching and re.fullmatch(rf"[0-9a-f]{{1,{MIN_PREFIX_DIGITS - 1}}}", query.lower()):
        raise UnknownCell(f"no cell has the name '{query}'; to select by key, give at least {MIN_PREFIX_DIGITS} digits")
    if not matching:
        raise UnknownCell(f"no cell '{query}'; {_nearest_name(entries, query)}")
    if len({entry.key for entry in matching}) > 1:
        raise UnknownCell(f"'{query}' matches {len(matching)} cells: {listed([entry.id for entry in matching], 6)}")
    return matching[0]


def find_preferring(default: str, entries: Sequence[Entry], query: str) -> Entry:
    """Return the entry that `find` returns; of equal names, the one in the grid `default` takes precedence."""
    usual = [entry for entry in entries if entry.grid == default]
    return find(usual if any(entry.name == query for entry in usual) else entries, query)


def _parse(text: str, entries: Sequence[Entry]) -> tuple[str, list[str], bool]:
    """Return the name, the values and whether they are excluded."""
    match = _FILTER.fullmatch(text)
    if match is None or not match[3]:
        raise GpasError(f"--where '{text}' is not NAME=VALUE, NAME=VALUE,VALUE or NAME!=VALUE")
    name = _name(match[1], entries)
    wanted = [part.strip() for part in match[3].split(",")]
    valid = list(dict.fromkeys(value for entry in entries for value in _values(entry, name)))
    for part in wanted:
        if not any(_equals(part, value) for value in valid):
            hint = f"write --where {part}" if "=" in part else nearest(part, map(spelled, valid))
            raise GpasError(f"--where {text}: no cell has {name} '{part}'; {hint}")
    return name, wanted, match[2] == "!="


def _name(query: str, entries: Sequence[Entry]) -> str:
    """Return the axis, or else the field, that `query` names in full or by its last part."""
    axes = list(dict.fromkeys(axis for entry in entries for axis in entry.axes))
    if name := _named(query, axes):
        return name
    fields = list(dict.fromkeys(name for entry in entries for name in _fields(entry)))
    if name := _named(query, fields):
        return name
    hint = nearest(query, [*axes, *fields])
    hint = hint if hint.startswith("did") else f"{nearest(query, axes)}, or a field such as optim.lr"
    raise GpasError(f"--where: no axis or field '{query}'; {hint}")


def _named(query: str, names: Sequence[str]) -> str:
    """Return the one of `names` that is `query` or ends in it, or "". Raises GpasError if several end in it."""
    ends = [name for name in names if name.rpartition(".")[2] == query]
    if query in names or len(ends) < 2:
        return query if query in names else "".join(ends)
    raise GpasError(f"--where: '{query}' is ambiguous; it could be {' or '.join(ends)}")


def _values(entry: Entry, name: str) -> list[Label]:
    """Return the label of the axis and the values of the field with this name."""
    labels = [entry.axes[name]] if name in entry.axes else []
    found = _fields(entry).get(name, ())
    values = found if isinstance(found, list | tuple) else [found]
    return labels + ["none" if value is None else value for value in values]


def _fields(entry: Entry) -> dict[str, Any]:
    """Return the tags of the entry and the settings of its cell, with None for a stage that it does not have."""
    own = entry.cell.settings
    return {"tag": entry.tags, **dict.fromkeys(name for name in stage_kinds() if name not in own), **parse.flat(own)}


def _equals(text: str, label: Label) -> bool:
    """Return whether `text` on the command line equals this label: `1e-3` equals 0.001."""
    if text == spelled(label):
        return True
    try:
        value = resolve(text)
    except ValueError:
        return False
    return value is not None and same(value, label)


def _by_key(entries: Sequence[Entry], query: str) -> list[Entry]:
    if not re.fullmatch(rf"[0-9a-f]{{{MIN_PREFIX_DIGITS},16}}", query):
        return []
    last = [entry for entry in entries if entry.key.startswith(query)]
    return last or [entry for entry in entries if any(stage.key.startswith(query) for stage in entry.cell.stages)]


def _nearest_name(entries: Sequence[Entry], query: str) -> str:
    ids = [entry.id for entry in entries]
    names = list(dict.fromkeys(entry.name for entry in entries))
    if not entries:
        return "there are no cells"
    if close := closest(query, ids if "/" in query else names):
        return f"did you mean '{close}'?"
    grid = closest(query, dict.fromkeys(entry.grid for entry in entries))
    return f"there is a grid '{grid}'" if grid else f"there are {listed(names, 8)}"

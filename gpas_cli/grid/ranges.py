"""Values of an axis by rule: `{range: [1, 5]}`, `{linear: [0.1, 0.5], n: 5}`, `{log: [1e-4, 1e-2], n: 5}`.

    range    whole numbers from the first to the last, inclusive; `step: 2` takes every second one
    linear   n numbers at equal distances from the first to the last, inclusive
    log      n numbers at equal ratios from the first to the last, inclusive

The first and the last number are as written. Numbers between them are rounded to six significant digits, so that
labels, names and keys of cells are the same on every machine. If all numbers are whole, they are integers.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import TypeGuard

from gpas_cli.errors import Problem, nearest
from gpas_cli.grid.document import Node
from gpas_cli.grid.readers import add_problem
from gpas_cli.grid.settings import children
from gpas_cli.spec.parse import SettingPath

RULES = {"range": "step", "linear": "n", "log": "n"}  # rule -> its second key, optional for range
MAX_VALUES = 10_000  # of one axis
SIGNIFICANT_DIGITS = 6
_SPACE = re.compile(r"(?:np\.)?(log|geom|lin)space\((.+?),(.+?),\s*(?:num=)?(\d+)\s*\)")
_CALL = re.compile(r"range\(\s*(-?\d+)\s*(?:,\s*(-?\d+)\s*)?(?:,\s*(-?\d+)\s*)?\)")


def is_range(node: Node) -> bool:
    """Return whether the node is a rule for values rather than a value."""
    return bool(RULES.keys() & children(node).keys())


def values_of(node: Node, path: SettingPath, problems: list[Problem]) -> tuple[Node, ...]:
    """Return the values of a rule, each at the rule's position; none after adding to `problems`."""
    entries = children(node)
    kind = next(name for name in RULES if name in entries)
    for name, child in entries.items():
        if name not in (kind, RULES[kind]):
            message = f"unknown key '{name}'; {nearest(name, (kind, RULES[kind]))}"
            add_problem(problems, path, message, child.key or child.mark)
            return ()
    ends = _ends(entries[kind])
    second = entries.get(RULES[kind])
    made = _values(kind, ends, second.value if second else None) if ends else f"write {kind}: [first, last]"
    if isinstance(made, str):
        add_problem(problems, path, made, node)
        return ()
    return tuple(replace(node, value=value, depth=1, count=1) for value in made)


def spelling_of(node: Node) -> str:
    """Return the rule to write instead of Python's `range(3)` or `logspace(1e-3, 1, 4)`; "" for any other value."""
    if isinstance(node.value, str) and (spaced := _SPACE.fullmatch(node.value)):
        kind, first, last, n = (part.strip() for part in spaced.groups())
        return f"write {{{'linear' if kind == 'lin' else 'log'}: [{first}, {last}], n: {n}}}"
    match = _CALL.fullmatch(node.value) if isinstance(node.value, str) else None
    if match is None:
        return ""
    first, stop = (0, int(match[1])) if match[2] is None else (int(match[1]), int(match[2]))
    step = f", step: {match[3]}" if match[3] and match[3] != "1" else ""
    return f"write {{range: [{first}, {stop - 1}]{step}}}, which includes both ends"


def _ends(node: Node) -> tuple[int | float, int | float] | None:
    """Return the two numbers of a list, None if the node is anything else."""
    if not isinstance(node.value, tuple) or len(node.value) != 2:
        return None
    first, last = (item.value for item in node.value)
    return (first, last) if _is_number(first) and _is_number(last) else None


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _values(kind: str, ends: tuple[int | float, int | float], second: object) -> list[int] | list[float] | str:
    """Return the values, or a message. `second`: the step of a range, or the number of values."""
    if second is not None and (not isinstance(second, int) or isinstance(second, bool)):
        return f"{RULES[kind]}: {second!r} is not a whole number"
    if kind == "range":
        return _whole(ends, 1 if second is None else second)
    if second is None or not 2 <= second <= MAX_VALUES:
        return f"needs n, the number of values, from 2 to {MAX_VALUES:,}"
    if kind == "log" and min(ends) <= 0:
        return "log: both numbers must be greater than 0"
    return _spread(kind, ends, second)


def _whole(ends: tuple[int | float, int | float], step: int) -> list[int] | str:
    first, last = ends
    if not isinstance(first, int) or not isinstance(last, int):
        return "range: takes two whole numbers; write linear: [first, last] with n for others"
    if step < 1:
        return f"step: {step} is too small; at least 1"
    if last < first:
        return f"range: {last} is smaller than {first}; write range: [{last}, {first}]"
    values = range(first, last + 1, step)
    return list(values) if len(values) <= MAX_VALUES else f"range: {len(values):,} values; at most {MAX_VALUES:,}"


def _spread(kind: str, ends: tuple[int | float, int | float], n: int) -> list[int] | list[float]:
    first, last = ends
    shares = [i / (n - 1) for i in range(1, n - 1)]
    if kind == "log":
        between = [math.exp(math.log(first) * (1 - share) + math.log(last) * share) for share in shares]
    else:
        between = [first + (last - first) * share for share in shares]
    values = [float(first), *(float(f"{value:.{SIGNIFICANT_DIGITS}g}") for value in between), float(last)]
    return [int(value) for value in values] if all(value.is_integer() for value in values) else values

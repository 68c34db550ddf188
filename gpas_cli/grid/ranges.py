"""Values of an axis by rule: `{range: [1, 5]}`, `{linear: [0.1, 0.5], n: 5}`, `{log: [1e-4, 1e-2], n: 5}`.

    range    whole numbers from the first to the last, both included; `step: 2` takes every second one
    linear   n numbers at equal distances from the first to the last, both included
    log      n numbers at equal ratios from the first to the last, both included

The first and the last number are as written. Those between are rounded to six significant digits, so that a label, a
cell's name and its key are the same on every machine; where all of them are whole, they are whole numbers.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import TypeGuard

from gpas_cli.errors import Problem, nearest
from gpas_cli.grid.document import Node
from gpas_cli.grid.readers import Path, fault
from gpas_cli.grid.settings import children

KINDS = {"range": "step", "linear": "n", "log": "n"}  # and the key that may or must stand beside it
MOST = 10_000  # values of one axis
DIGITS = 6
_CALL = re.compile(r"range\(\s*(-?\d+)\s*(?:,\s*(-?\d+)\s*)?(?:,\s*(-?\d+)\s*)?\)")


def is_range(node: Node) -> bool:
    """Whether the node says how values are made, rather than being one."""
    return bool(KINDS.keys() & children(node).keys())


def values_of(node: Node, path: Path, problems: list[Problem]) -> tuple[Node, ...]:
    """The values that a rule stands for, each at the rule's place; none after adding to `problems`."""
    entries = children(node)
    kind = next(name for name in KINDS if name in entries)
    for name, child in entries.items():
        if name not in (kind, KINDS[kind]):
            message = f"unknown key '{name}'; {nearest(name, (kind, KINDS[kind]))}"
            fault(problems, path, message, child.key or child.mark)
            return ()
    numbers, beside = _numbers(entries[kind]), entries.get(KINDS[kind])
    made = _made(kind, numbers, beside.value if beside else None) if numbers else f"write {kind}: [first, last]"
    if isinstance(made, str):
        fault(problems, path, made, node)
        return ()
    return tuple(replace(node, value=value, depth=1, count=1) for value in made)


def spelling_of(node: Node) -> str:
    """How Python's `range(3)`, written as a word, is written here; "" for any other value."""
    match = _CALL.fullmatch(node.value) if isinstance(node.value, str) else None
    if match is None:
        return ""
    first, stop = (0, int(match[1])) if match[2] is None else (int(match[1]), int(match[2]))
    step = f", step: {match[3]}" if match[3] and match[3] != "1" else ""
    return f"write {{range: [{first}, {stop - 1}]{step}}}, which includes both ends"


def _numbers(node: Node) -> tuple[int | float, int | float] | None:
    """The two numbers of a list, None if it is another list or none."""
    if not isinstance(node.value, tuple) or len(node.value) != 2:
        return None
    first, last = node.value[0].value, node.value[1].value
    return (first, last) if _is_number(first) and _is_number(last) else None


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _made(kind: str, ends: tuple[int | float, int | float], beside: object) -> list[int] | list[float] | str:
    """The values, or what is wrong with the rule. `beside`: the step of a range, or how many values there are."""
    if beside is not None and (not isinstance(beside, int) or isinstance(beside, bool)):
        return f"{KINDS[kind]}: {beside!r} is not a whole number"
    if kind == "range":
        return _whole(ends, 1 if beside is None else beside)
    if beside is None or not 2 <= beside <= MOST:
        return f"needs n: how many values, from 2 to {MOST:,}"
    if kind == "log" and min(ends) <= 0:
        return "log: both numbers must be greater than 0"
    return _spread(kind, ends, beside)


def _whole(ends: tuple[int | float, int | float], step: int) -> list[int] | str:
    first, last = ends
    if not isinstance(first, int) or not isinstance(last, int):
        return "range: takes two whole numbers; write linear: [first, last] with n for others"
    if step < 1:
        return f"step: {step} is too small; at least 1"
    if last < first:
        return f"range: {last} is smaller than {first}; write range: [{last}, {first}]"
    values = range(first, last + 1, step)
    return list(values) if len(values) <= MOST else f"range: {len(values):,} values; at most {MOST:,}"


def _spread(kind: str, ends: tuple[int | float, int | float], n: int) -> list[int] | list[float]:
    first, last = ends
    shares = [i / (n - 1) for i in range(1, n - 1)]
    if kind == "log":
        between = [math.exp(math.log(first) * (1 - share) + math.log(last) * share) for share in shares]
    else:
        between = [first + (last - first) * share for share in shares]
    values = [float(first), *(float(f"{value:.{DIGITS}g}") for value in between), float(last)]
    return [int(value) for value in values] if all(value.is_integer() for value in values) else values

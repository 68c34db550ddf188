"""Check the files of packs, such as their numbers: keys, and the kinds of their values, as shapes.yaml lists them."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from gpas_cli.errors import InvalidExperiments, Problem, nearest
from gpas_cli.grid.document import Mark, Node, mapping, read_document
from gpas_cli.grid.packs import Pack
from gpas_cli.grid.settings import Entries, Part, root_of
from gpas_cli.report.quantities import QUANTITIES
from gpas_cli.words import count

_SHAPES = Path(__file__).with_suffix(".yaml")
_CURVES = (*QUANTITIES, "bound")
_KINDS: dict[str, Callable[[Any], bool]] = {
    "any": lambda value: True,
    "a number": lambda value: type(value) in (int, float),
    "a number or null": lambda value: value is None or type(value) in (int, float),
    "lower or higher": lambda value: value in ("lower", "higher"),
    "paper or code": lambda value: value in ("paper", "code"),
}


@cache
def checked(pack: Pack, name: str, shapes: Path = _SHAPES) -> Node:
    """Return a file of a pack, an empty mapping if it has none. Raises InvalidExperiments for an invalid one.

    shapes: the file that lists its keys.
    """
    path = pack.document(name)
    if not pack.has(name):
        return mapping({}, Mark(str(path), 0, 0))
    problems: list[Problem] = []
    node = read_document(path)
    root = root_of(node, problems)
    _check(root, _listed(shapes)[name])
    whole = root.entries()
    for table in whole["tables"].entries().values() if not problems else ():
        _check_table(table.entries(), whole["recipes"].entries())
    if problems:
        raise InvalidExperiments(problems)
    return node


@cache
def _listed(shapes: Path) -> Any:
    return read_document(shapes).plain()


def _check(part: Part, shape: Any) -> None:
    if isinstance(shape, dict):
        shapes = {key.rstrip("*"): below for key, below in shape.items()}
        found = part.entries(() if "any" in shapes else shapes)
        for name, child in found.items():
            _check(child, shapes.get(name, shapes.get("any")))
        for key in (key[:-1] for key in shape if key.endswith("*") and isinstance(part.value, dict)):
            if key not in found:
                part.report(f"needs '{key}'", part.key)
    elif isinstance(shape, list):
        for item in part.items():
            _check(item, shape[0])
        if part.value == ():
            part.report("is an empty list")
    elif shape == "curves":
        for name in (name for name in part.texts() if name not in _CURVES):
            part.report(f"unknown curve '{name}'; {nearest(name, _CURVES)}")
    elif shape == "text":
        part.sentence()
    elif not _KINDS[shape](part.value):
        part.report(f"'{part.value}' is not {shape.removesuffix(' or null')}")


def _check_table(table: Entries, recipes: Entries) -> None:
    """Report lists of numbers that are longer or shorter than the columns, and recipes that are not there."""
    wanted = len(table["columns"].entries()["labels"].items()) or 1
    rows = [row.entries().without(("labels",)).entries() for row in table["rows"].items()]
    for part in (table["train_tokens"], table["batches"], *(part for row in rows for part in row.values())):
        if part.node and len(part.value) != wanted:
            part.report(f"has {count(len(part.value), 'number')} for {count(wanted, 'column')}")
    for part in table["recipes"].items():
        if part.value not in recipes and "/" not in part.value:
            part.report(f"no recipe '{part.value}'; {nearest(part.value, recipes)}")

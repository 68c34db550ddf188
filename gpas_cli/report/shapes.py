"""Check the numbers and figures of packs: their keys, and the kinds of their values, as shapes.yaml lists them."""

from functools import cache
from pathlib import Path
from typing import Any

import yaml

from gpas_cli.errors import InvalidExperiments, Problem, nearest
from gpas_cli.grid.document import read_document
from gpas_cli.grid.packs import Pack
from gpas_cli.grid.settings import Part, root_of
from gpas_cli.report.quantities import QUANTITIES
from gpas_cli.words import count

_SHAPES = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text("utf-8"))
_CURVES = (*QUANTITIES, "bound")


@cache
def checked(pack: Pack, name: str) -> dict[str, Any]:
    """Return a file of a pack as plain data, {} if it has none. Raises InvalidExperiments for an invalid one."""
    problems: list[Problem] = []
    root = root_of(read_document(pack.document(name)) if pack.has(name) else None, problems)
    _check(root, _SHAPES[name])
    whole = root.entries()
    for table in whole["tables"].entries().values() if not problems else ():
        _check_columns(table)
        for recipe in table.entries()["recipes"].items():
            if recipe.value not in (known := whole["recipes"].entries()) and "/" not in recipe.value:
                recipe.report(f"no recipe '{recipe.value}'; {nearest(recipe.value, known)}")
    if problems:
        raise InvalidExperiments(problems)
    return root.node.plain() if root.node else {}


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
        for name in part.texts():
            if name not in _CURVES:
                part.report(f"unknown curve '{name}'; {nearest(name, _CURVES)}")
    elif shape == "text":
        part.sentence()
    elif (shape == "lower or higher" and part.value not in shape.split(" or ")) or (
        shape.startswith("number") and type(part.value) not in (int, float, type(None) if "null" in shape else int)
    ):
        part.report(f"'{part.value}' is not {shape}")


def _check_columns(table: Part) -> None:
    """Report lists of numbers that are longer or shorter than the columns."""
    parts = table.entries()
    wanted = len(parts["columns"].entries()["labels"].items()) or 1
    rows = [row.entries().without(("labels",)).entries() for row in parts["rows"].items()]
    for part in (parts["train_tokens"], parts["batches"], *(part for row in rows for part in row.values())):
        if part.node and len(part.value) != wanted:
            part.report(f"has {count(len(part.value), 'number')} for {count(wanted, 'column')}")

"""Cases of tests as data: what goes in and what is expected, in one YAML file of each room."""

import inspect
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from gpas_cli.grid.document import read_document


@cache
def tables(file: str) -> dict[str, Any]:
    """Return the tables of a file, whose path is in the tests' folder: name of a test without `test_` -> its rows."""
    found: dict[str, Any] = read_document(Path(__file__).parent / file).plain()
    return found


def cases(file: str, **usual: Any) -> Callable[[Callable[..., None]], Any]:
    """Return a decorator that runs a test with every row of its table in `file`.

    A row is a mapping of parameters to values, a list of the values of the last parameters, which stand after fixtures,
    or the value of the last one; `usual` has the values of what rows leave out.
    """

    def decorate(test: Callable[..., None]) -> Any:
        parameters = list(inspect.signature(test).parameters)
        rows = tables(file)[test.__name__.removeprefix("test_")]
        named = [usual | _by_name(parameters, row) for row in rows]
        names = list(dict.fromkeys(name for row in named for name in row))
        return pytest.mark.parametrize(names, [[row[name] for name in names] for row in named])(test)

    return decorate


def _by_name(parameters: Sequence[str], row: Any) -> dict[str, Any]:
    if isinstance(row, dict):
        return row
    values = row if isinstance(row, list) else [row]
    return dict(zip(parameters[-len(values) :], values, strict=True))

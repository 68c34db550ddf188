"""Parameters of tests of which only some run in the default suite, or in the long one."""

from collections.abc import Iterable
from typing import Any

import pytest


def long_but(values: Iterable[Any], *usual: Any) -> list[Any]:
    """Return the parameters of a test that is long except for the `usual` ones; a tuple has several arguments."""
    return _but(pytest.mark.long, values, usual)


def release_but(values: Iterable[Any], *usual: Any) -> list[Any]:
    """Return the same for a test that runs before a release except for the `usual` parameters."""
    return _but(pytest.mark.release, values, usual)


def _but(mark: pytest.MarkDecorator, values: Iterable[Any], usual: tuple[Any, ...]) -> list[Any]:
    return [
        pytest.param(*(one if isinstance(one, tuple) else [one]), marks=() if one in usual else mark) for one in values
    ]

"""Parameters of tests of which only some run in the default suite."""

from collections.abc import Iterable
from typing import Any

import pytest


def long_but(values: Iterable[Any], *usual: Any) -> list[Any]:
    """Return the parameters of a test that is long except for the `usual` ones; a tuple has several arguments."""
    return [
        pytest.param(*(one if isinstance(one, tuple) else [one]), marks=() if one in usual else pytest.mark.long)
        for one in values
    ]

"""Data as JSON inside HTML. All text comes from files that others may have written."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from gpas_cli.words import printable

# Characters that could end the element or begin another one.
_HTML = {ord(character): f"\\u{ord(character):04x}" for character in "<>&"}


def to_json(data: Any) -> str:
    """Return `data` as JSON in ASCII that contains neither markup nor control characters.

    Numbers that are not finite become the strings "nan", "inf", "-inf"; other objects become text.
    """
    return json.dumps(_plain(data), separators=(",", ":"), allow_nan=False).translate(_HTML)


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {printable(str(name)): _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return printable(str(value))

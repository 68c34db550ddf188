"""Plain YAML scalars as values, by the rules of YAML 1.2's core schema, and values as text.

Only `true` and `false` are booleans: `on`, `off`, `yes`, `no` and `1:30:00` are strings, `1e-3` is a number,
and `010` is ten. PyYAML's own resolver follows YAML 1.1, where all of these differ.
"""

from __future__ import annotations

import re

Scalar = str | int | float | bool | None
Label = str | int | float | bool

_CONSTANTS: dict[str, Scalar] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_INTEGER = re.compile(r"[-+]?[0-9]+")
_HEXADECIMAL = re.compile(r"0x[0-9a-fA-F]+")
_OCTAL = re.compile(r"0o[0-7]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_SPECIAL = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
MAX_DIGITS = 40

# Booleans in YAML 1.1 and strings here, with the boolean that error messages suggest.
WORDS_FOR_BOOLEANS = {"yes": "true", "on": "true", "y": "true", "no": "false", "off": "false", "n": "false"}


def resolve(text: str) -> Scalar:
    """Return the value of an unquoted scalar. Raises ValueError for an integer of more than 40 digits."""
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if text[0] not in "+-.0123456789":
        return text
    is_decimal = _INTEGER.fullmatch(text) is not None
    if is_decimal or _HEXADECIMAL.fullmatch(text) or _OCTAL.fullmatch(text):
        if len(text) > MAX_DIGITS:
            raise ValueError(f"a number of {len(text)} digits is too long")
        return int(text, 10 if is_decimal else 0)
    if _FLOAT.fullmatch(text):
        return float(text)
    if _SPECIAL.fullmatch(text):
        return float(text.replace(".", "", 1))
    return text


def spelled(value: Scalar) -> str:
    """Return a value as it is written in a file: `none`, `true`, `0.001`, `pre`."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, str) else repr(value)


def identity(label: Label) -> tuple[bool, Label]:
    """Return a hashable that is equal for equal labels: for 1 and 1.0, but not for true or the string '1'."""
    return isinstance(label, bool), label


def same(a: Label, b: Label) -> bool:
    """Return whether two labels are equal: 1 and 1.0 are, but 1 is neither true nor the string '1'."""
    return identity(a) == identity(b)

"""What a plain YAML scalar means, in the YAML 1.2 core manner, and how a value is written as a label.

Only `true` and `false` are booleans (`on`, `off`, `yes`, `no` are words), `1e-3` is a number, `1:30:00` is a word,
`010` is ten.
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

# Booleans in YAML 1.1, words here; what the writer meant, for the error message.
WORDS_FOR_BOOLEANS = {"yes": "true", "on": "true", "y": "true", "no": "false", "off": "false", "n": "false"}


def resolve(text: str) -> Scalar:
    """The value of an unquoted scalar. Raises ValueError for a number of more than 40 digits."""
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if text[0] not in "+-.0123456789":
        return text
    if len(text) > MAX_DIGITS and (_INTEGER.fullmatch(text) or _HEXADECIMAL.fullmatch(text) or _OCTAL.fullmatch(text)):
        raise ValueError(f"a number of {len(text)} digits is too long")
    if _INTEGER.fullmatch(text):
        return int(text)
    if _HEXADECIMAL.fullmatch(text) or _OCTAL.fullmatch(text):
        return int(text, 0)
    if _FLOAT.fullmatch(text):
        return float(text)
    if _SPECIAL.fullmatch(text):
        return float(text.replace(".", "", 1))
    return text


def spelled(value: Scalar) -> str:
    """A value as one would write it in the file: `none`, `true`, `0.001`, `pre`."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, str) else repr(value)


def identity(label: Label) -> tuple[bool, Label]:
    """What equal labels share, fit for a set: 1 and 1.0 are equal; true and the word '1' are neither."""
    return isinstance(label, bool), label


def same(a: Label, b: Label) -> bool:
    """Whether two labels are equal: 1 is 1.0, but not true and not the word '1'."""
    return identity(a) == identity(b)

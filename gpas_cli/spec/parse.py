"""Convert plain mappings to frozen dataclasses and back, collecting every problem instead of raising the first.

A dataclass field declared with `setting(...)` carries its bounds, so a new field is parsed, checked and explained
without further code. Fields have one of the few types that `supported` accepts.
"""

from __future__ import annotations

import dataclasses
import json
import math
import types
import typing
import unicodedata
from collections.abc import Callable, Collection, Hashable, Mapping
from functools import cache, lru_cache
from typing import Any, TypeVar

from gpas_cli.errors import Problem, closest, nearest

_T = TypeVar("_T")
SettingPath = tuple[str | int, ...]
_MISSING = dataclasses.MISSING
_CONTROL_CATEGORIES = ("Cc", "Zl", "Zp")
# Booleans in YAML 1.1 and strings here, with the boolean that messages suggest.
_BOOLEANS = {"yes": "true", "on": "true", "y": "true", "no": "false", "off": "false", "n": "false"}
_DIRECTION_CHANGES = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"


def setting(
    default: Any = _MISSING,
    *,
    choices: Collection[str] = (),
    low: float | None = None,
    above: float | None = None,
    high: float | None = None,
    omit_default_from_key: bool = False,
    check: Callable[[str], str] | None = None,
    lines: bool = False,
) -> Any:
    """Declare a dataclass field with bounds: low <= value <= high, value > above, or one of `choices`.

    `check` returns what is wrong with a string, or ""; beside it, `choices` are only the usual values. `lines` allows
    line breaks in it.
    `omit_default_from_key` is for fields added after keys were first published: the content key leaves the field out
    while it has its default, so that results obtained before the field existed keep their key.
    """
    bounds = {
        "choices": choices,
        "low": low,
        "above": above,
        "high": high,
        "omit_default_from_key": omit_default_from_key,
        "check": check,
        "lines": lines,
    }
    return dataclasses.field(default=default, metadata=bounds)


def settings_of(selector: str, classes: Callable[[], Mapping[str, type]]) -> Any:
    """Declare a field with the settings that belong to the value of the field `selector`: an instance of the dataclass
    of that name, None if it has no settings.

    They are written, keyed and described beside the other fields. Settings of a value that is not chosen are refused.
    """
    return dataclasses.field(default=None, metadata={"selector": selector, "classes": classes})


def setting_classes(cls: type) -> dict[str, tuple[str, type]]:
    """Return the settings that depend on other fields of `cls`: name -> (field that selects them, their dataclass)."""
    found = {}
    for own in _dependent(cls):
        for part in own.metadata["classes"]().values():
            names = {f.name: (own.metadata["selector"], part) for f in dataclasses.fields(part)}
            found.update(names)
    return found


def own_fields(cls: type) -> list[dataclasses.Field[Any]]:
    """Return the fields of a dataclass that are settings themselves, not those for settings of other classes."""
    return [f for f in dataclasses.fields(typing.cast(Any, cls)) if "selector" not in f.metadata]


def _dependent(cls: Hashable) -> list[dataclasses.Field[Any]]:
    return [f for f in dataclasses.fields(typing.cast(Any, cls)) if "selector" in f.metadata]


@cache
def _hints(cls: Hashable) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def as_json(values: Mapping[str, Any]) -> str:
    """Return `values` as JSON, a cache key in which 1, 1.0, true and "1" differ, and 0.0 and -0.0."""
    return json.dumps(values, default=repr)


def build(
    cls: type[_T], values: Mapping[str, Any], path: SettingPath, problems: list[Problem],
    named: Mapping[str, Any] | None = None,
) -> _T | None:  # fmt: skip
    """Return an instance of the dataclass `cls` from `values`, or None after adding to `problems`.

    Equal values give the same instance. named: the sections that `values` may name, if the class has `resolved`.
    """
    if resolve := getattr(cls, "resolved", None):
        values = resolve(values, named or {}, problems)
    made, found = _build(typing.cast(Hashable, cls), as_json(values))
    problems.extend(problem.under(*path) for problem in found)
    return typing.cast("_T | None", made)


@lru_cache(maxsize=4096)  # a large grid has only a few different sections
def _build(cls: Hashable, values_json: str) -> tuple[Any, tuple[Problem, ...]]:
    problems: list[Problem] = []
    fields = {f.name: f for f in own_fields(typing.cast(Any, cls))}
    # A class may have defaults that depend on other values.
    values = getattr(cls, "completed", dict)(json.loads(values_json))
    dependent = {f.name: _build_dependent(f, fields, values, problems) for f in _dependent(cls)}
    misspelt = set()  # no message says that these are absent
    for name in values:
        if name not in fields:
            known = (*fields, *setting_classes(typing.cast(Any, cls)))
            misspelt.add(closest(name, known))
            problems.append(Problem((name,), f"unknown key '{name}'; {nearest(name, known)}", unknown=True))
    hints = _hints(cls)
    kwargs = {}
    for name, f in fields.items():
        if name in values:
            kwargs[name] = _convert(hints[name], values[name], f.metadata, (name,), problems)
        elif f.default is _MISSING and f.default_factory is _MISSING and name not in misspelt:
            problems.append(Problem((name,), "is required", absent=True))
    made = None if problems else typing.cast(Any, cls)(**kwargs, **dependent)
    return made, tuple(problems)


def _build_dependent(
    own: dataclasses.Field[Any], fields: Mapping[str, dataclasses.Field[Any]], values: dict[str, Any],
    problems: list[Problem],
) -> Any:  # fmt: skip
    """Remove the settings of `own` from `values`, and return them as an instance of the class that is selected."""
    selector: str = own.metadata["selector"]
    classes: Mapping[str, type] = own.metadata["classes"]()
    chosen = values.get(selector, fields[selector].default)
    cls = classes.get(chosen) if isinstance(chosen, str) else None
    read = {f.name for f in dataclasses.fields(cls)} if cls else set()
    for name in [name for name in values if name not in fields and name not in read]:
        readers = [other for other, part in classes.items() if name in {f.name for f in dataclasses.fields(part)}]
        if readers:
            problems.append(Problem((name,), f"has no effect: {selector} is {chosen}; {' or '.join(readers)} reads it"))
            del values[name]
    settings = {name: values.pop(name) for name in list(values) if name in read}
    return build(cls, settings, (), problems) if cls and read else None


def _convert(hint: Any, value: Any, bounds: Mapping[str, Any], path: SettingPath, problems: list[Problem]) -> Any:
    options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    if value is None and type(None) in options:
        return None
    item = (*typing.get_args(hint), None)[0]
    if dataclasses.is_dataclass(item) and isinstance(value, list) and all(isinstance(one, dict) for one in value):
        cls = typing.cast(type, item)
        return tuple(build(cls, one, (*path, str(one.get("name", i))), problems) for i, one in enumerate(value))
    for option in options:
        converted = _as(option, value)
        if converted is not _MISSING:
            each = converted if isinstance(converted, tuple) else (converted,)
            problems.extend(Problem(path, fault, alone=True) for one in each if (fault := _violation(one, bounds)))
            return converted
    wanted = " or ".join(_describe(o) for o in options if o is not type(None))
    numbers = [one for one in (value if isinstance(value, list) else [value]) if type(one) in (int, float)]
    fault = next((fault for one in numbers if (fault := _violation(str(one), bounds))), "") if str in options else ""
    remedy = f"; put it in quotes: '{value}'" if str in options and numbers == [value] else ""
    remedy = f"; write [{value}]" if isinstance(value, str) and tuple[str, ...] in options else remedy
    if bool in options and (boolean := _BOOLEANS.get(str(value).lower())):
        remedy = f"; write {boolean}"
    written = json.dumps(value) if value is None or isinstance(value, bool) else repr(value)  # as YAML has it
    problems.append(Problem(path, fault or f"{written} is not {wanted}{remedy}", alone=True))
    return None


def _as(option: Any, value: Any) -> Any:
    """Return `value` as an `option`, or MISSING. A bool is never a number, 1 is a float, 1e3 is a whole number."""
    if typing.get_origin(option) is tuple:
        item = typing.get_args(option)[0]
        converted = [_as(item, v) for v in value] if isinstance(value, list | tuple) else [_MISSING]
        return _MISSING if _MISSING in converted else tuple(converted)
    if option is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if option is int and isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    if isinstance(value, bool) and option is not bool:
        return _MISSING
    return value if isinstance(value, option) else _MISSING


def supported(hint: Any) -> bool:
    """Return whether a field may have this type: bool, int, float, str, a tuple of one of them, or a union of these."""
    if isinstance(hint, types.UnionType):
        return all(option is type(None) or supported(option) for option in typing.get_args(hint))
    if typing.get_origin(hint) is tuple:
        return typing.get_args(hint)[1:] == (...,) and supported(typing.get_args(hint)[0])
    return hint in (bool, int, float, str)


def _describe(option: Any) -> str:
    if typing.get_origin(option) is tuple:
        item = typing.get_args(option)[0]
        items = typing.get_args(item) if isinstance(item, types.UnionType) else (item,)
        return "a list of " + " or ".join(f"{_describe(each).split(' ', 1)[1]}s" for each in items)
    names = {bool: "true or false", int: "a whole number", float: "a number", str: "a string"}
    return names.get(option, f"a {getattr(option, '__name__', option).lower()}")


def _violation(value: Any, bounds: Mapping[str, Any]) -> str:
    choices = bounds.get("choices") or ()
    check: Callable[[str], str] | None = bounds.get("check")
    if choices and check is None and isinstance(value, str) and value not in choices:
        return f"unknown value '{value}'; {nearest(value, choices)}"
    if isinstance(value, str) and (found := control_character(value, "\n\t" if bounds.get("lines") else "")):
        return "is more than one line" if found == "U+000A" else f"has the control character {found}"
    if check is not None and isinstance(value, str):
        return check(value)
    if not isinstance(value, int | float) or isinstance(value, bool):
        return ""
    low, above, high = bounds.get("low"), bounds.get("above"), bounds.get("high")
    if not math.isfinite(value):
        return f"{value} is not a finite number"
    if low is not None and value < low:
        return f"{value} is too small; at least {low:g}"
    if above is not None and value <= above:
        return f"{value} is too small; it must be greater than {above:g}"
    if high is not None and value > high:
        return f"{value} is too large; at most {high:.10g}"
    return ""


def control_character(text: str, allowed: str = "") -> str:
    """Return the first character that could end a line or change what a terminal shows, such as U+001B; "" if none.

    These are the control characters of Unicode, line and paragraph separators, and changes of text direction.
    """
    if text.isprintable():  # fast, and true for almost every string
        return ""
    for character in text:
        if character not in allowed and (
            unicodedata.category(character) in _CONTROL_CATEGORIES or character in _DIRECTION_CHANGES
        ):
            return f"U+{ord(character):04X}"
    return ""


def plain(value: Any, *, for_key: bool = False) -> Any:
    """Return a dataclass as JSON-ready mappings and lists; with `for_key`, without the defaults that keys omit."""
    if isinstance(value, tuple | list):
        return [plain(v, for_key=for_key) for v in value]
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return value
    found: dict[str, Any] = {}
    for f in dataclasses.fields(value):
        own = getattr(value, f.name)
        if "selector" in f.metadata:
            found.update(plain(own, for_key=for_key) if own is not None else {})
        elif not (for_key and f.metadata.get("omit_default_from_key") and own == f.default):
            found[f.name] = plain(own, for_key=for_key)
    return found


def flat(mapping: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return a nested mapping as one with dotted names, in order."""
    found: dict[str, Any] = {}
    for name, value in mapping.items():
        found |= flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return found

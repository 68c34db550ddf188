"""Read YAML into a tree of nodes that know their line and column. No file can execute code, loop or grow unbounded.

Mappings with distinct keys, lists, scalars, anchors, aliases and merge keys are allowed. Tags, a second document, an
alias inside its own anchor, and nesting or alias expansion deeper or larger than any grid needs are refused.

Unquoted scalars follow the core schema of YAML 1.2: only `true` and `false` are booleans, `on`, `off`, `yes`, `no` and
`1:30:00` are strings, `1e-3` is a number, and `010` is ten. PyYAML's own resolver follows YAML 1.1, where all of these
differ.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from gpas_cli.errors import GpasError, InvalidExperiments, Problem
from gpas_cli.spec.parse import control_character

_Scalar = str | int | float | bool | None
Label = str | int | float | bool

_CONSTANTS: dict[str, _Scalar] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_INTEGER = re.compile(r"[-+]?[0-9]+")
_HEXADECIMAL = re.compile(r"0x[0-9a-fA-F]+")
_OCTAL = re.compile(r"0o[0-7]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_SPECIAL = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_MAX_DIGITS = 40
_MAX_BYTES = 4_000_000
_MAX_DEPTH = 24
_MAX_NODES = 500_000
# libyaml is about ten times faster than the parser in Python; not every build of PyYAML has it.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def resolve(text: str) -> _Scalar:
    """Return the value of an unquoted scalar. Raises ValueError for an integer of more than 40 digits."""
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if text[0] not in "+-.0123456789":
        return text
    is_decimal = _INTEGER.fullmatch(text) is not None
    if is_decimal or _HEXADECIMAL.fullmatch(text) or _OCTAL.fullmatch(text):
        if len(text) > _MAX_DIGITS:
            raise ValueError(f"a number of {len(text)} digits is too long")
        return int(text, 10 if is_decimal else 0)
    if _FLOAT.fullmatch(text):
        return float(text)
    if _SPECIAL.fullmatch(text):
        return float(text.replace(".", "", 1))
    return text


def spelled(value: _Scalar) -> str:
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


class Mark(NamedTuple):
    """A place in a file. Lines and columns count from 1; line 0 stands for the file as a whole."""

    file: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}" if self.line else self.file


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """A value and its place in the file.

    `depth` and `count` are the levels and the number of nodes of the tree below, with every alias expanded.
    """

    value: _Scalar | tuple[Node, ...] | dict[str, Node]
    mark: Mark
    key: Mark | None = None  # the place of the mapping key in front of the value
    depth: int = 1
    count: int = 1
    span: tuple[int, int] | None = None  # where a scalar, with its anchor, begins and ends in the text, in characters

    def plain(self) -> Any:
        """Return the value as dicts, lists and scalars, without places."""
        if isinstance(self.value, dict):
            return {name: node.plain() for name, node in self.value.items()}
        if isinstance(self.value, tuple):
            return [node.plain() for node in self.value]
        return self.value


def mapping(children: dict[str, Node], mark: Mark, key: Mark | None = None) -> Node:
    """Return a mapping node. Raises InvalidExperiments if it is too deep or too large."""
    depth, count = _extent(children.values(), mark)
    return Node(children, mark, key, depth, count)


def placed(node: Node, mark: Mark) -> Node:
    """Return the tree with all its values at one place."""
    if isinstance(node.value, dict):
        return mapping({name: placed(child, mark) for name, child in node.value.items()}, mark, mark)
    value = tuple(placed(item, mark) for item in node.value) if isinstance(node.value, tuple) else node.value
    return replace(node, value=value, mark=mark, key=mark)


def read_document(path: Path) -> Node:
    """Read the YAML document in a file. Raises GpasError if it is unreadable, InvalidExperiments if it is not valid."""
    here = Path.cwd()
    absolute = path.absolute()
    name = str(absolute.relative_to(here) if absolute.is_relative_to(here) else absolute)
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise GpasError(f"{name}: {error.strerror}") from None
    if len(raw) > _MAX_BYTES:
        raise GpasError(f"{name}: {len(raw):,} bytes; at most {_MAX_BYTES:,}")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = raw[: error.start]
        line = before.count(b"\n") + 1
        column = error.start - before.rfind(b"\n")
        raise _invalid(Mark(name, line, column), "is not UTF-8 text") from None
    return parse_document(text, name)


def parse_document(text: str, name: str) -> Node:
    """Parse `text` as one YAML document. `name` is the file's name in error messages. Raises InvalidExperiments."""
    try:
        return _Composer(yaml.parse(text, Loader=_LOADER), name).document()
    except yaml.MarkedYAMLError as error:
        raise _syntax_error(error, text, name) from None
    except (yaml.YAMLError, ValueError) as error:
        raise _invalid(Mark(name, 1, 1), f"is not YAML: {str(error).splitlines()[0]}") from None


def _syntax_error(error: yaml.MarkedYAMLError, text: str, name: str) -> InvalidExperiments:
    """Return the error that a user sees for one of the YAML parser's."""
    mark = error.problem_mark or error.context_mark
    place = Mark(name, mark.line + 1, mark.column + 1) if mark else Mark(name, 1, 1)
    begun = error.context_mark.line + 1 if error.context_mark else place.line
    context = f"{error.context} that begins on line {begun}" if begun < place.line else error.context
    reason = "; ".join(part for part in (context, error.problem) if part)
    lines = text.split("\n")[max(0, place.line - 2) : place.line]  # the one above and the one at fault
    if re.match(r"\s*\t", lines[-1]):
        reason = "the line is indented with a tab; use spaces"
    elif any("\u00a0" in line for line in lines):
        reason += "; this line or the one above has a no-break space (U+00A0), write a plain one"
    return _invalid(place, f"is not YAML: {reason}")


def _invalid(mark: Mark, message: str) -> InvalidExperiments:
    return InvalidExperiments([Problem((), message, str(mark))])


def _too_deep(mark: Mark) -> InvalidExperiments:
    return _invalid(mark, f"is nested more than {_MAX_DEPTH} levels deep")


def _extent(children: Iterable[Node], mark: Mark) -> tuple[int, int]:
    """Return the depth and the number of nodes of a node at `mark` with these children."""
    depth = 1
    count = 1
    for child in children:
        count += child.count
        if child.depth >= depth:
            depth = child.depth + 1
    if depth > _MAX_DEPTH:
        raise _too_deep(mark)
    if count > _MAX_NODES:
        raise _invalid(mark, f"its aliases expand to more than {_MAX_NODES:,} values")
    return depth, count


class _Composer:
    """Builds nodes from the parser's events.

    `yaml.compose` would build a tree as well, but without the places of aliases and without telling explicit tags from
    implied ones; it refuses to define an anchor twice, and crashes the interpreter on input that is nested deeply.
    Here the depth is checked on the way down.
    """

    def __init__(self, events: Iterator[Any], name: str):
        self.events = events
        self.name = name
        self.anchors: dict[str, Node | None] = {}  # None while the anchored node is being built
        self.level = 0
        self.duplicates: list[Problem] = []

    def document(self) -> Node:
        """Return the root of the only document. Raises InvalidExperiments, for all duplicate keys at once."""
        next(self.events)  # stream start
        if isinstance(next(self.events), yaml.StreamEndEvent):
            raise _invalid(Mark(self.name, 1, 1), "is empty; `gpas init` writes a file to start from")
        root = self.node(next(self.events))
        next(self.events)  # document end
        after = next(self.events)
        if not isinstance(after, yaml.StreamEndEvent):
            raise _invalid(self.mark(after), "a second document begins; write one document to a file")
        if self.duplicates:
            raise InvalidExperiments(self.duplicates)
        return root

    def mark(self, event: Any) -> Mark:
        return Mark(self.name, event.start_mark.line + 1, event.start_mark.column + 1)

    def node(self, event: Any) -> Node:
        """Return the node that begins with `event`."""
        mark = self.mark(event)
        if isinstance(event, yaml.AliasEvent):
            return self.anchored(str(event.anchor), mark)
        if event.tag is not None:
            raise _invalid(mark, f"the tag '{event.tag}' is not allowed; write a plain value")
        if event.anchor is not None:
            self.anchors[event.anchor] = None
        self.level += 1
        if self.level > _MAX_DEPTH:
            raise _too_deep(mark)
        node = self.content(event, mark)
        self.level -= 1
        if event.anchor is not None:
            self.anchors[event.anchor] = node
        return node

    def anchored(self, anchor: str, mark: Mark) -> Node:
        """Return the node that the alias at `mark` refers to."""
        if anchor not in self.anchors:
            raise _invalid(mark, f"the alias '*{anchor}' has no anchor '&{anchor}' before it")
        node = self.anchors[anchor]
        if node is None:
            raise _invalid(mark, f"the alias '*{anchor}' is inside its own anchor")
        return node

    def content(self, event: Any, mark: Mark) -> Node:
        if isinstance(event, yaml.ScalarEvent):
            first, last = event.start_mark, event.end_mark
            return Node(self.scalar(event, mark), mark, span=(first.index, last.index) if first and last else None)
        if isinstance(event, yaml.SequenceStartEvent):
            items = tuple(self.items())
            return Node(items, mark, None, *_extent(items, mark))
        return mapping(self.pairs(), mark)

    def scalar(self, event: Any, mark: Mark) -> _Scalar:
        if character := control_character(event.value, allowed="\n\t"):
            raise _invalid(mark, f"has the control character {character}; write plain text")
        is_quoted = not event.implicit[0]
        if is_quoted:
            return str(event.value)
        try:
            return resolve(event.value)
        except ValueError as error:
            raise _invalid(mark, str(error)) from None

    def items(self) -> Iterator[Node]:
        while not isinstance(event := next(self.events), yaml.SequenceEndEvent):
            yield self.node(event)

    def pairs(self) -> dict[str, Node]:
        """Return the values of a mapping by key. Its own keys win over merged ones; duplicates are collected."""
        own: dict[str, Node] = {}
        merged: dict[str, Node] = {}
        while not isinstance(event := next(self.events), yaml.MappingEndEvent):
            mark = self.mark(event)
            name = self.key(event, mark)
            value = self.node(next(self.events))
            if name == "<<" and event.implicit[0]:
                merged = {**_merged(value), **merged}
            elif name in own:
                first = own[name].key
                remedy = ": move its entries under that line" if isinstance(value.value, dict) else ""
                where = f"; first on line {first.line}{remedy}" if first else ""
                self.duplicates.append(Problem((), f"the key '{name}' is given twice{where}", str(mark)))
            else:
                own[name] = Node(value.value, value.mark, mark, value.depth, value.count, value.span)
        return {**merged, **own}

    def key(self, event: Any, mark: Mark) -> str:
        if not isinstance(event, yaml.ScalarEvent):
            raise _invalid(mark, "a key must be a string")
        if event.tag is not None or event.anchor is not None:
            raise _invalid(mark, "a key takes neither a tag nor an anchor")
        if character := control_character(event.value):
            raise _invalid(mark, f"the key has the control character {character}; write plain text")
        return str(event.value)


def _merged(node: Node) -> dict[str, Node]:
    """Return the entries that `<<: *a` or `<<: [*a, *b]` adds to a mapping. Of several mappings the first wins."""
    sources = node.value if isinstance(node.value, tuple) else (node,)
    found: dict[str, Node] = {}
    for source in sources:
        if not isinstance(source.value, dict):
            raise _invalid(node.mark, "a merge key '<<' takes a mapping or a list of mappings")
        found = {**source.value, **found}
    return found

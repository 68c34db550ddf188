"""YAML text -> a tree of nodes with line and column. Nothing in a file can execute, loop, or grow without bound.

Allowed: mappings with distinct keys, lists, scalars, anchors, aliases, merge keys. Refused: tags, several documents,
an alias inside its own anchor, nesting or alias expansion beyond what a grid could need.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from gpas_cli.errors import GpasError, InvalidExperiments, Problem
from gpas_cli.grid.scalar import Scalar, resolve
from gpas_cli.spec.parse import control_character

MAX_BYTES = 4_000_000
MAX_DEPTH = 24
MAX_NODES = 500_000

# libyaml is about ten times faster than the pure Python parser; not every build of PyYAML has it.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class Mark(NamedTuple):
    """A place in a file; lines and columns count from 1. Line 0: the whole of what `file` names."""

    file: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}" if self.line else self.file


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """A value and where it stands. `key` is the place of the mapping key it follows; `depth` and `count` bound the
    tree below it with every alias written out."""

    value: Scalar | tuple[Node, ...] | dict[str, Node]
    mark: Mark
    key: Mark | None = None
    depth: int = 1
    count: int = 1

    def plain(self) -> Any:
        """The value without its positions."""
        if isinstance(self.value, dict):
            return {name: node.plain() for name, node in self.value.items()}
        if isinstance(self.value, tuple):
            return [node.plain() for node in self.value]
        return self.value


def mapping(children: dict[str, Node], mark: Mark, key: Mark | None = None) -> Node:
    """A mapping node of `children`."""
    return Node(children, mark, key, *_extent(children.values(), mark))


def read_document(path: Path) -> Node:
    """The tree of the one YAML document in the file. Raises InvalidExperiments, or GpasError if it is unreadable."""
    name = _display(path)
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise GpasError(f"{name}: {error.strerror}") from None
    if len(raw) > MAX_BYTES:
        raise GpasError(f"{name}: {len(raw):,} bytes; at most {MAX_BYTES:,}")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = raw[: error.start]
        line, column = before.count(b"\n") + 1, error.start - (before.rfind(b"\n") + 1) + 1
        raise _fault(Mark(name, line, column), "is not UTF-8 text") from None
    return parse_document(text, name)


def parse_document(text: str, name: str) -> Node:
    """The tree of the one YAML document in `text`; `name` is what error messages call the file."""
    try:
        return _Composer(yaml.parse(text, Loader=_LOADER), name).document()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = Mark(name, mark.line + 1, mark.column + 1) if mark else Mark(name, 1, 1)
        reason = "; ".join(part for part in (error.context, error.problem) if part)
        if mark and _tab_indents(text, mark.line):
            reason = "the line is indented with a tab; use spaces"
        raise _fault(place, f"is not YAML: {reason}") from None
    except (yaml.YAMLError, ValueError) as error:
        raise _fault(Mark(name, 1, 1), f"is not YAML: {str(error).splitlines()[0]}") from None


def _tab_indents(text: str, line: int) -> bool:
    """Whether there is a tab before the first other character of line `line`, counted from 0."""
    content = "".join(text.split("\n")[line : line + 1])
    return "\t" in content[: len(content) - len(content.lstrip())]


def _display(path: Path) -> str:
    """The path as a terminal can open it: relative where the file lies below the working directory."""
    here = Path.cwd()
    absolute = path.absolute()
    return str(absolute.relative_to(here) if absolute.is_relative_to(here) else absolute)


def _fault(mark: Mark, message: str) -> InvalidExperiments:
    return InvalidExperiments([Problem((), message, str(mark))])


def _extent(children: Any, mark: Mark) -> tuple[int, int]:
    depth = count = 1
    for child in children:
        depth = max(depth, child.depth + 1)
        count += child.count
    if depth > MAX_DEPTH:
        raise _fault(mark, f"is nested more than {MAX_DEPTH} levels deep")
    if count > MAX_NODES:
        raise _fault(mark, f"its aliases expand to more than {MAX_NODES:,} values")
    return depth, count


class _Composer:
    """Events -> nodes. The depth is checked on the way down, before recursion can hurt."""

    def __init__(self, events: Iterator[Any], name: str):
        self.events, self.name = events, name
        self.anchors: dict[str, Node | None] = {}
        self.level = 0
        self.duplicates: list[Problem] = []

    def document(self) -> Node:
        next(self.events)  # stream start
        if isinstance(next(self.events), yaml.StreamEndEvent):
            raise _fault(Mark(self.name, 1, 1), "is empty; `gpas init` writes a file to start from")
        root = self.node(next(self.events))
        next(self.events)  # document end
        after = next(self.events)
        if not isinstance(after, yaml.StreamEndEvent):
            raise _fault(self.mark(after), "a second document begins; write one document to a file")
        if self.duplicates:
            raise InvalidExperiments(self.duplicates)
        return root

    def mark(self, event: Any) -> Mark:
        return Mark(self.name, event.start_mark.line + 1, event.start_mark.column + 1)

    def node(self, event: Any) -> Node:
        mark = self.mark(event)
        if isinstance(event, yaml.AliasEvent):
            return self.alias(event, mark)
        if event.tag is not None:
            raise _fault(mark, f"the tag '{event.tag}' is not allowed; write a plain value")
        if event.anchor is not None:
            self.anchors[event.anchor] = None  # unfinished: an alias to it from within is a loop
        self.level += 1
        if self.level > MAX_DEPTH:
            raise _fault(mark, f"is nested more than {MAX_DEPTH} levels deep")
        node = self.content(event, mark)
        self.level -= 1
        if event.anchor is not None:
            self.anchors[event.anchor] = node
        return node

    def content(self, event: Any, mark: Mark) -> Node:
        if isinstance(event, yaml.ScalarEvent):
            return Node(self.scalar(event, mark), mark)
        if isinstance(event, yaml.SequenceStartEvent):
            items = tuple(self.until(yaml.SequenceEndEvent))
            return Node(items, mark, None, *_extent(items, mark))
        return mapping(self.pairs(), mark)

    def scalar(self, event: Any, mark: Mark) -> Scalar:
        if character := control_character(event.value, allowed="\n\t"):
            raise _fault(mark, f"has the control character {character}; write plain text")
        if not event.implicit[0]:
            return str(event.value)
        try:
            return resolve(event.value)
        except ValueError as error:
            raise _fault(mark, str(error)) from None

    def alias(self, event: Any, mark: Mark) -> Node:
        if event.anchor not in self.anchors:
            raise _fault(mark, f"the alias '*{event.anchor}' has no anchor '&{event.anchor}' before it")
        node = self.anchors[event.anchor]
        if node is None:
            raise _fault(mark, f"the alias '*{event.anchor}' stands inside its own anchor")
        return node

    def until(self, end: type) -> Iterator[Node]:
        while not isinstance(event := next(self.events), end):
            yield self.node(event)

    def pairs(self) -> dict[str, Node]:
        own: dict[str, Node] = {}
        merged: dict[str, Node] = {}
        while not isinstance(event := next(self.events), yaml.MappingEndEvent):
            mark = self.mark(event)
            name = self.key(event, mark)
            value = self.node(next(self.events))
            if name == "<<" and event.implicit[0]:
                merged = {**_merge_source(value), **merged}
            elif name in own:
                first = own[name].key
                told = f"; first on line {first.line}" if first else ""
                self.duplicates.append(Problem((), f"the key '{name}' is given twice{told}", str(mark)))
            else:
                own[name] = replace(value, key=mark)
        return {**merged, **own}

    def key(self, event: Any, mark: Mark) -> str:
        if not isinstance(event, yaml.ScalarEvent):
            raise _fault(mark, "a key must be a word")
        if event.tag is not None or event.anchor is not None:
            raise _fault(mark, "a key takes neither a tag nor an anchor")
        if character := control_character(event.value):
            raise _fault(mark, f"the key has the control character {character}; write plain text")
        return str(event.value)


def _merge_source(node: Node) -> dict[str, Node]:
    """What `<<: *a` or `<<: [*a, *b]` brings; of several, the first wins."""
    if isinstance(node.value, dict):
        return node.value
    if isinstance(node.value, tuple) and all(isinstance(item.value, dict) for item in node.value):
        found: dict[str, Node] = {}
        for item in node.value:
            assert isinstance(item.value, dict)
            found = {**item.value, **found}
        return found
    raise _fault(node.mark, "a merge key '<<' takes a mapping or a list of mappings")

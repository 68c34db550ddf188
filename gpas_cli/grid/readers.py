"""Read parts of a file as mappings, lists, texts and dataclasses. Invalid parts are reported and omitted."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from gpas_cli.errors import Problem, closest, nearest
from gpas_cli.grid.document import Mark, Node, mapping, spelled
from gpas_cli.grid.settings import located
from gpas_cli.spec import parse
from gpas_cli.spec.parse import SettingPath, control_character

_T = TypeVar("_T")


@dataclass(frozen=True)
class Part:
    """A part of a file while it is read: its node, its path, and where its problems are collected.

    node: None for an absent part. mark: its place, the place of the mapping around it if it is absent.
    """

    node: Node | None
    path: SettingPath
    problems: list[Problem]
    mark: Mark

    @property
    def key(self) -> Mark:
        """The place of the key in front of the part."""
        return (self.node.key if self.node else None) or self.mark

    @property
    def value(self) -> Any:
        """The value of the part's node, None for an absent part."""
        return self.node.value if self.node else None

    def report(self, message: str, at: Mark | None = None, *below: str) -> None:
        """Add a problem of the part, or of the entry `below` it, at the part's place or `at` another one."""
        self.problems.append(Problem((*self.path, *below), message, str(at or self.mark)))

    def holding(self, node: Node) -> Part:
        """Return the part with another node in its place."""
        return Part(node, self.path, self.problems, node.mark)

    def entries(self, known: Collection[str] = ()) -> Entries:
        """Return the entries of a mapping, only those in `known` if given; none for an absent part.

        A misspelt entry is read as the one that is meant, so that no message is about the absence of that one.
        """
        found = Entries(self)
        if self.node is not None and not isinstance(self.value, dict):
            self.report(f"{_shown(self.node)} is not a mapping")
        elif self.node is not None:
            for name, child in self.value.items():
                if known and name not in known:
                    self.report(f"unknown key '{name}'; {nearest(name, known)}", child.key or child.mark, name)
                    name = closest(name, set(known) - self.value.keys())
                if name or not known:
                    found[name] = Part(child, (*self.path, name), self.problems, child.mark)
        return found

    def items(self) -> list[Part]:
        """Return the items of a list, which have its path; none for an absent part."""
        if self.node is None:
            return []
        if not isinstance(self.value, tuple):
            item = "..." if self.value is None or isinstance(self.value, dict) else self.node.plain()
            self.report(f"{_shown(self.node)} is not a list; write [{item}]")
            return []
        return [self.holding(item) for item in self.value]

    def text(self, default: str = "") -> str:
        """Return a text of one line; the default if it is absent or invalid."""
        if self.node is None:
            return default
        if not isinstance(self.value, str) or not self.value:
            self.report(f"{_shown(self.node)} is not a text")
        elif control_character(self.value):
            self.report("is more than one line")
        else:
            return self.value
        return default

    def sentence(self, default: str = "") -> str:
        """Return a text, with line breaks replaced by spaces."""
        if self.node is not None and isinstance(self.value, str):
            return self.holding(replace(self.node, value=" ".join(self.value.split()))).text(default)
        return self.text(default)

    def texts(self) -> tuple[str, ...]:
        """Return the texts of one text or a list of texts."""
        if isinstance(self.value, str):
            return (self.value,)
        return tuple(item.text() for item in self.items())

    def text_mapping(self) -> dict[str, str]:
        """Return a mapping of texts; numbers and booleans as they are written."""
        found = {}
        for name, child in self.entries().items():
            if isinstance(child.value, dict | tuple):
                child.report(f"{_shown(child.node)} is not a text")
            else:
                found[name] = spelled(child.value)
        return found

    def instance(self, cls: type[_T], like: Mapping[str, _T] | None = None) -> _T | None:
        """Return an instance of the dataclass `cls`, or None after adding to the problems; None for an absent part.

        A mapping with `like: WORD` extends the entry WORD of `like`.
        """
        entries = self.entries()
        if self.node is None or not isinstance(self.value, dict):
            return None
        values: Mapping[str, Any] = self.node.plain()
        if like is not None and "like" in values:
            start = values["like"]
            if not isinstance(start, str) or start not in like:
                entries["like"].report(f"unknown name {start!r}; {nearest(start, like)}")
                return None
            values = {**parse.plain(like[start]), **{name: own for name, own in values.items() if name != "like"}}
        found: list[Problem] = []
        made = parse.build(cls, values, (), found, like)
        for problem in found:
            placed = located(problem, self.node, self.mark)
            self.problems.append(replace(placed, path=(*self.path, *problem.path)))
        return made


class Entries(dict[str, Part]):
    """The entries of a mapping by name. An entry that is not there reads as an absent part."""

    def __init__(self, part: Part) -> None:
        super().__init__()
        self.part = part

    def __missing__(self, name: str) -> Part:
        return Part(None, (*self.part.path, name), self.part.problems, self.part.mark)

    @property
    def nodes(self) -> dict[str, Node]:
        """The nodes of the entries that are there."""
        return {name: part.node for name, part in self.items() if part.node is not None}

    def without(self, names: Collection[str]) -> Part:
        """Return the mapping without some of its entries."""
        rest = {name: node for name, node in self.nodes.items() if name not in names}
        return self.part.holding(mapping(rest, self.part.mark, self.part.key))


def root_of(node: Node | None, problems: list[Problem]) -> Part:
    """Return the root of a document, to be read."""
    return Part(node, (), problems, node.mark if node else Mark("", 0, 0))


def _shown(node: Node | None) -> str:
    if node is None or node.value is None:
        return "nothing"
    if isinstance(node.value, dict):
        return "a mapping"
    return "a list" if isinstance(node.value, tuple) else f"'{node.plain()}'"

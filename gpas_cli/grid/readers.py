"""Read nodes as mappings, lists, texts and dataclasses. Invalid parts are reported and omitted."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from gpas_cli.errors import Problem, nearest
from gpas_cli.grid.document import Mark, Node, spelled
from gpas_cli.grid.settings import located
from gpas_cli.spec import parse
from gpas_cli.spec.parse import SettingPath, control_character

T = TypeVar("T")


def add_problem(problems: list[Problem], path: SettingPath, message: str, at: Node | Mark) -> None:
    """Add one problem at a position in the file."""
    problems.append(Problem(path, message, str(at.mark if isinstance(at, Node) else at)))


def read_mapping(
    node: Node | None, path: SettingPath, problems: list[Problem], known: Collection[str] = ()
) -> dict[str, Node]:
    """Return the entries of a mapping, only those in `known` if given; none for an absent node."""
    if node is None:
        return {}
    if not isinstance(node.value, dict):
        add_problem(problems, path, f"{_shown(node)} is not a mapping", node)
        return {}
    if not known:
        return node.value
    for name, child in node.value.items():
        if name not in known:
            add_problem(
                problems, (*path, name), f"unknown key '{name}'; {nearest(name, known)}", child.key or child.mark
            )
    return {name: child for name, child in node.value.items() if name in known}


def read_list(node: Node | None, path: SettingPath, problems: list[Problem]) -> tuple[Node, ...]:
    """Return the items of a list; none for an absent node."""
    if node is None:
        return ()
    if not isinstance(node.value, tuple):
        item = "..." if node.value is None or isinstance(node.value, dict) else node.plain()
        add_problem(problems, path, f"{_shown(node)} is not a list; write [{item}]", node)
        return ()
    return node.value


def read_text(node: Node | None, path: SettingPath, problems: list[Problem], default: str = "") -> str:
    """Return a text of one line; the default if it is absent or invalid."""
    if node is None:
        return default
    if not isinstance(node.value, str) or not node.value:
        add_problem(problems, path, f"{_shown(node)} is not a text", node)
    elif control_character(node.value):
        add_problem(problems, path, "is more than one line", node)
    else:
        return node.value
    return default


def read_sentence(node: Node | None, path: SettingPath, problems: list[Problem], default: str = "") -> str:
    """Return a text, with line breaks replaced by spaces."""
    if node is not None and isinstance(node.value, str) and node.value:
        node = replace(node, value=" ".join(node.value.split()))
    return read_text(node, path, problems, default)


def read_texts(node: Node | None, path: SettingPath, problems: list[Problem]) -> tuple[str, ...]:
    """Return the texts of one text or a list of texts."""
    if node is not None and isinstance(node.value, str):
        return (node.value,)
    return tuple(read_text(item, path, problems) for item in read_list(node, path, problems))


def read_text_mapping(node: Node | None, path: SettingPath, problems: list[Problem]) -> dict[str, str]:
    """Return a mapping of texts; numbers and booleans as they are written."""
    found = {}
    for name, child in read_mapping(node, path, problems).items():
        if isinstance(child.value, dict | tuple):
            add_problem(problems, (*path, name), f"{_shown(child)} is not a text", child)
        else:
            found[name] = spelled(child.value)
    return found


def read_dataclass(
    cls: type[T], node: Node, path: SettingPath, problems: list[Problem], like: Mapping[str, T] | None = None
) -> T | None:
    """Return an instance of the dataclass `cls`, or None after adding to `problems`.

    A mapping with `like: WORD` extends the entry WORD of `like`.
    """
    values: dict[str, Any] = {name: child.plain() for name, child in read_mapping(node, path, problems).items()}
    if not isinstance(node.value, dict):
        return None
    if like is not None and "like" in values:
        start = values.pop("like")
        if not isinstance(start, str) or start not in like:
            add_problem(
                problems, (*path, "like"), f"unknown name {start!r}; {nearest(start, like)}", node.value["like"]
            )
            return None
        values = {**parse.plain(like[start]), **values}
    found: list[Problem] = []
    made = parse.build(cls, values, (), found)
    for problem in found:
        placed = located(problem, node, node.mark)
        problems.append(Problem((*path, *problem.path), placed.message, placed.where))
    return made


def _shown(node: Node) -> str:
    if node.value is None:
        return "nothing"
    if isinstance(node.value, dict):
        return "a mapping"
    return "a list" if isinstance(node.value, tuple) else f"'{node.plain()}'"

"""Small readers of the parts that every section of the file is made of. A wrong part is reported and left out."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from gpas_cli.errors import Problem, nearest
from gpas_cli.grid.document import Mark, Node
from gpas_cli.grid.scalar import spelled
from gpas_cli.grid.settings import located
from gpas_cli.spec import parse
from gpas_cli.spec.parse import control_character

T = TypeVar("T")
Path = tuple[str | int, ...]


def fault(problems: list[Problem], path: Path, message: str, at: Node | Mark) -> None:
    """Adds one problem at a place in the file."""
    problems.append(Problem(path, message, str(at.mark if isinstance(at, Node) else at)))


def entries(node: Node | None, path: Path, problems: list[Problem], known: Collection[str] = ()) -> dict[str, Node]:
    """A mapping's entries; of `known` names only, where given. None and absent are empty."""
    if node is None:
        return {}
    if not isinstance(node.value, dict):
        fault(problems, path, f"{_shown(node)} is not a mapping", node)
        return {}
    if not known:
        return node.value
    for name, child in node.value.items():
        if name not in known:
            fault(problems, (*path, name), f"unknown key '{name}'; {nearest(name, known)}", child.key or child.mark)
    return {name: child for name, child in node.value.items() if name in known}


def items(node: Node | None, path: Path, problems: list[Problem]) -> tuple[Node, ...]:
    """A list's items."""
    if node is None:
        return ()
    if not isinstance(node.value, tuple):
        item = "..." if node.value is None or isinstance(node.value, dict) else node.plain()
        fault(problems, path, f"{_shown(node)} is not a list; write [{item}]", node)
        return ()
    return node.value


def word(node: Node | None, path: Path, problems: list[Problem], default: str = "") -> str:
    """A text of one line; the default where it is absent."""
    if node is None:
        return default
    if not isinstance(node.value, str) or not node.value:
        fault(problems, path, f"{_shown(node)} is not a text", node)
    elif control_character(node.value):
        fault(problems, path, "is more than one line", node)
    else:
        return node.value
    return default


def sentence(node: Node | None, path: Path, problems: list[Problem], default: str = "") -> str:
    """A text; written over several lines, it becomes one."""
    if node is not None and isinstance(node.value, str) and node.value:
        node = replace(node, value=" ".join(node.value.split()))
    return word(node, path, problems, default)


def words(node: Node | None, path: Path, problems: list[Problem]) -> tuple[str, ...]:
    """One text or a list of texts."""
    if node is not None and isinstance(node.value, str):
        return (node.value,)
    return tuple(word(item, path, problems) for item in items(node, path, problems))


def texts(node: Node | None, path: Path, problems: list[Problem]) -> dict[str, str]:
    """A mapping of texts; numbers and truth values as they are spelled."""
    found = {}
    for name, child in entries(node, path, problems).items():
        if isinstance(child.value, dict | tuple):
            fault(problems, (*path, name), f"{_shown(child)} is not a text", child)
        else:
            found[name] = spelled(child.value)
    return found


def built(
    cls: type[T], node: Node, path: Path, problems: list[Problem], like: Mapping[str, T] | None = None
) -> T | None:
    """An instance of the dataclass `cls`, with its problems at their places; `like: WORD` starts from a named one."""
    values: dict[str, Any] = {name: child.plain() for name, child in entries(node, path, problems).items()}
    if not isinstance(node.value, dict):
        return None
    if like is not None and "like" in values:
        start = values.pop("like")
        if not isinstance(start, str) or start not in like:
            fault(problems, (*path, "like"), f"unknown name {start!r}; {nearest(start, like)}", node.value["like"])
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

"""Read parts of a file as mappings, lists, texts, dataclasses and settings. Values know their position in the file.

Invalid parts are reported and omitted. Layers of settings are merged: a section is a name (`gate: gpas`) or a mapping
(`gate: {like: gpas, activation: tanh}`); a mapping merged over a name extends what it names.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, TypeVar

from gpas_cli.errors import Problem, closest, nearest
from gpas_cli.grid.document import Label, Mark, Node, mapping, spelled
from gpas_cli.spec import parse
from gpas_cli.spec.cell import MODEL_PARTS, NETWORK, START
from gpas_cli.spec.optim import Optim
from gpas_cli.spec.parse import SettingPath, control_character, setting_classes
from gpas_cli.spec.stage import TRAINING_PARTS
from gpas_cli.structure import Frozen

# The key under which a section's mapping names what it extends, if it is not `like`.
_WORD_KEYS = {"norm": "scheme", "init": "preset", "objective": "kind", "parametrisation": "kind"}
_WORD_SECTIONS = (*MODEL_PARTS, "data", "objective", NETWORK, START)
# The settings that every cell has.
CELL_PARTS = (*MODEL_PARTS, *TRAINING_PARTS)
_GRID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+-]*")
_MAX_NAME_LENGTH = 100  # characters of a grid's name, which is part of file names
_UNSAFE = re.compile(r"[^A-Za-z0-9._+-]+")
_T = TypeVar("_T")


def children(node: Node | None) -> dict[str, Node]:
    """Return the entries of a mapping node; none for other nodes."""
    return node.value if node is not None and isinstance(node.value, dict) else {}


def merge(under: Node, over: Node, section: str = "") -> Node:
    """Merge `over` into `under`: mappings entry by entry, other values are replaced."""
    if not isinstance(over.value, dict):
        return over
    below = _as_mapping(under, section)
    above = _as_mapping(over, section)
    if not isinstance(below.value, dict) or not isinstance(above.value, dict):
        return over
    merged = _kept(below.value, above.value) if section == "optim" else dict(below.value)
    for name, node in above.value.items():
        merged[name] = merge(merged[name], node, name if not section else "-") if name in merged else node
    return mapping(merged, over.mark, over.key)


def _kept(below: Mapping[str, Node], above: Mapping[str, Node]) -> dict[str, Node]:
    """Return the settings of a recipe without the settings of a schedule or optimizer that `above` replaces."""
    left = {name for name in ("schedule", "optimizer") if name in below and name in above}
    left = {name for name in left if below[name].value != above[name].value}
    own = {setting for setting, (selector, _) in setting_classes(Optim).items() if selector in left}
    return {name: node for name, node in below.items() if name not in own}


def _as_mapping(node: Node, section: str) -> Node:
    """Return a section's name as the mapping that extends it, with `like` replaced by the section's own key."""
    if section not in _WORD_SECTIONS:
        return node
    key = _WORD_KEYS.get(section, "like")
    if isinstance(node.value, str):
        return mapping({key: node}, node.mark, node.key)
    if isinstance(node.value, dict) and "like" in node.value and key not in node.value:
        rest = {name: child for name, child in node.value.items() if name != "like"}
        return mapping({key: node.value["like"], **rest}, node.mark, node.key)
    return node


def put(settings: Node, path: Sequence[str], node: Node) -> Node:
    """Return `settings` with the value at `path` replaced: a whole section, or one leaf of it."""
    return _put(settings, path, node, "")


def _put(under: Node, path: Sequence[str], node: Node, section: str) -> Node:
    if not path:
        return node
    name, *rest = path
    entries = children(_as_mapping(under, section))
    inner = "-" if section else name
    if rest:
        below = entries.get(name) or mapping({}, node.mark, node.key)
        node = _put(below, rest, node, inner)
    return mapping({**entries, name: node}, under.mark, under.key)


def nested(flat: Node, problems: list[Problem], path: tuple[str, ...]) -> Node:
    """Return a mapping with its dotted keys (`optim.lr: 1e-3`) expanded into mappings."""
    tree = mapping({}, flat.mark, flat.key)
    for name, node in children(flat).items():
        parts = name.split(".")
        if _taken(tree, parts):
            problems.append(Problem((*path, name), "is set twice", str(node.key or node.mark)))
        tree = put(tree, parts, node)
    return tree


def _taken(tree: Node, parts: list[str]) -> bool:
    node: Node | None = tree
    for part in parts:
        node = children(node).get(part) if node else None
    return node is not None


def unnamed(node: Node) -> Node:
    """Return the setting without `name`, which is only its label."""
    if "name" not in children(node):
        return node
    return mapping({key: child for key, child in children(node).items() if key != "name"}, node.mark, node.key)


def label(node: Node, section: str) -> Label:
    """Return the label of an axis value: its `name`, the value itself, or its settings in short."""
    if isinstance(node.value, dict):
        named = node.value.get("name")
        if named is not None and isinstance(named.value, str | int | float):
            return named.value
        return _label_of_mapping(node.value, section)
    if isinstance(node.value, tuple):
        return "+".join(str(label(item, section)) for item in node.value) or "empty"
    return "none" if node.value is None else node.value


def has_label(node: Node, section: str) -> bool:
    """Return whether a setting has a label: a string, a number, or a mapping that extends a name or has one."""
    if isinstance(node.value, dict):
        return not {"name", "like", _WORD_KEYS.get(section, "like")}.isdisjoint(node.value)
    return not isinstance(node.value, tuple)


def _label_of_mapping(entries: dict[str, Node], section: str) -> str:
    words = [spelled(entries[key].plain()) for key in (_WORD_KEYS.get(section, "like"), "like") if key in entries][:1]
    rest = [short(key, label(child, key)) for key, child in entries.items() if key not in ("name", "like", "scheme")]
    return "-".join([*words, *rest]) or "default"


def short(axis: str, value: Label) -> str:
    """Return a value in its short form for names: `s1` for seed 1, `lr0.001`, `no-stop-gradient`; words unchanged.

    A training with the work of 6-8-10-12 is `as-6-8-10-12`, to distinguish it from a training with these stages.
    """
    leaf = axis.rpartition(".")[2].replace("_", "-")
    if isinstance(value, bool):
        return leaf if value else f"no-{leaf}"
    if isinstance(value, str):
        return f"as-{value}" if leaf == "work-of" else value
    return f"s{spelled(value).removesuffix('.0')}" if axis == "seed" else f"{leaf}{spelled(value)}"


def plain_cell(settings: Node) -> dict[str, Any]:
    """Return the settings as plain data for `spec.parse_cell.parse_cell`."""
    return {name: _plain_section(name, node) for name, node in children(settings).items()}


def _plain_section(name: str, node: Node) -> Any:
    value = unnamed(node).plain()
    if name not in CELL_PARTS and value == "none":
        return None
    if name in _WORD_SECTIONS and isinstance(value, dict) and list(value) in ([_WORD_KEYS.get(name, "like")], ["like"]):
        return next(iter(value.values()))
    return value


def located(problem: Problem, settings: Node, fallback: Mark) -> Problem:
    """Return the problem at the file position of its setting, or of the nearest parent in the file."""
    node = settings
    depth = 0
    for part in problem.path:
        below = children(_as_mapping(node, str(problem.path[0]) if depth == 1 else "")).get(str(part))
        if below is None:
            break
        node = below
        depth += 1
    mark = node.mark if depth else fallback
    if problem.unknown and node.key:
        mark = node.key
    return replace(problem, where=str(mark))


def cell_name(axes: Iterable[str], labels: Mapping[str, Label]) -> str:
    """Return the labels of `axes`, joined: "pre-gpas-s1". `none` is omitted unless it is the only label."""
    parts = [_part(axis, labels[axis]) for axis in dict.fromkeys(axes) if axis in labels]
    return "-".join([part for part in parts if part]) or "none"


@lru_cache(maxsize=65536, typed=True)  # 1, 1.0 and True are equal, and have different names
def _part(axis: str, label: Label) -> str:
    """Return the part of a cell's name for a label, "" for `none`."""
    part = short(axis, label)
    return "" if part == "none" else safe(part)


def family_name(axes: Iterable[str], labels: Mapping[str, Label]) -> str:
    """Return the name of a cell without its seed: "pre-gpas"."""
    return cell_name((axis for axis in axes if axis != "seed"), labels)


def safe(text: str) -> str:
    """Replace all but letters, digits and . _ + - by underscores, and remove leading dots and dashes."""
    return _UNSAFE.sub("_", text).lstrip(".-") or "_"


def name_fault(grid: str) -> str:
    """Return what is wrong with the name of a grid, or "". It is part of cell names, file names and commands."""
    if _GRID.fullmatch(grid) and len(grid) <= _MAX_NAME_LENGTH:
        return ""
    allowed = f"at most {_MAX_NAME_LENGTH} letters, digits and . _ + -, and starts with a letter, a digit or _"
    return f"a grid's name has {allowed}; write {safe(grid)[:_MAX_NAME_LENGTH]}"


class Part(Frozen):
    """A part of a file while it is read: its node, its path, and where its problems are collected."""

    node: Node | None  # None for an absent part
    path: SettingPath
    problems: list[Problem]
    mark: Mark  # its place, the place of the mapping around it if it is absent

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

        A misspelt entry is read as the nearest known one, so that this one is not reported as missing. `x-NAME` at the
        top of a file, where anchors are declared, is no entry.
        """
        found = Entries(self)
        if self.node is not None and not isinstance(self.value, dict):
            self.report(f"{_shown(self.node)} is not a mapping")
        elif self.node is not None:
            for name, child in self.value.items():
                if known and name not in known:
                    if not self.path and name.startswith("x-"):
                        continue
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
            several = f", or {{range: [1, {item}]}} for {item} values" if isinstance(item, int) and item > 1 else ""
            self.report(f"{_shown(self.node)} is not a list; write [{item}]{several}")
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

    def count(self) -> int | None:
        """Return a whole number that is not negative; None if it is absent or invalid."""
        if isinstance(self.value, int) and self.value >= 0 and not isinstance(self.value, bool):
            return int(self.value)
        if self.node is not None:
            self.report(f"{_shown(self.node)} is not a whole number")
        return None

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

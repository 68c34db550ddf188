"""Variants of declared cells from settings on the command line: `gpas train pre-s1 optim.lr=3e-3 gate=gpas`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from gpas_cli.errors import GpasError, InvalidExperiments, Problem, nearest
from gpas_cli.grid.declared import Experiments
from gpas_cli.grid.document import Mark, Node, mapping, parse_document
from gpas_cli.grid.draft import Draft
from gpas_cli.grid.entry import Entry
from gpas_cli.grid.expand import Expansion
from gpas_cli.grid.names import safe
from gpas_cli.grid.read import check_setting
from gpas_cli.grid.readers import read_dataclass
from gpas_cli.grid.resources import FIELDS, overlaid
from gpas_cli.grid.scalar import Label, resolve, spelled
from gpas_cli.grid.settings import label, merge, nested, short
from gpas_cli.spec.run import Resources

SEPARATOR = "+"  # between the name of the declared cell and each setting


def vary(experiments: Experiments, entries: Iterable[Entry], words: Sequence[str]) -> list[Entry]:
    """Return the entries with the settings `NAME=VALUE` merged over theirs, each with its own key and name.

    Names and values are written as in experiments.yaml: `optim.lr=3e-3`, `norm=lns`, `gate={like: gpas, init: 0.1}`.
    A variant that equals a declared cell is returned as declared. Raises InvalidExperiments with every problem of the
    settings, and GpasError for a recorded cell that is no longer declared.
    """
    problems: list[Problem] = []
    nodes = _read(words, experiments.catalogue.later_stages, problems)
    settings = nested(mapping(nodes, Mark("settings", 0, 0)), problems, ())
    expansion = Expansion(experiments)
    varied = [_variant(expansion, entry, settings, nodes) for entry in entries]
    problems.extend(expansion.problems)
    if problems:
        raise InvalidExperiments(problems)
    known = _declared(experiments)
    return [known.get(entry.key, entry) for entry in varied if entry is not None]


def with_resources(entries: Sequence[Entry], words: Sequence[str]) -> list[Entry]:
    """Return the entries with the settings `resources.NAME=VALUE` of all their jobs, which no key contains.

    Raises InvalidExperiments with every problem of the settings.
    """
    problems: list[Problem] = []
    nodes: dict[str, Node] = {}
    for argument in words:
        section, _, name = argument.partition("=")[0].rpartition(".")
        mark, text = Mark(argument, 0, 0), argument.partition("=")[2]
        if section != "resources" or name not in FIELDS or not text:
            message = f"--set takes resources.NAME=VALUE; {nearest(name, FIELDS)}"
            problems.append(Problem((), message, argument))
        else:
            as_text = isinstance(getattr(Resources(), name), str) and not text.startswith(("[", "'", '"'))
            nodes[name] = Node(text, mark, mark) if as_text else _value(text, mark, problems)
    settings = mapping(nodes, Mark(" ".join(words), 0, 0))
    read_dataclass(Resources, settings, ("resources",), problems)

    def changed(base: Resources) -> Resources:
        return overlaid(base, settings, ("resources",), problems) if nodes else base

    made = [
        replace(
            entry,
            resources=changed(entry.resources),
            kind_resources={kind: changed(base) for kind, base in entry.kind_resources.items()},
        )
        for entry in entries
    ]
    if problems:
        raise InvalidExperiments(list(dict.fromkeys(problems)))
    return made


def _read(words: Sequence[str], stages: Sequence[str], problems: list[Problem]) -> dict[str, Node]:
    """Return the settings by name; in messages, their position is the argument as typed."""
    nodes: dict[str, Node] = {}
    for argument in words:
        name, _, text = argument.partition("=")
        mark = Mark(argument, 0, 0)
        if name in nodes:
            problems.append(Problem((), "is set twice", argument))
        elif check_setting(name, (), mark, stages, problems):
            nodes[name] = _value(text, mark, problems)
    return nodes


def _value(text: str, mark: Mark, problems: list[Problem]) -> Node:
    """Return the value as in experiments.yaml. Text other than a list, mapping or quoted string needs no quotes."""
    try:
        if text.startswith(("[", "{", "'", '"')):
            return _placed(parse_document(text, mark.file), mark)
        return Node(resolve(text), mark, mark)
    except InvalidExperiments as error:
        problems.extend(replace(problem, where=str(mark)) for problem in error.problems)
    except ValueError as error:
        problems.append(Problem((), str(error), str(mark)))
    return Node(None, mark, mark)


def _placed(node: Node, mark: Mark) -> Node:
    if isinstance(node.value, dict):
        return mapping({name: _placed(child, mark) for name, child in node.value.items()}, mark, mark)
    value = tuple(_placed(item, mark) for item in node.value) if isinstance(node.value, tuple) else node.value
    return replace(node, value=value, mark=mark, key=mark)


def _variant(expansion: Expansion, entry: Entry, settings: Node, nodes: Mapping[str, Node]) -> Entry | None:
    if entry.declared is None:
        raise GpasError(
            f"{entry.id} is not declared in {expansion.experiments.path.name}; only declared cells can be varied"
        )
    grid = expansion.experiments.grids[entry.declared.grid]
    labels = {name: label(node, name) for name, node in nodes.items()}
    changes = ", ".join(f"{name}={spelled(value)}" for name, value in labels.items())
    notes = (*entry.notes, f"{changes} on the command line")
    draft = Draft({**entry.axes, **labels}, merge(entry.declared.settings, settings), notes)
    cell = expansion.cell(grid, draft)
    if cell is None:
        return None
    name = SEPARATOR.join([entry.name, *(safe(_part(name, value)) for name, value in labels.items())])
    return replace(expansion.entry(grid, name, draft, cell), grid=entry.grid)


def _part(name: str, value: Label) -> str:
    """Return a setting's part of the cell's name: `lr0.003`, `activation-tanh`, `lns`."""
    dotted = "." in name and isinstance(value, str)
    return f"{name.rpartition('.')[2].replace('_', '-')}-{value}" if dotted else short(name, value)


def _declared(experiments: Experiments) -> dict[str, Entry]:
    """Return the cells of all grids by key, each from the first grid that has it."""
    expansion = Expansion(experiments)
    found: dict[str, Entry] = {}
    for grid in experiments.grids:
        for entry in expansion.grid(grid):
            found.setdefault(entry.key, entry)
    return found

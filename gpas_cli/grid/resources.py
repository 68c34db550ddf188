"""The declared resources of jobs: by size, by grid and by kind of job, each overriding the one before."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace

from gpas_cli.errors import Problem, nearest
from gpas_cli.grid.document import Node
from gpas_cli.grid.readers import add_problem, read_dataclass, read_mapping
from gpas_cli.grid.settings import children
from gpas_cli.grid.site import ALL, layered
from gpas_cli.spec import parse
from gpas_cli.spec.parse import SettingPath
from gpas_cli.spec.run import Resources
from gpas_cli.spec.stage import TOKENISE

FIELDS = tuple(own.name for own in fields(Resources))


@dataclass(frozen=True)
class ResourceSettings:
    """Settings of jobs in one part of the file. `own`: for all jobs. `by_kind`: for one kind of job, a stage after
    pretraining or `tokenise`; they override `own`.
    """

    own: Node | None = None
    by_kind: Mapping[str, Node] = field(default_factory=dict)


def read_grid_resources(
    node: Node | None, stages: Sequence[str], path: SettingPath, problems: list[Problem]
) -> ResourceSettings:
    """Return the resources of a grid: settings, and mappings under the names of stages. Invalid ones are reported."""
    kinds = (*stages, TOKENISE)
    parts = read_mapping(node, path, problems, (*FIELDS, *kinds))
    if node is None or not isinstance(node.value, dict):
        return ResourceSettings()
    own = replace(node, value={name: child for name, child in parts.items() if name not in kinds})
    read_dataclass(Resources, own, path, problems)
    return ResourceSettings(own, _read_kinds(parts, kinds, path, problems))


def read_resources(
    node: Node | None, sizes: Collection[str], stages: Sequence[str], problems: list[Problem], site: Mapping[str, Node]
) -> tuple[dict[str, Resources], ResourceSettings]:
    """Return the resources of the whole file over those of the site: by size and for `all`, and those that override
    them for a kind of job.
    """
    path = ("resources",)
    kinds = tuple(kind for kind in (*stages, TOKENISE) if kind not in sizes)
    parts = read_mapping(node, path, problems)
    known = (*sizes, ALL, *kinds)
    for name, child in (*site.items(), *parts.items()):
        if name not in known:
            message = f"no size or stage '{name}'; {nearest(name, known)}"
            add_problem(problems, (*path, name), message, child.key or child.mark)
        elif name not in kinds:
            read_dataclass(Resources, child, (*path, name), problems)
    by_size: dict[str, Resources] = {}
    for name in dict.fromkeys((ALL, *site, *parts)):
        whole = layered(site.get(ALL), site.get(name), parts.get(ALL), parts.get(name))
        if whole is not None and isinstance(whole.value, dict) and name not in kinds:
            base = by_size.get(ALL, Resources())
            by_size[name] = parse.build(Resources, whole.plain(), (), []) or base
            report_faults(by_size[name], base, whole, (*path, name), problems)
    merged = {name: made for name in kinds if (made := layered(site.get(name), parts.get(name)))}
    return by_size, ResourceSettings(by_kind=_read_kinds(merged, kinds, path, problems))


def overlaid(base: Resources, node: Node, path: SettingPath, problems: list[Problem]) -> Resources:
    """Return `base` with the valid settings of `node`, after reporting the contradictions that they cause."""
    values = {name: child.plain() for name, child in children(node).items()}
    made = parse.build(Resources, {**parse.plain(base), **values}, (), []) or base
    report_faults(made, base, node, path, problems)
    return made


def report_faults(made: Resources, base: Resources, node: Node, path: SettingPath, problems: list[Problem]) -> None:
    """Report the contradictions between the settings of `made` that `base` does not have."""
    for name, fault in made.faults.items():
        if base.faults.get(name) != fault:
            add_problem(problems, (*path, name), fault, children(node).get(name, node))


def _read_kinds(
    parts: Mapping[str, Node], kinds: Collection[str], path: SettingPath, problems: list[Problem]
) -> dict[str, Node]:
    found = {name: child for name, child in parts.items() if name in kinds}
    for name, child in found.items():
        read_dataclass(Resources, child, (*path, name), problems)
    return {name: child for name, child in found.items() if isinstance(child.value, dict)}

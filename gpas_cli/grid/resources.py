"""The resources of jobs: by size, by grid and by kind of job, each overriding the one before.

The site's profile has the resources of all projects on a cluster, in a file outside the projects:
$XDG_CONFIG_HOME/gpas/site.yaml (by default in ~/.config), or the file that GPAS_SITE names; an empty GPAS_SITE means
none. It has the `resources` of an experiments file, which override it setting by setting. No key contains them.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

from gpas_cli.errors import GpasError, Problem, nearest
from gpas_cli.grid.document import Node, mapping, read_document
from gpas_cli.grid.readers import add_problem, read_dataclass, read_mapping
from gpas_cli.grid.settings import children
from gpas_cli.spec import parse
from gpas_cli.spec.parse import SettingPath, plain
from gpas_cli.spec.run import Resources
from gpas_cli.spec.stage import TOKENISE
from gpas_cli.trust import config_folder, suspicion

ALL = "all"  # in `resources`: settings of the jobs of every size
_VARIABLE = "GPAS_SITE"


def site_path(environ: Mapping[str, str] = os.environ) -> Path | None:
    """Return the path of the site's profile, None without one. Raises GpasError for a file that does not exist, or that
    others can change: its `setup` is executed.
    """
    named = environ.get(_VARIABLE)
    path = Path(named).expanduser() if named else config_folder(environ) / "site.yaml"
    if named == "" or (named is None and not os.path.isfile(path)):  # noqa: PTH113  (a home may be unreadable)
        return None
    try:
        reason = suspicion(path, path, environ)
    except OSError as error:
        raise GpasError(f"{_VARIABLE}: {path}: {error.strerror}") from None
    if reason:
        raise GpasError(reason)
    return path


def read_site(path: Path | None, problems: list[Problem]) -> dict[str, Node]:
    """Return the sections of `resources` in the site's profile. Raises GpasError if it cannot be read."""
    parts = read_mapping(read_document(path), (), problems, ("version", "resources")) if path else {}
    return read_mapping(parts.get("resources"), ("resources",), problems)


def _layered(*nodes: Node | None) -> Node | None:
    """Return the settings of sections, of which each overrides the ones before; None without a section, and the first
    that is not a mapping, if there is one.
    """
    found = [node for node in nodes if node is not None]
    if wrong := [node for node in found if not isinstance(node.value, dict)]:
        return wrong[0]
    settings = {name: child for node in found for name, child in children(node).items()}
    return mapping(settings, found[-1].mark) if found else None


def from_site(site: Mapping[str, Node], size: object, kind: str, asked: Resources) -> Iterator[tuple[str, str]]:
    """Yield the settings of a job that the site's profile made, each with its place in the file."""
    sections = (children(site[name]) for name in (ALL, str(size), kind) if name in site)
    settings = {name: child for section in sections for name, child in section.items()}
    yield from ((name, str(node.mark)) for name, node in settings.items() if plain(asked).get(name) == node.plain())


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
    """Return the resources of the whole file over the site's: by size and for `all`, and the settings that override
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
        whole = _layered(site.get(ALL), site.get(name), parts.get(ALL), parts.get(name))
        if whole is not None and isinstance(whole.value, dict) and name not in kinds:
            base = by_size.get(ALL, Resources())
            by_size[name] = parse.build(Resources, whole.plain(), (), []) or base
            _report_faults(by_size[name], base, whole, (*path, name), problems)
    merged = {name: made for name in kinds if (made := _layered(site.get(name), parts.get(name)))}
    return by_size, ResourceSettings(by_kind=_read_kinds(merged, kinds, path, problems))


def overlaid(base: Resources, node: Node, path: SettingPath, problems: list[Problem]) -> Resources:
    """Return `base` with the valid settings of `node`, after reporting the contradictions that they cause."""
    values = {name: child.plain() for name, child in children(node).items()}
    made = parse.build(Resources, {**parse.plain(base), **values}, (), []) or base
    _report_faults(made, base, node, path, problems)
    return made


def _report_faults(made: Resources, base: Resources, node: Node, path: SettingPath, problems: list[Problem]) -> None:
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

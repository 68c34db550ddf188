"""The resources of jobs: by size, by grid and by kind of job, each overriding the one before.

The built-in sizes have resources, and recipes, in the package (sizes.yaml); what a file says overrides them.

The site's profile has the resources of all projects on a cluster, in a file outside the projects:
$XDG_CONFIG_HOME/gpas/site.yaml (by default in ~/.config), or the file that GPAS_SITE names; an empty GPAS_SITE means
none. It has the `resources` of an experiments file, which override it setting by setting. No key contains them.
"""

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, fields, replace
from functools import cache
from pathlib import Path

from gpas_cli.errors import GpasError, Problem, nearest
from gpas_cli.grid.document import Node, mapping, parse_document, read_document
from gpas_cli.grid.settings import Entries, Part, children, root_of
from gpas_cli.spec.parse import build, plain
from gpas_cli.spec.run import PRIVATE, Resources
from gpas_cli.spec.stage import TOKENISE
from gpas_cli.structure import Frozen
from gpas_cli.trust import config_folder, suspicion

ALL = "all"  # in `resources`: settings of the jobs of every size
_VARIABLE = "GPAS_SITE"
FIELDS = tuple(own.name for own in fields(Resources))


@cache
def of_built_in_sizes(section: str) -> Entries:
    """Return the `recipes` or the `resources` that the package has, by size."""
    path = Path(__file__).with_name("sizes.yaml")
    return root_of(parse_document(path.read_text("utf-8"), path.name), []).entries()[section].entries()


def site_path(environ: Mapping[str, str] = os.environ) -> Path | None:
    """Return the path of the site's profile, None without one. Raises GpasError for a file that does not exist, or that
    others can change: its `setup` is executed.
    """
    named = environ.get(_VARIABLE)
    path = Path(named).expanduser() if named else config_folder(environ) / "site.yaml"
    if named == "" or (named is None and not os.path.isfile(path)):  # noqa: PTH113  (a home may be unreadable)
        return None
    try:
        path = Path(os.path.realpath(path, strict=True))  # what is checked is what is read, wherever a link leads later
        reason = suspicion(path, path, environ)
    except OSError as error:
        raise GpasError(f"{_VARIABLE}: {path}: {error.strerror}") from None
    if reason:
        raise GpasError(reason)
    return path


def private_settings(node: Node, within: bool = False) -> Iterator[tuple[str, Node]]:
    """Yield the values of PRIVATE settings in a document, each with its name. within: `node` is in `resources`."""
    for name, child in children(node).items():
        if within and name in PRIVATE and not isinstance(child.value, dict):  # a size may have such a name
            yield from ((name, item) for item in (child.value if isinstance(child.value, tuple) else (child,)))
        else:
            yield from private_settings(child, within or name == "resources")


def read_site(path: Path | None, problems: list[Problem]) -> Entries:
    """Return the sections of `resources` in the site's profile. Raises GpasError if it cannot be read."""
    root = root_of(read_document(path) if path else None, problems)
    return root.entries(("version", "resources"))["resources"].entries()


def _layered(*parts: Part) -> Part:
    """Return the settings of sections, each of which overrides the ones before; an absent part if there is no section,
    and the first section that is not a mapping, if there is one.
    """
    found = [part for part in parts if part.node is not None]
    wrong = [part for part in found if not isinstance(part.value, dict)]
    if wrong or not found:
        return (wrong or parts)[0]
    settings = {name: child for part in found for name, child in part.value.items()}
    return replace(parts[-1], node=mapping(settings, found[-1].mark), mark=found[-1].mark)


def from_site(site: Mapping[str, Node], size: object, kind: str, asked: Resources) -> Iterator[tuple[str, str]]:
    """Yield the settings of a job that the site's profile made, each with its place in the file."""
    sections = (children(site.get(name)) for name in (ALL, str(size), kind))
    settings = {name: child for section in sections for name, child in section.items()}
    yield from ((name, str(node.mark)) for name, node in settings.items() if plain(asked).get(name) == node.plain())


class ResourceSettings(Frozen):
    """Settings of jobs in one part of the file."""

    own: Node | None = None  # for all jobs
    by_kind: Mapping[str, Node] = field(default_factory=dict)
    """For one kind of job, a stage after pretraining or `tokenise`; they override `own`."""


def read_grid_resources(part: Part, stages: Sequence[str]) -> ResourceSettings:
    """Return the resources of a grid: settings, and mappings under the names of stages. Invalid ones are reported."""
    kinds = (*stages, TOKENISE)
    parts = part.entries((*FIELDS, *kinds))
    if not isinstance(part.value, dict):
        return ResourceSettings()
    own = parts.without(kinds)
    own.instance(Resources)
    return ResourceSettings(own.node, _read_kinds([part for name, part in parts.items() if name in kinds]))


def read_resources(
    layers: Sequence[Mapping[str, Part]], sizes: Collection[str], stages: Sequence[str]
) -> tuple[dict[str, Resources], ResourceSettings]:
    """Return the resources of a file's grids: by size and for `all`, and the settings that override them for a kind of
    job. Each of the layers, sections by name, overrides the ones before; the last two are those of the site and of
    experiments.yaml.
    """
    kinds = tuple(kind for kind in (*stages, TOKENISE) if kind not in sizes)
    known = (*sizes, ALL, *kinds)
    for name, child in (item for layer in layers for item in layer.items()):
        if name not in known:
            hint = f"write {ALL}: {{{name}: ...}}" if name in FIELDS else nearest(name, known)
            child.report(f"no size or stage '{name}'; {hint}", child.key)
        elif name not in kinds:
            child.instance(Resources)
    by_size: dict[str, Resources] = {}
    built_in = of_built_in_sizes("resources")
    named = [name for layer in layers for name in layer if name not in kinds]
    own = {name for layer in layers[-2:] for name in layer}
    for name in dict.fromkeys((ALL, *named, *built_in)):
        parts = [layer[one] for layer in (built_in, *layers) for one in dict.fromkeys((ALL, name)) if one in layer]
        whole = _layered(*parts) if parts else None
        if whole and name not in own:  # which may be used nowhere: a contradiction to `all` is no mistake
            whole = replace(whole, problems=[])
        if whole and isinstance(whole.value, dict):
            by_size[name] = overlaid(by_size.get(ALL, Resources()), whole)
    layered = {name: [layer[name] for layer in layers if name in layer] for name in kinds}
    return by_size, ResourceSettings(by_kind=_read_kinds([_layered(*parts) for parts in layered.values() if parts]))


def overlaid(base: Resources, part: Part) -> Resources:
    """Return `base` with the valid settings of `part`, after reporting the contradictions that they cause."""
    values = {name: child.plain() for name, child in children(part.node).items()}
    made = build(Resources, {**plain(base), **values}, (), []) or base
    for name, fault in made.faults.items():
        if base.faults.get(name) != fault:
            setting = children(part.node).get(name)
            part.report(fault, setting.mark if setting else None, name)
    return made


def _read_kinds(parts: Iterable[Part]) -> dict[str, Node]:
    """Return the settings by kind of job, which is the last step of their paths."""
    found = {}
    for part in parts:
        part.instance(Resources)
        if part.node is not None and isinstance(part.value, dict):
            found[str(part.path[-1])] = part.node
    return found

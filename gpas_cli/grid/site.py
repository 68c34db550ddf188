"""The site's profile: resources of all projects on a cluster, in a file outside the projects.

The file is $XDG_CONFIG_HOME/gpas/site.yaml (by default in ~/.config), or the one that GPAS_SITE names; an empty
GPAS_SITE means none. It has the `resources` of an experiments file, which override it setting by setting. No key
contains them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from gpas_cli.errors import GpasError, Problem
from gpas_cli.grid.document import Node, mapping, read_document
from gpas_cli.grid.readers import read_mapping
from gpas_cli.grid.settings import children
from gpas_cli.spec.parse import plain
from gpas_cli.spec.run import Resources
from gpas_cli.trust import config_folder, suspicion

ALL = "all"  # in `resources`: settings of the jobs of every size
VARIABLE = "GPAS_SITE"


def site_path(environ: Mapping[str, str] = os.environ) -> Path | None:
    """Return the path of the site's profile, None without one. Raises GpasError for a file that does not exist, or that
    others can change: its `setup` is executed.
    """
    named = environ.get(VARIABLE)
    path = Path(named).expanduser() if named else config_folder(environ) / "site.yaml"
    if named == "" or (named is None and not os.path.isfile(path)):  # noqa: PTH113  (a home may be unreadable)
        return None
    try:
        reason = suspicion(path, path, environ)
    except OSError as error:
        raise GpasError(f"{VARIABLE}: {path}: {error.strerror}") from None
    if reason:
        raise GpasError(reason)
    return path


def read_site(path: Path | None, problems: list[Problem]) -> dict[str, Node]:
    """Return the sections of `resources` in the site's profile. Raises GpasError if it cannot be read."""
    parts = read_mapping(read_document(path), (), problems, ("version", "resources")) if path else {}
    return read_mapping(parts.get("resources"), ("resources",), problems)


def layered(*nodes: Node | None) -> Node | None:
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

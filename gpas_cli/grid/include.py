"""Read the files of an experiment: experiments.yaml and the grids of the packs that it includes, whose own `include` is
read as well.

A grid may be like others, also of another file: `base: {like: table2, size: 350m}` has the settings of table2's `base`,
with these over them. The same is true of `axes`, `cadence`, `watch`, `resources` and `table`, and of the whole list of
`exclude` or `override`: `exclude: {like: table2}`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from gpas_cli.errors import GpasError, InvalidExperiments, Problem, closest, nearest
from gpas_cli.grid.document import Node, mapping, read_document
from gpas_cli.grid.packs import DOCUMENTS, Pack, canonical, pack_named
from gpas_cli.grid.resources import private_settings
from gpas_cli.grid.settings import Entries, Part, children, merge, name_fault, nested, root_of

_OF_PACKS = ("version", "include", "needs", "plugins", "sizes", "corpora", "networks", "recipes", "resources", "grids")
_OF_EXPERIMENTS = (*(key for key in _OF_PACKS if key != "needs"), "default", "claims")
_DECLARED = {"grids": "grid", "sizes": "size", "corpora": "corpus", "networks": "network"}
_LIKE = ("base", "axes", "exclude", "override", "cadence", "watch", "resources", "table")
_VERSION = 1


@dataclass(eq=False)
class File:
    """experiments.yaml, or the grids of a pack."""

    path: Path
    parts: Entries
    packs: Mapping[str, Pack]  # the packs that it may name, by name
    item: Part  # the entry of `include` that names it
    pack: Pack | None = None  # None for experiments.yaml
    included: list[File] = field(default_factory=list)  # the files that it includes

    @cached_property
    def sections(self) -> dict[str, Entries]:
        """What it declares, by section and by its own names."""
        return {name: self.parts[name].entries() for name in (*_DECLARED, "recipes", "resources")}

    @property
    def prefix(self) -> str:
        """What stands before the names that it declares."""
        return self.pack.prefix if self.pack else ""

    @property
    def with_included(self) -> list[File]:
        """The file and all that it includes, directly or not, each once."""
        found = {id(self): self}
        for file in self.included:
            found |= {id(one): one for one in file.with_included}
        return list(found.values())

    def own(self, section: str) -> dict[str, Part]:
        """Return what it declares in a section, by the names that other files use."""
        return {self.prefix + name: part for name, part in self.sections[section].items()}

    def names(self, section: str) -> dict[str, str]:
        """Return the names that it may use in a section, each with the name in other files."""
        others = {name: name for file in self.with_included[1:] for name in file.own(section)}
        return others | {name: self.prefix + name for name in self.sections[section]}

    def visible(self, section: str) -> dict[str, Part]:
        """Return what it may refer to in a section, by the names that it uses."""
        every = {name: part for file in self.with_included for name, part in file.own(section).items()}
        return {name: every[known] for name, known in self.names(section).items()}

    def place(self, section: str, name: str) -> str:
        """Return where it declares one of its names: "theirs (./theirs/grids.yaml:12:3)"."""
        key = self.own(section)[name].key
        return f"{self.pack.name} ({key})" if self.pack else str(key)


def read_files(root: Node, path: Path, problems: list[Problem], packs: dict[str, Pack]) -> File:
    """Return the experiments file, with the files that it includes. Packs in other folders are added to `packs`."""
    whole = root_of(root, problems)
    file = File(path, whole.entries(_OF_EXPERIMENTS), packs, whole)
    _check_version(file)
    _read_included(file, packs, {})
    for section, what in _DECLARED.items():
        declared: dict[str, File] = {}
        for one in reversed(file.with_included):
            for name, part in one.own(section).items():
                if name in declared:
                    remedy = "give it another name" if one is file else "include one of them as `{pack: ..., as: NAME}`"
                    (part if one is file else one.item).report(
                        f"the {what} '{name}' is also declared in {declared[name].place(section, name)}; {remedy}",
                        part.key if one is file else None,
                    )
                declared[name] = one
    return file


def _read_included(file: File, packs: dict[str, Pack], read: dict[tuple[Path, str], File | None]) -> None:
    """Read the files that a file includes. `read` has those that are read already, None for one that is being read."""
    for item in file.parts["include"].items():
        parts = item.entries(("pack", "as")) if isinstance(item.value, dict) else Entries(item)
        name = parts["pack"].text() if isinstance(item.value, dict) else item.text()
        named = parts["as"].text()
        if fault := name_fault(named) if named else "":
            parts["as"].report(fault.replace("a grid's", "a paper's"))
        elif name and (pack := _pack(name, named, file, packs, item)):
            key = pack.folder.resolve(), named
            if key not in read:
                read[key] = None
                read[key] = _read_pack(pack, item, packs, read)
            if (made := read[key]) is None:
                item.report(f"{pack.name} includes this file, which includes it in turn")
            else:
                file.included.append(made)
        elif not name and isinstance(item.value, dict):
            item.report("needs 'pack': the name of a paper, or a folder")


def _pack(name: str, named: str, file: File, packs: dict[str, Pack], item: Part) -> Pack | None:
    """Return the pack with this name, or in this folder, None after reporting why there is none."""
    if name.startswith((".", "/", "~")):
        folder = (file.path.parent / Path(name).expanduser()).resolve()
        pack = Pack(canonical(folder.name), folder, installed=False)
        if not any(map(pack.has, DOCUMENTS)):
            missing = "has no grids.yaml, numbers.yaml, claims.yaml or figures.yaml"
            item.report(f"{folder} {missing if folder.is_dir() else 'is not a folder'}")
            return None
        for path in sorted(folder.glob("*.y*ml")):
            meant = f"{closest(path.stem, DOCUMENTS)}.yaml"
            if meant not in (path.name, ".yaml"):
                item.report(f"{path} is not read; did you mean {meant}?")
    else:
        try:
            pack = pack_named(name, packs)
        except GpasError as error:
            folder = file.path.parent / name
            hint = f"; write ./{name} for the folder {folder}" if folder.is_dir() else ""
            item.report(f"{error}{hint}")
            return None
    if named:
        pack = replace(pack, name=canonical(named), prefix=f"{named}.")
    known = packs.setdefault(pack.name, pack)
    if known != pack:
        item.report(f"{pack.name} is also the paper in {known.folder}; write {{pack: {name}, as: NAME}}")
    return pack if known == pack else None


def _read_pack(pack: Pack, item: Part, packs: dict[str, Pack], read: dict[tuple[Path, str], File | None]) -> File:
    """Return the grids of a pack, with what they include; nothing without the file or after reporting its fault."""
    problems = item.problems
    try:
        root = read_document(pack.document("grids")) if pack.has("grids") else None
    except InvalidExperiments as error:
        problems.extend(error.problems)
        root = None
    whole = root_of(root, problems)
    own = {canonical(pack.folder.name): pack}  # by this name it refers to itself, whatever it is called elsewhere
    file = File(pack.document("grids"), whole.entries(_OF_PACKS), {**packs, **own}, item, pack)
    if root is not None:
        _check_version(file)
        for name, node in private_settings(root):
            message = "is for experiments.yaml or the site's profile: jobs execute it, and a paper is data"
            problems.append(Problem(("resources", name), message, str(node.mark)))
    for need in file.parts["needs"].items():
        _check_need(need, pack)
    _read_included(file, packs, read)
    return file


def _check_version(file: File) -> None:
    part = file.parts["version"]
    if part.node is None:
        if isinstance(file.item.value, dict) or file.pack:
            part.report(f"is required; write version: {_VERSION}")
    elif part.value != _VERSION or isinstance(part.value, bool):
        part.report(f"{part.node.plain()!r} is unknown; this version of gpas reads version {_VERSION}")


def _check_need(need: Part, pack: Pack) -> None:
    """Report a distribution, such as `lm_eval>=0.4`, that a pack needs and that is not installed."""
    from importlib import metadata  # few packs need a distribution, and these imports take 40 ms

    from packaging.requirements import InvalidRequirement, Requirement

    try:
        wanted = Requirement(need.text())
        version = metadata.version(wanted.name)
    except InvalidRequirement:
        need.report(f"'{need.value}' is not a requirement such as lm_eval>=0.4")
    except metadata.PackageNotFoundError:
        need.report(f"{pack.name} needs {wanted}, which is not installed: pip install '{wanted}'")
    else:
        if not wanted.specifier.contains(version, prereleases=True):
            need.report(f"{pack.name} needs {wanted}; installed is {version}")


def with_likes(grids: Mapping[str, Part], visible: Mapping[str, Part]) -> dict[str, Part]:
    """Return the grids with the sections of others that theirs are like; `visible` are those that they may name."""
    found = {}
    for name, part in grids.items():
        sections = {key: node for key in _LIKE if (node := _section(part, key, visible, [name]))}
        if sections and part.node:
            whole = mapping({**children(part.node), **sections}, part.node.mark, part.node.key)
            part = replace(part, node=whole)
        found[name] = part
    return found


def _section(
    part: Part, key: str, visible: Mapping[str, Part], trail: Sequence[str], first: Part | None = None
) -> Node | None:
    """Return a section of a grid over the one that it is like, None if it has no `like`.

    trail: the grids that led here, each like the next; first: the `like` of the first, where a circle is reported. What
    else is wrong with the others is reported there.
    """
    node = children(part.node).get(key)
    entries = children(node)
    if node is None or "like" not in entries:
        return None
    own = mapping({name: child for name, child in entries.items() if name != "like"}, node.mark, node.key)
    at = Part(entries["like"], (*part.path, key, "like"), part.problems, entries["like"].mark)
    name = at.text()
    if name in trail:
        (first or at).report(f"the grids are like each other in a circle: {' -> '.join([*trail, name])}")
    elif name and name not in visible:
        at.report(f"no grid '{name}'; {nearest(name, visible)}")
    elif name:
        other = replace(visible[name], problems=[])
        under = _section(other, key, visible, [*trail, name], first or at) or children(other.node).get(key)
        if under is None:
            at.report(f"{name} has no '{key}'")
        elif key == "base":
            own = nested(own, part.problems, tuple(map(str, (*part.path, key))))
            return merge(nested(under, [], ()), own)
        else:
            return mapping({**children(under), **children(own)}, node.mark, node.key) if own.value else under
    return own

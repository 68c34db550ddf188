"""Packs: a paper in a folder, with what it declares and what it has published. Each file may be missing.

    README.md        what is reproduced and what is not
    grids.yaml       grids, and the sizes, corpora, networks, recipes and resources that they need
    numbers.yaml     the published tables (`gpas_cli.report.papers`)
    claims.yaml      the paper's claims, as under `claims` in experiments.yaml
    figures.yaml     the paper's figures (`gpas_cli.report.figures.paper_figures`)
    results/         records of cells that others have trained (`gpas_cli.report.contributed`)

The packs of this package lie in gpas_cli/papers. Those of installed packages are entry points of the group
`gpas_cli.papers`: the name of the pack, and the module in whose folder it lies. Their numbers, claims and figures are
known by name. Their grids, and all of a pack in another folder, belong to an experiments file that includes them:

    include: [gpas, ./mypaper, {pack: ./theirs, as: theirs}]

As with pip, - and _ are the same in a name; the first words of a name are enough if no other pack's name begins with
them. With `as`, the pack has this name, and NAME. stands before the names of its grids, sizes, corpora and networks.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import metadata, util
from pathlib import Path

from gpas_cli.errors import GpasError, nearest

_GROUP = "gpas_cli.papers"
_FOLDER = Path(__file__).parents[1] / "papers"
_DOCUMENTS = ("grids", "numbers", "claims", "figures")


@dataclass(frozen=True)
class Pack:
    """A paper in a folder. installed: whether it belongs to this or another installed package, which is trusted."""

    name: str
    folder: Path
    installed: bool = True

    def document(self, name: str) -> Path:
        """Return the path of one of its files, which need not exist: `grids`, `numbers`, `claims` or `figures`."""
        return self.folder / f"{name}.yaml"

    def has(self, name: str) -> bool:
        """Return whether it has this file."""
        return self.document(name).is_file()

    @property
    def digest(self) -> str:
        """16 hexadecimal digits that identify the content of its files."""
        total = hashlib.sha256()
        for path in (self.document(name) for name in _DOCUMENTS if self.has(name)):
            total.update(f"{path.name}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
        return total.hexdigest()[:16]


@cache
def known_packs() -> dict[str, Pack]:
    """Return the packs of this package and of installed ones by name. Raises GpasError for one without a folder."""
    found = {
        path.name: Pack(path.name, path)
        for path in sorted(_FOLDER.iterdir())
        if path.is_dir() and path.name[0] not in "._"
    }
    for point in metadata.entry_points(group=_GROUP):
        name = canonical(point.name)
        module = util.find_spec(point.value)
        if module is None or not module.origin:
            raise GpasError(
                f"the paper '{name}' of an installed package has no folder: there is no module {point.value}"
            )
        if name in found:
            raise GpasError(f"an installed package has a paper '{name}', which is also in {found[name].folder}")
        found[name] = Pack(name, Path(module.origin).parent)
    return found


def canonical(name: str) -> str:
    """Return the name of a pack as it is kept: with _ in place of -."""
    return name.replace("-", "_")


def pack_named(name: str, packs: Mapping[str, Pack]) -> Pack:
    """Return the pack with this name, or the only one that begins with it. Raises GpasError with the nearest name."""
    wanted = canonical(name.lower())
    if wanted in packs:
        return packs[wanted]
    begun = [pack for known, pack in packs.items() if wanted and known.startswith(f"{wanted}_")]
    if len(begun) == 1:
        return begun[0]
    raise GpasError(f"no paper '{name}'; {nearest(wanted, packs)}")


def including(grid: str) -> str:
    """Return how to include the grid of a known paper: "add gpas to `include`"; "" if no known paper has it."""
    line = f"\n  {grid}:\n"
    packs = (pack for pack in known_packs().values() if pack.has("grids"))
    names = [pack.name for pack in packs if line in pack.document("grids").read_text("utf-8")]
    return f"add {names[0].replace('_', '-')} to `include`" if names else ""

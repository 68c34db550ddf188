"""Packs: a paper in a folder, with what it declares and what it has published. Each file may be missing.

    README.md        what is reproduced and what is not
    grids.yaml       grids, and the sizes, corpora, networks, recipes and resources that they need
    numbers.yaml     the published tables (`gpas_cli.report.papers`)
    claims.yaml      the paper's claims, as under `claims` in experiments.yaml
    figures.yaml     the paper's figures (the extension `figures`)
    results/         records of cells that others have trained (the extension `contributions`)

The packs of this package lie in gpas_cli/papers. Extensions of installed packages name others (`Extension.papers`): the
name of the pack, and the module in whose folder it lies. Their numbers, claims and figures are known by name. Their
grids, and all of a pack in another folder, belong to an experiments file that includes them:

    include: [gpas, ./mypaper, {pack: ./theirs, as: theirs}]

As with pip, - and _ are the same in a name; the first words of a name are enough if no other pack's name begins with
them, but for one that continues the name. With `as`, the pack has this name, and NAME. stands before the names of its
grids, sizes, corpora, networks, claims and figures.
"""

from collections.abc import Collection, Mapping
from functools import cache, cached_property
from importlib import util
from pathlib import Path

from gpas_cli.errors import GpasError, nearest
from gpas_cli.extension import installed
from gpas_cli.files import digest_of
from gpas_cli.grid.document import Node, read_document
from gpas_cli.grid.settings import children
from gpas_cli.structure import Frozen

OF_PACKAGE = Path(__file__).parents[1] / "papers"
DOCUMENTS = ("grids", "numbers", "claims", "figures")


class Pack(Frozen):
    """A paper in a folder."""

    name: str
    folder: Path
    installed: bool = True  # whether it belongs to this or another installed package, which is trusted
    prefix: str = ""  # what stands before the names that it declares

    def document(self, name: str) -> Path:
        """Return the path of one of its files, which need not exist: `grids`, `numbers`, `claims` or `figures`."""
        return self.folder / f"{name}.yaml"

    def has(self, name: str) -> bool:
        """Return whether it has this file."""
        return self.document(name).is_file()

    @cached_property
    def _declared(self) -> Mapping[str, Node]:
        return children(read_document(self.document("grids")) if self.has("grids") else None)

    def names(self, section: str) -> Collection[str]:
        """Return the names that its files have in a section, such as `grids` or `sizes`."""
        return children(self._declared.get(section))

    def outside(self, grid: str) -> str:
        """Return the name by which other files know a grid that its files name."""
        return f"{self.prefix}{grid}" if self.prefix and grid in self.names("grids") else grid

    @property
    def digest(self) -> str:
        """16 hexadecimal digits that identify the content of its files."""
        paths = [self.document(name) for name in DOCUMENTS if self.has(name)]
        return digest_of({path.name: path.read_bytes() for path in paths})


@cache
def known_packs() -> dict[str, Pack]:
    """Return the packs of this package and of installed ones by name. Raises GpasError for one without a folder."""
    paths = sorted(OF_PACKAGE.iterdir()) if OF_PACKAGE.is_dir() else []  # the copy that jobs execute has none
    found = {path.name: Pack(path.name, path) for path in paths if path.is_dir() and path.name[0] not in "._"}
    for name, place in (item for one in installed().values() for item in one.papers.items()):
        name = canonical(name)
        try:
            module = util.find_spec(place)
        except ModuleNotFoundError:
            module = None
        if module is None or not module.origin:
            raise GpasError(f"the paper '{name}' of an installed package has no folder: there is no module {place}")
        if name in found:
            raise GpasError(f"an installed package has a paper '{name}', which is also in {found[name].folder}")
        found[name] = Pack(name, Path(module.origin).parent)
    return found


def canonical(name: str) -> str:
    """Return the name of a pack as it is kept: in small letters, with _ in place of -."""
    return name.replace("-", "_").lower()


def pack_named(name: str, packs: Mapping[str, Pack]) -> Pack:
    """Return the pack with this name, or the one that begins with it, if the names of others only continue its name.

    Raises GpasError with the nearest name.
    """
    wanted = canonical(name)
    if wanted in packs:
        return packs[wanted]
    begun = sorted(known for known in packs if wanted and known.startswith(f"{wanted}_"))
    if begun and all(known.startswith(begun[0]) for known in begun):
        return packs[begun[0]]
    raise GpasError(f"no paper '{name}'; {nearest(wanted, packs)}")


def including(grid: str) -> str:
    """Return how to include the grid of a known paper: "add gpas to `include`"; "" if no known paper has it."""
    names = [pack.name for pack in known_packs().values() if grid in pack.names("grids")]
    return f"add {names[0].replace('_', '-')} to `include`" if names else ""

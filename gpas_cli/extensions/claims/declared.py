"""The claims of a file and of the papers, and their selection by name, grid, source and size."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache

from gpas_cli.errors import GpasError, InvalidExperiments, Problem, nearest
from gpas_cli.grid.claims import read_claims
from gpas_cli.grid.companions import tuned_name
from gpas_cli.grid.declared import Claim, Experiments
from gpas_cli.grid.document import read_document
from gpas_cli.grid.packs import Pack, canonical, known_packs
from gpas_cli.grid.settings import root_of

_Sizes = tuple[Claim, ...]  # a claim at paper size, at toy size, or both


def paper_claims(pack: Pack, experiments: Experiments | None = None) -> dict[str, _Sizes]:
    """Return a paper's claims by name. With the experiments that include it, its claims must be about their grids.

    Raises InvalidExperiments for an invalid file.
    """
    if not pack.has("claims"):
        return {}
    problems: list[Problem] = []
    packs = {**(experiments.packs if experiments else known_packs()), canonical(pack.folder.name): pack}
    grids = dict(experiments.grids) if experiments else {}
    own = {name.removeprefix(pack.prefix): grid for name, grid in grids.items() if name.startswith(pack.prefix)}
    parts = root_of(read_document(pack.document("claims")), problems).entries(("claims",))
    found = read_claims(parts["claims"], {**grids, **own} if experiments else None, {**grids, **own}, packs)
    if problems:
        raise InvalidExperiments(problems)
    return {pack.prefix + name: tuple(_outside(claim, pack) for claim in sizes) for name, sizes in found.items()}


def _outside(claim: Claim, pack: Pack) -> Claim:
    """Return a claim of a pack with the names by which other files know the claim, its grids and its paper."""
    compared = (replace(one, grids=tuple(map(pack.outside, one.grids))) for one in claim.comparisons)
    own = canonical(claim.source.paper) == canonical(pack.folder.name)
    source = replace(claim.source, paper=pack.name) if own else claim.source
    return replace(claim, name=pack.prefix + claim.name, comparisons=tuple(compared), source=source)


_installed = cache(paper_claims)


def all_claims(experiments: Experiments) -> dict[str, _Sizes]:
    """Return the claims of the file, then the papers'; a claim of the file replaces one of the same name."""
    found = dict(experiments.claims)
    for pack in experiments.packs.values():
        claims = _installed(pack) if pack.installed else paper_claims(pack, experiments)
        found |= {name: sizes for name, sizes in claims.items() if name not in found}
    return found


def select_claims(
    experiments: Experiments,
    names: Sequence[str] = (),
    *,
    grids: Sequence[str] = (),
    sources: Sequence[str] = (),
    toy: bool | None = None,
) -> list[Claim]:
    """Return the claims with one of the names, about one of the grids, from one of the sources, at toy size or not.

    Without names, claims about grids that the file does not declare, or that need a missing extension, are left out.
    Raises GpasError with the nearest name for an unknown name, grid or source.
    """
    known = all_claims(experiments)
    _check("claim", names, known)
    _check("grid", grids, experiments.grids)
    _check("source", sources, [claim.source.paper for sizes in known.values() for claim in sizes])
    available = {*experiments.available}
    chosen = [one for name in names or known for one in known[name] if names or available.issuperset(one.grids)]
    chosen = [claim for claim in chosen if not grids or set(grids) & set(claim.grids)]
    chosen = [claim for claim in chosen if not sources or claim.source.paper in sources]
    return [claim for claim in chosen if toy is None or claim.toy is toy]


def tuned_claims(experiments: Experiments, claims: Iterable[Claim]) -> list[Claim]:
    """Return the claims about the tuned cells of their grids. Raises GpasError for a grid that is not tuned."""
    found = []
    for claim in claims:
        for grid in claim.grids:
            if tuned_name(grid) not in experiments.grids:
                raise GpasError(f"{grid} is not tuned; `gpas run tuned {grid}` finds the best rate of each method")
        compared = (replace(one, grids=tuple(map(tuned_name, one.grids))) for one in claim.comparisons)
        found.append(replace(claim, comparisons=tuple(compared), tuned=True))
    return found


def undeclared_claims(experiments: Experiments) -> list[Claim]:
    """Return the claims about grids that the file does not declare, or that need a missing extension."""
    available = {*experiments.available}
    claims = [claim for sizes in all_claims(experiments).values() for claim in sizes]
    return [claim for claim in claims if not available.issuperset(claim.grids)]


def _check(what: str, given: Sequence[str], valid: Iterable[str]) -> None:
    known = [name for name in dict.fromkeys(valid) if name]
    for name in given:
        if name not in known:
            raise GpasError(f"no {what} '{name}'; {nearest(name, known)}")

"""The tables of papers that the words of a command name, with our cells that belong in them."""

from collections.abc import Callable, Sequence
from pkgutil import resolve_name

from gpas_cli.cli.console import warn
from gpas_cli.cli.selection import experiments, papers_known, recorded_of
from gpas_cli.errors import GpasError, nearest
from gpas_cli.extension import known as known_extensions
from gpas_cli.grid.declared import Entry
from gpas_cli.grid.expand import expand
from gpas_cli.grid.packs import Pack, pack_named
from gpas_cli.grid.select import select
from gpas_cli.report import papers
from gpas_cli.report.papers.printed import printed, printed_named
from gpas_cli.report.recorded import Recorded
from gpas_cli.report.tables.paper_table import Serving, paper_table, published_table, serving, with_ours
from gpas_cli.report.tables.table import Table


def printed_tables(names: Sequence[str], source: str | None) -> list[Table]:
    """Return the tables called SOURCE:NUMBER, and the tables that grids of these names show beside their numbers; all
    tables of `source` without names, and for a grid that names none of them.

    Raises GpasError for a grid without published numbers if there is no `source`.
    """
    packs = papers_known()
    chosen = pack_named(source, packs) if source else None
    if not names:
        pack = chosen or packs[papers.USUAL]
        if not papers.numbers(pack):
            raise GpasError(
                f"{pack.name} has no `printed` tables; its numbers are beside those of grids: gpas table GRID --paper"
            )
        return _of_paper(pack)
    found = [
        part
        for name in names
        for part in (printed_named(name, packs) if papers.is_printed_name(name) else _of_grid(name, chosen))
    ]
    return list({part.spec.title: part for part in found}.values())


def with_others(table: Table, entries: Sequence[Entry], make: Callable[[Recorded], Table]) -> Table:
    """Return a table of our results with the columns that extensions put beside them. `make` makes such a table."""
    for place in (place for one in known_extensions() for place in one.beside):
        table = resolve_name(place)(table, entries, experiments(), make, warn)
    return table


def _of_paper(pack: Pack) -> list[Table]:
    return [part for number in papers.numbers(pack) for part in printed(pack, number)]


def _of_grid(name: str, chosen: Pack | None) -> list[Table]:
    grids = experiments().grids
    if name not in grids:
        raise GpasError(f"no grid '{name}' in {experiments().path.name}; {nearest(name, grids)}")
    spec = grids[name].table
    declared = {pack: table.partition("@")[0] for pack, table in (spec.published if spec else {}).items()}
    parts = [(part, table) for pack, table in declared.items() if chosen in (pack, None) for part in _of_paper(pack)]
    named = {part.printed for part, wanted in parts if wanted in (table.name for table in part.tables)}
    found = [part for part, _ in parts if part.printed in named]
    if not found and chosen:
        return _of_paper(chosen)
    if not found:
        raise GpasError(f"grid '{name}' has no published table beside it; name one: gpas:2")
    return found


def _with_cells(
    parts: Sequence[Table], names: Sequence[str], where: Sequence[str] | None = None
) -> list[tuple[Table, Serving | None]]:
    """Return every part with the cells that belong in it, None if no grid has any.

    names: the grids to choose from, by default all. where: conditions on their cells.
    """
    declared, wanted = experiments().grids, names or experiments().available
    chosen = select(expand(experiments(), wanted), where or ())
    grids = {name: (declared[name], [entry for entry in chosen if entry.grid == name]) for name in wanted}
    return [(part, serving(part.cells_of or part, grids)) for part in parts]


def cells_of_table(name: str, where: Sequence[str] | None) -> list[Entry]:
    """Return the cells whose numbers a paper's table needs, each once: SOURCE:NUMBER, or NUMBER of the GPAS paper.

    Raises GpasError if no grid has such a cell.
    """
    return list({entry.key: entry for one in parts_with_cells(name, where) for entry in one.entries}.values())


def parts_with_cells(name: str, where: Sequence[str] | None = None) -> list[Serving]:
    """Return the parts of a paper's table that have numbers, with our cells. Raises GpasError if no grid has any."""
    printed_parts = printed_named(name, papers_known())
    parts = _with_cells(printed_parts, (), where)
    served = [found for part, found in parts if part.tables and found and found.places]
    if not served:
        unclear = [why for _, found in parts if found for why in found.unclear.values()]
        reasons = [*unclear, *(table.no_cells for part in printed_parts for table in part.tables)]
        why = reasons[0] if reasons else "it prints settings, not results"
        number = printed_parts[0].printed
        raise GpasError(f"no grid has cells of {number}: {why}; `gpas table {number} --published-only` prints it")
    return served


def paper_sections(
    parts: Sequence[Table], names: Sequence[str], where: Sequence[str] | None, *, declared: bool
) -> list[Table]:
    """Return every part: with our numbers where a grid has such cells, else as printed.

    With `names` of grids, only the parts of which these have cells. declared: show the metric that a grid declares
    beside the one that the published numbers are compared with.
    """
    found = [(part, served) for part, served in _with_cells(parts, names, where) if served or not names]
    chosen = list({entry.id: entry for _, served in found if served for entry in served.entries}.values())

    def made(served: Serving, known: Recorded) -> Table:
        def make(known: Recorded) -> Table:
            return paper_table(served, known.states, known.results, declared=declared)

        return with_others(make(known), served.entries, make)

    with recorded_of(chosen, database=False) as known:
        return [
            published_table(with_ours(part, served.entries, known.results) if served else part, unserved=not served)
            if served is None or part.cells_of
            else made(served, known)
            for part, served in found
        ]

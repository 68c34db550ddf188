"""Write a trained cell as a record for the folder `results` of a paper; `contributions` reads such records."""

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpas_cli.errors import GpasError
from gpas_cli.extensions.contributions.contributed import (
    FACTS,
    OF_ATTEMPT,
    SUFFIX,
    Contribution,
    hardware_and_code,
    name_fault,
    verified,
)
from gpas_cli.extensions.export.archive import public_record, run_files, write_members
from gpas_cli.files import read_regular, replace_file
from gpas_cli.grid.declared import Entry, Experiments
from gpas_cli.grid.settings import safe
from gpas_cli.project import Project
from gpas_cli.report.papers import published
from gpas_cli.report.papers.recipes import deviations
from gpas_cli.report.recorded import stage_keys
from gpas_cli.state.observe import cell_statuses
from gpas_cli.state.status import RESULTS
from gpas_cli.store.rundir import attempts
from gpas_cli.structure import to_mapping

_LONGEST_NAME = 24  # in the name of the file


def write_contribution(
    folder: Path, project: Project, experiments: Experiments, entry: Entry, name: str
) -> tuple[Path, Contribution]:
    """Write the record of a cell, trained by `name`, to `folder`.

    Raises GpasError if the cell has no result, if the record would be refused when it is read, and if there is another
    one of this cell and name.
    """
    if fault := name_fault(name):
        raise GpasError(f"--name {fault}")
    (status,) = cell_statuses(project.runs, [entry])
    if status.state not in RESULTS:
        raise GpasError(f"{entry.id} is {status.state}; a cell is contributed when all of its stages have a result")
    paths = {name: path for name, path in run_files(project.runs, [entry]).items() if OF_ATTEMPT.fullmatch(name)}
    members = {name: read_regular(path)[0] for name, path in paths.items()}
    for attempt in (one for key in stage_keys([entry]) for one in attempts(project.runs, key)):
        if (public := public_record(attempt)[1]) is not None:
            members[f"runs/{attempt.relative}/attempt.json"] = public
    on = hardware_and_code(members, entry, experiments.catalogue)
    differing = tuple(_deviations(experiments, entry))
    facts = Contribution(name=name, key=entry.key, cell=entry.id, deviations=differing, **on)
    members[FACTS] = (json.dumps(to_mapping(facts), indent=1, ensure_ascii=False) + "\n").encode()
    stem = f"{entry.key}-{safe(name)[:_LONGEST_NAME]}"
    out = io.BytesIO()
    write_members(out, stem, members)
    data = out.getvalue()
    path = folder / f"{stem}{SUFFIX}"
    verified(data, path.name, entry, experiments.catalogue)
    if path.exists() and path.read_bytes() != data:
        raise GpasError(f"{path} is another record; delete it to write this one")
    folder.mkdir(parents=True, exist_ok=True)
    replace_file(path, data)
    return path, facts


def _deviations(experiments: Experiments, entry: Entry) -> Iterator[dict[str, Any]]:
    """Yield where the cell differs from the recipes of the published numbers beside its grid, if one declares it."""
    grid = experiments.grids.get(entry.grid)
    for pack, table in grid.table_spec.published.items() if grid else ():
        for one in deviations([entry], published(pack, table)):
            yield {"paper": pack.name, "table": table, **vars(one)}

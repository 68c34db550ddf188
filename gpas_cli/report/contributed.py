"""Results that others have contributed to a paper: files in the folder `results` of its pack, one for each cell.

    KEY-NAME.tar.gz           KEY is the key of the cell
        contribution.json     who has trained it, and on what (`store.records.Contribution`)
        runs/KK/STAGE/NNN/    attempt.json, journal.jsonl and exit.json of each attempt at its stages
        SHA256SUMS            checksums of the other files

A file is read in memory, with limits, and nothing in it is executed. It counts if its checksums are right, its attempts
and journals are of the stages of the cell with its key, and no line of a journal is damaged. That shows that a record
is whole and consistent. It does not show that the training took place: whoever writes a journal can write any number.
"""

import gzip
import hashlib
import io
import re
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gpas_cli.errors import GpasError
from gpas_cli.files import open_regular, parse_json
from gpas_cli.grid.declared import Entry, Experiments
from gpas_cli.project import Project
from gpas_cli.report.recorded import Recorded, recorded
from gpas_cli.report.tables.table import Table, TableCell
from gpas_cli.spec.parse_cell import Catalogue, cell_from
from gpas_cli.state.status import RESULTS
from gpas_cli.store import journal
from gpas_cli.store.projection import Changes, project_events
from gpas_cli.store.records import AttemptRecord, Contribution
from gpas_cli.store.rundir import JOURNAL
from gpas_cli.structure import from_mapping
from gpas_cli.words import byte_size, one_line

FOLDER, SUFFIX = "results", ".tar.gz"
MOST_BYTES, _MOST_CONTENT = 4 << 20, 64 << 20  # of a file, and of what it unpacks to
FACTS, _SUMS = "contribution.json", "SHA256SUMS"
OF_ATTEMPT = re.compile(
    r"runs/([0-9a-f]{2})/(?P<key>\1[0-9a-f]{14})/(?P<number>[0-9]{3,9})/(?:attempt\.json|journal\.jsonl|exit\.json)"
)
_LONGEST_NAME = 60
_ENDED = ("diverged", "not finite")  # states of runs without a number
# What reading bytes of strangers may raise.
_UNREADABLE = (
    *(OSError, EOFError, ArithmeticError, LookupError, TypeError, ValueError, RecursionError),
    *(tarfile.TarError, zlib.error),
)


@dataclass(frozen=True)
class Contributed:
    """A verified record, and its files of attempts by their paths."""

    facts: Contribution
    files: Mapping[str, bytes]


def verified(data: bytes, name: str, entry: Entry, catalogue: Catalogue) -> Contributed:
    """Return the record of the cell `entry` in a file with this name. Raises GpasError if it is not one, with the
    reason."""
    try:
        files = _unpacked(data, name.removesuffix(SUFFIX))
        facts = from_mapping(Contribution, parse_json(files.pop(FACTS)), FACTS)
        if fault := name_fault(facts.name):
            raise GpasError(f"{FACTS}: {fault}")
        if facts.key != entry.key or not name.startswith(entry.key):
            raise GpasError(f"{FACTS} is of the cell {facts.key}, the file's name is of {name[:16]}")
        found = hardware_and_code(files, entry, catalogue)
        if found != (facts.hardware, facts.code, facts.commit):
            raise GpasError(f"{FACTS} names other hardware or code than the journal: {', '.join(found)}")
    except _UNREADABLE as error:
        raise GpasError(f"cannot be read: {type(error).__name__}: {error}") from error
    return Contributed(facts, files)


def name_fault(name: str) -> str:
    """Return what is wrong with the name of a contributor, or ""."""
    if name == name.strip() and 0 < len(name) <= _LONGEST_NAME and name.isprintable():
        return ""
    return f"{name!a} is no name: it has 1 to {_LONGEST_NAME} printable characters, and no space at its ends"


def hardware_and_code(files: Mapping[str, bytes], entry: Entry, catalogue: Catalogue) -> tuple[str, str, str]:
    """Return the hardware, the version of the code and the commit of the result of the cell's first stage.

    Raises GpasError if the files are not those of the cell's stages, or one of these has no result.
    """
    attempts: dict[str, dict[str, None]] = {}  # the names of the attempts, by stage
    for path in sorted(files):
        if found := OF_ATTEMPT.fullmatch(path):
            attempts.setdefault(found["key"], {})[found["number"]] = None
    stages = [stage.key for stage in entry.cell.stages]
    if attempts.keys() != set(stages):
        raise GpasError(f"it has attempts at {', '.join(attempts)}, and the stages of the cell are {', '.join(stages)}")
    results = {}
    for key, numbers in attempts.items():
        for number in sorted(numbers, key=int):
            changes = _attempt(files, key, number, catalogue)
            if changes.columns.get("outcome") in RESULTS:
                results[key] = changes.columns
        if key not in results:
            raise GpasError(f"no attempt at {key} has a result")
    first = results[stages[0]]
    commit = f"{first.get('git_commit') or 'unknown'}{' with changes' if first.get('git_dirty') else ''}"
    return first.get("gpu") or first.get("device") or "unknown", first.get("code") or "unknown", commit


def _attempt(files: Mapping[str, bytes], key: str, number: str, catalogue: Catalogue) -> Changes:
    """Return what the journal of an attempt says. Raises GpasError if it or the record is of something else."""
    folder = f"runs/{key[:2]}/{key}/{number}"
    asked = from_mapping(AttemptRecord, parse_json(files[f"{folder}/attempt.json"]), f"{folder}/attempt.json")
    if (asked.key, asked.number) != (key, int(number)):
        raise GpasError(f"{folder}/attempt.json is of {asked.key}/{asked.number}")
    if key not in [stage.key for stage in cell_from(asked.cell, catalogue).stages]:
        raise GpasError(f"{folder}/attempt.json has a cell with another key")
    lines = list(journal.decoded(files.get(f"{folder}/{JOURNAL}", b"")))
    others = {line.values.get("key") for line in lines if line and line.kind == "start"} - {key, None}
    if others:
        raise GpasError(f"{folder}/journal.jsonl is of {', '.join(map(str, others))}")
    changes = project_events(lines)
    if changes.damaged:
        raise GpasError(f"{folder}/journal.jsonl has {changes.damaged} damaged lines")
    return changes


def _unpacked(data: bytes, folder: str) -> dict[str, bytes]:
    """Return the files of a record, whose names begin with `folder` there, after comparing their checksums."""
    with gzip.open(io.BytesIO(data)) as stream:
        content = stream.read(_MOST_CONTENT + 1)
    if max(len(data) - MOST_BYTES, len(content) - _MOST_CONTENT) > 0:
        most = f"{byte_size(MOST_BYTES)}, and {byte_size(_MOST_CONTENT)} unpacked"
        raise GpasError(f"it is too large: a record has at most {most}")
    files: dict[str, bytes] = {}
    with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as tar:
        for info in tar:
            name = info.name.removeprefix(f"{folder}/")
            known = name in (FACTS, _SUMS) or OF_ATTEMPT.fullmatch(name)
            file = tar.extractfile(info) if info.type == tarfile.REGTYPE and not info.issparse() else None
            if not known or name == info.name or name in files or file is None:
                raise GpasError(f"{info.name!a} is no file of a record in {folder}")
            files[name] = file.read()
    sums = files.pop(_SUMS, b"").decode().splitlines()
    own = {f"{hashlib.sha256(content).hexdigest()}  {name}" for name, content in files.items()}
    if set(sums) != own:
        wrong = sorted(line.partition("  ")[2] for line in own.symmetric_difference(sums))
        raise GpasError(f"the checksum of {wrong[0]!a} is wrong")
    return files


def beside(
    table: Table,
    entries: Sequence[Entry],
    experiments: Experiments,
    make: Callable[[Recorded], Table],
    warn: Callable[[str], None],
) -> Table:
    """Return a table of the entries with the results that others have contributed, for each person in a further column.

    make: makes the same table of what is recorded elsewhere. warn: is called for each file that does not count.
    """
    for name, files in _by_person(entries, experiments, warn).items():
        # The numbers come from the journals by the code that ingests ours, in a database that no other command sees.
        with tempfile.TemporaryDirectory() as place:
            for path, content in files.items():
                target = Path(place, path)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content)
            there = Project(experiments.path, Path(place, "runs"), Path(place, "cache"), f"{place}/gpas.db")
            with recorded(there, entries) as known:
                table = _with_columns(table, make(known), name)
    return table


def _by_person(
    entries: Sequence[Entry], experiments: Experiments, warn: Callable[[str], None]
) -> dict[str, dict[str, bytes]]:
    """Return the verified files of attempts at the entries' stages, by the name of the contributor."""
    found: dict[str, dict[str, bytes]] = {}
    seen: set[tuple[str, str]] = set()
    for path, entry in _paths(entries, experiments):
        try:
            with open_regular(path) as file:
                record = verified(file.read(MOST_BYTES + 1), path.name, entry, experiments.catalogue)
            own = found.setdefault(record.facts.name, {})
            if (record.facts.name, entry.key) in seen or any(own.get(k, v) != v for k, v in record.files.items()):
                raise GpasError(f"another file has other results of {record.facts.name} for the cell or a stage of it")
        except (OSError, GpasError) as error:
            warn(one_line(f"{path} is not shown: {getattr(error, 'strerror', None) or error}"))
            continue
        seen.add((record.facts.name, entry.key))
        own |= record.files
    return found


def _paths(entries: Sequence[Entry], experiments: Experiments) -> Iterator[tuple[Path, Entry]]:
    cells = {entry.key: entry for entry in entries}
    for folder in dict.fromkeys(pack.folder for pack in experiments.packs.values()):
        for path in sorted((folder / FOLDER).glob(f"*{SUFFIX}")):
            if (key := path.name[:16]) in cells:
                yield path, cells[key]


def _with_columns(table: Table, theirs: Table, name: str) -> Table:
    """Return a table with the cells of another one, which has the same rows and columns, beside its own."""
    rows = []
    for row, other in zip(table.rows, theirs.rows, strict=True):
        cells = [_with_cell(own, cell, name) for own, cell in zip(row.cells, other.cells, strict=True)]
        rows.append(replace(row, cells=tuple(cells)))
    columns = [
        replace(column, contributors=(*column.contributors, name))
        if any(name in row.cells[i].contributed for row in rows)
        else column
        for i, column in enumerate(table.columns)
    ]
    return replace(table, columns=tuple(columns), rows=tuple(rows))


def _with_cell(own: TableCell, theirs: TableCell, name: str) -> TableCell:
    runs = tuple(run for run in theirs.statuses if run.value is not None or (run.result and run.state in _ENDED))
    if not runs:
        return own
    shown = replace(theirs, statuses=runs, others=(), mark="", printed={})
    return replace(own, contributed={**own.contributed, name: shown})

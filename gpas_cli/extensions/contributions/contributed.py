"""Results that others have contributed to a paper: files in the folder `results` of its pack, one for each cell.

    KEY-NAME.tar.gz           KEY is the key of the cell
        contribution.json     who has trained it, and on what (`Contribution`)
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
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpas_cli.errors import GpasError
from gpas_cli.files import open_regular, parse_json
from gpas_cli.grid.declared import Entry, Experiments
from gpas_cli.project import Project
from gpas_cli.report.recorded import Recorded, recorded
from gpas_cli.report.tables.table import Table
from gpas_cli.spec.parse_cell import Catalogue, cell_from
from gpas_cli.state.status import RESULTS
from gpas_cli.store.journal import Line, decoded
from gpas_cli.store.projection import project_events
from gpas_cli.store.records import AttemptRecord
from gpas_cli.store.rundir import JOURNAL
from gpas_cli.structure import Record, from_mapping
from gpas_cli.words import byte_size, count, one_line

FOLDER, SUFFIX, FACTS = "results", ".tar.gz", "contribution.json"
MOST_BYTES, _MOST_CONTENT = 16 << 20, 64 << 20  # of a file, and of what it unpacks to
OF_ATTEMPT = re.compile(r"runs/([0-9a-f]{2})/\1[0-9a-f]{14}/[0-9]{3,9}/(?:attempt\.json|journal\.jsonl|exit\.json)")
_SUMS = "SHA256SUMS"
_STAGE = len("runs/KK/") + 16  # characters of a path that name its stage
_LONGEST_NAME = 60
_ENDED = ("diverged", "not finite")  # states of runs without a number
# What reading bytes of strangers may raise.
_UNREADABLE = (
    *(OSError, EOFError, ArithmeticError, LookupError, TypeError, ValueError, RecursionError),
    *(tarfile.TarError, zlib.error),
)


class Contribution(Record, kw_only=True):
    """contribution.json: `name` has trained the cell with this key, called `cell` there, on this hardware.

    `hardware`, `code` and `commit` are what the journal of its first stage says. `deviations` are the settings in which
    the cell differed from the recipes of published numbers when the record was made.
    """

    schema: int = 1
    name: str
    key: str
    cell: str
    hardware: str
    code: str
    commit: str
    deviations: tuple[Mapping[str, Any], ...] = ()


def verified(data: bytes, name: str, entry: Entry, catalogue: Catalogue) -> tuple[str, dict[str, bytes]]:
    """Return who has contributed the record of the cell `entry` in a file with this name, and its files of attempts.

    Raises GpasError with the reason if it is no record, or not of this cell.
    """
    try:
        files = _unpacked(data, name.removesuffix(SUFFIX))
        facts = from_mapping(Contribution, parse_json(files.pop(FACTS)), FACTS)
        if fault := name_fault(facts.name):
            raise GpasError(f"{FACTS}: {fault}")
        if facts.key != entry.key:
            raise GpasError(f"{FACTS} is of the cell {facts.key}")
        found = hardware_and_code(files, entry, catalogue)
    except _UNREADABLE as error:
        raise GpasError(f"cannot be read: {type(error).__name__}: {error}") from error
    if found != {name: getattr(facts, name) for name in found}:
        raise GpasError(f"{FACTS} names other hardware or code than the journal, which has {', '.join(found.values())}")
    return facts.name, files


def name_fault(name: str) -> str:
    """Return what is wrong with the name of a contributor, or ""."""
    if name == name.strip() and 0 < len(name) <= _LONGEST_NAME and name.isprintable():
        return ""
    return f"{name!a} is no name: write 1 to {_LONGEST_NAME} printable characters without spaces at the ends"


def hardware_and_code(files: Mapping[str, bytes], entry: Entry, catalogue: Catalogue) -> dict[str, Any]:
    """Return the `hardware`, `code` and `commit` of the result of the cell's first stage.

    files: of attempts, by their paths. Raises GpasError unless they have results of all stages of the cell, up to one
    that diverged, and of nothing else.
    """
    results: dict[str, Mapping[str, Any]] = {}
    folders = {path.rpartition("/")[0] for path in files}
    for folder in sorted(folders, key=lambda name: (len(name), name)):
        key, columns = _attempt(files, folder, catalogue)
        results[key] = columns if columns.get("outcome") in RESULTS else results.get(key, {})
    needed: list[str] = []
    for stage in entry.cell.stages:
        if not needed or results.get(needed[-1], {}).get("outcome") != "diverged":
            needed.append(stage.key)
    if set(needed) != results.keys() or not all(results.values()):
        raise GpasError(f"there are attempts at {', '.join(results)}; results of {', '.join(needed)} are needed")
    first = results[needed[0]]
    found = {"hardware": first.get("gpu") or first.get("device"), "code": first.get("code")}
    commit = f"{first.get('git_commit') or 'unknown'}{' with changes' if first.get('git_dirty') else ''}"
    return {name: value or "unknown" for name, value in found.items()} | {"commit": commit}


def _attempt(files: Mapping[str, bytes], folder: str, catalogue: Catalogue) -> tuple[str, Mapping[str, Any]]:
    """Return the stage of an attempt and the columns that its journal gives it in the database."""
    _, _, key, number = folder.split("/")
    asked = from_mapping(AttemptRecord, parse_json(files[f"{folder}/attempt.json"]), f"{folder}/attempt.json")
    if (asked.key, asked.number) != (key, int(number)):
        raise GpasError(f"{folder}/attempt.json is of {asked.key}/{asked.number}")
    if key not in [stage.key for stage in cell_from(asked.cell, catalogue).stages]:
        raise GpasError(f"{folder}/attempt.json has the settings of a cell with another key")
    changes = project_events(_lines_of(key, files.get(f"{folder}/{JOURNAL}", b"")))
    if changes.damaged:
        raise GpasError(f"{folder}/{JOURNAL} has {count(changes.damaged, 'damaged line')}")
    return key, changes.columns


def _lines_of(key: str, data: bytes) -> Iterator[Line | None]:
    """Yield the lines of a journal. Raises GpasError if it is of another stage."""
    for line in decoded(data):
        if line and line.kind == "start" and line.values.get("key", key) != key:
            raise GpasError(f"the journal of {key} is of {line.values['key']}")
        yield line


def _unpacked(data: bytes, folder: str) -> dict[str, bytes]:
    """Return the files of a record, whose names begin with `folder` there, after comparing their checksums."""
    with gzip.open(io.BytesIO(data)) as stream:
        content = stream.read(_MOST_CONTENT + 1) if len(data) <= MOST_BYTES else b""
    if not 0 < len(content) <= _MOST_CONTENT:
        most = f"{byte_size(MOST_BYTES)}, and {byte_size(_MOST_CONTENT)} unpacked"
        raise GpasError(f"the record is empty or too large: at most {most}")
    files: dict[str, bytes] = {}
    with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as tar:
        for info in tar:
            name = info.name.removeprefix(f"{folder}/")
            file = tar.extractfile(info) if info.type == tarfile.REGTYPE and not info.issparse() else None
            known = name in (FACTS, _SUMS) or OF_ATTEMPT.fullmatch(name)
            if not known or name == info.name or name in files or file is None:
                raise GpasError(f"{info.name!a} is no file of a record {folder}")
            files[name] = file.read()
    sums = set(files.pop(_SUMS, b"").decode().splitlines())
    own = {f"{hashlib.sha256(content).hexdigest()}  {name}" for name, content in files.items()}
    if wrong := sorted(line.partition("  ")[2] for line in own ^ sums):
        raise GpasError(f"{_SUMS} is not right for {wrong[0]!a}")
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
                warn(known.problem)
                try:
                    table = _with_columns(table, make(known), name)
                except GpasError as error:  # a number that only our results have
                    warn(f"the results of {name} are not shown: {error}")
    return table


def _by_person(
    entries: Sequence[Entry], experiments: Experiments, warn: Callable[[str], None]
) -> dict[str, dict[str, bytes]]:
    """Return the verified files of attempts at the entries' stages, by the name of the contributor."""
    cells = {entry.key: entry for entry in entries}
    folders = dict.fromkeys(pack.folder / FOLDER for pack in experiments.packs.values())
    paths = [path for folder in folders for path in sorted(folder.glob(f"*{SUFFIX}")) if path.name[:16] in cells]
    found: dict[str, dict[str, bytes]] = {}
    seen: set[tuple[str, str]] = set()
    for path in paths:
        entry = cells[path.name[:16]]
        try:
            with open_regular(path) as file:
                name, files = verified(file.read(MOST_BYTES + 1), path.name, entry, experiments.catalogue)
            own = found.setdefault(name, {})
            shared = {one[:_STAGE] for one in own} & {one[:_STAGE] for one in files}
            alike = all(own.get(one) == files.get(one) for one in own | files if one[:_STAGE] in shared)
            if (name, entry.key) in seen or not alike:
                raise GpasError(f"another file has other results of {name} for the cell or a stage of it")
        except (OSError, GpasError) as error:
            warn(one_line(f"{path} is not shown: {getattr(error, 'strerror', None) or error}"))
        else:
            seen.add((name, entry.key))
            own |= files
    return found


def _with_columns(table: Table, theirs: Table, name: str) -> Table:
    """Return a table with the cells of another one, which has the same rows and columns, beside its own."""
    filled: set[int] = set()
    rows = []
    for row, other in zip(table.rows, theirs.rows, strict=True):
        cells = list(row.cells)
        for i, cell in enumerate(other.cells):
            if runs := tuple(run for run in cell.statuses if run.state in ("done", *_ENDED)):
                shown = replace(cell, statuses=runs, others=(), mark="", printed={})
                cells[i] = replace(cells[i], contributed={**cells[i].contributed, name: shown})
                filled.add(i)
        rows.append(replace(row, cells=tuple(cells)))
    columns = list(table.columns)
    for i in filled:
        columns[i] = replace(columns[i], contributors=(*columns[i].contributors, name))
    return replace(table, columns=tuple(columns), rows=tuple(rows))

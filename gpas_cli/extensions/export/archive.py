"""An archive of tables: their numbers with everything behind them, from which a reader can print the same tables.

    NAME/README.md              what is inside, and how to print the tables
    NAME/archive.json           the grids, versions and counts
    NAME/experiments.yaml       the declared grids, with the plugins, papers and files of tasks that they name
    NAME/runs/KK/KEY/NNN/       the records and the journal of each attempt at a stage of the grids
    NAME/runs/.code/HASH/       the code that they ran, with the included papers of the package
    NAME/tables/GRID.md, .csv   the tables as they were printed
    NAME/published/PAPER.yaml   the published numbers beside them
    NAME/ro-crate-metadata.json the same for machines (`ro_crate`)
    NAME/SHA256SUMS             checksums of all other files

Checkpoints, logs and texts are not included, nor are forgotten attempts and networks that were not trained here: a
table of the archive has neither. The same content gives the same bytes: files are sorted by name, and have
no time, owner or permissions of their own.

No archive has the values of `spec.run.PRIVATE`, which may be secrets: attempts of earlier versions recorded them, and
the experiments file has them. Its comments and texts, and names of accounts, machines and folders are archived.
"""

import gzip
import hashlib
import io
import json
import os
import re
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Annotated, Any

from jinja2 import Template

from gpas_cli import __version__
from gpas_cli.errors import GpasError
from gpas_cli.extensions.export import ro_crate
from gpas_cli.files import read_regular
from gpas_cli.grid.companions import companions
from gpas_cli.grid.declared import Entry, Experiments
from gpas_cli.grid.document import parse_document, read_document
from gpas_cli.grid.expand import expand
from gpas_cli.grid.load import interpret
from gpas_cli.grid.packs import OF_PACKAGE, Pack
from gpas_cli.grid.resources import private_settings
from gpas_cli.project import Project
from gpas_cli.report.recorded import recorded, stage_keys
from gpas_cli.report.tables.grid_table import build
from gpas_cli.report.tables.render import render
from gpas_cli.spec.downstream import is_local, local_file
from gpas_cli.spec.run import PRIVATE, hidden
from gpas_cli.store import peek
from gpas_cli.store.records import AttemptRecord
from gpas_cli.store.rundir import AttemptDir, attempts, read_json, stage_dir
from gpas_cli.store.snapshot import PACKAGE, snapshot_path
from gpas_cli.structure import Frozen, from_mapping, to_mapping
from gpas_cli.words import count

_README = Path(__file__).parent / "assets" / "archive.md"
_SUFFIX = ".tar.gz"
_OF_STAGE = ("claim.json", "rerun.json", "cancel.json")
_OF_ATTEMPT = ("attempt.json", "journal.jsonl", "exit.json", "cancel.json")
_CODE = re.compile(r"[0-9a-f]{16}")

Member = Path | bytes  # a file of the project, or content


class Archive(Frozen):
    """An archive of tables."""

    path: Path
    grids: tuple[str, ...]
    cells: int
    attempts: int
    files: int
    size: Annotated[int, "bytes"]
    digest: Annotated[str, "sha256 of the file"]
    without_code: Annotated[tuple[str, ...], "versions of the code whose copy is gone"]
    removed: Annotated[tuple[str, ...], "FILE:LINE:COLUMN, or FILE for a record, of each value that may be a secret"]


def write_archive(
    path: Path, project: Project, experiments: Experiments, grids: Mapping[str, Sequence[Entry]]
) -> Archive:
    """Write the archive of the tables of `grids` to `path`, which ends in .tar.gz.

    Raises GpasError for another name, if nothing has been run, for a file that leads out of the project, and if values
    that may be secrets cannot be removed. An existing file is replaced once the new one is complete.
    """
    if not path.name.endswith(_SUFFIX) or path.name == _SUFFIX:
        raise GpasError(f"{path}: the name of an archive ends in {_SUFFIX}")
    entries = list({entry.id: entry for each in grids.values() for entry in each}.values())
    tried = [attempt for key in stage_keys(entries) for attempt in attempts(project.runs, key)]
    if not tried:
        raise GpasError(f"nothing to archive: no cell of {', '.join(grids)} has been run")
    members: dict[str, Member] = dict(_printed(project, experiments, grids))
    members |= _declared(project, experiments, entries)
    members |= run_files(project.runs, entries)
    changed, removed = _public(experiments, grids)
    records = {f"runs/{one.relative}/attempt.json": public_record(one) for one in tried}
    cleaned = {name: record for name, (_, record) in records.items() if record}
    members |= changed | cleaned
    codes = sorted({code for code, _ in records.values() if _CODE.fullmatch(code)})
    copies = {code: files for code in codes if (files := _code_files(project.runs, code, experiments.included))}
    members |= {name: file for files in copies.values() for name, file in files.items()}
    counts = {"cells": len({entry.key for entry in entries}), "attempts": len(tried)}
    papers = {pack.name: pack.digest for pack in experiments.packs.values() if pack in experiments.included}
    facts = {"schema": 1, "gpas": __version__, "grids": list(grids), "code": codes, "papers": papers, **counts}
    members["archive.json"] = (json.dumps(facts, indent=1) + "\n").encode()
    members["README.md"] = _readme(experiments, facts).encode()
    described = [name for name in members if not name.startswith("runs/")]
    members[ro_crate.NAME] = ro_crate.metadata(described, list(grids), tried, copies)
    with _replacing(path) as file:
        write_members(file, path.name.removesuffix(_SUFFIX), members)
    with path.open("rb") as written:
        digest = hashlib.file_digest(written, "sha256").hexdigest()
    return Archive(
        path=path,
        grids=tuple(grids),
        **counts,
        files=len(members) + 1,
        size=path.stat().st_size,
        digest=digest,
        without_code=tuple(code for code in codes if code not in copies),
        removed=(*removed, *cleaned),
    )


def _public(experiments: Experiments, grids: Mapping[str, Sequence[Entry]]) -> tuple[dict[str, Member], list[str]]:
    """Return the experiments file without the values of PRIVATE settings if it has any, and their places.

    Raises GpasError if the file would declare other cells.
    """
    name = experiments.path.name
    text = experiments.path.read_bytes().decode("utf-8-sig")
    changed, places = _without_values(text, name)
    if changed == text:
        return {}, []
    try:
        again = interpret(parse_document(changed, name), experiments.path)
        same = all([each.key for each in expand(again, [grid])] == [each.key for each in grids[grid]] for grid in grids)
        if same and _without_values(changed, name)[0] == changed:
            return {"experiments.yaml": changed.encode()}, places
        reason = "an alias shares one of them with another setting; write it out there"
    except GpasError as error:
        reason = str(error)
    raise GpasError(f"{', '.join(places)}: these values may be secrets and cannot be removed: {reason}")


def _without_values(text: str, name: str) -> tuple[str, list[str]]:
    """Return an experiments file with *** for the values of PRIVATE settings, all else as it was, and their places."""
    found: dict[tuple[int, int], tuple[str, str]] = {}
    for setting, node in private_settings(parse_document(text, name)):
        if node.span and isinstance(node.value, str) and (public := hidden(setting, node.value)) != node.value:
            found[node.span] = f"'{public}'", str(node.mark)
    for (start, end), (value, _) in sorted(found.items(), reverse=True):
        before = text[start:end]
        anchor = re.match(r"(&\S+\s+)?", before)
        ending = before[len(before.rstrip()) :]  # of a block scalar
        text = f"{text[:start]}{anchor[0] if anchor else ''}{value}{ending}{text[end:]}"
    return text, [place for _, place in found.values()]


def public_record(attempt: AttemptDir) -> tuple[str, bytes | None]:
    """Return the version of the code of an attempt, and its record without the values of PRIVATE settings.

    The record is None if the file has no such value; earlier versions recorded them. Raises OSError and StoreError.
    """
    values = read_json(attempt.attempt_path)
    record = from_mapping(AttemptRecord, values, attempt.attempt_path)
    asked = {**values["resources"], **{name: to_mapping(record)["resources"][name] for name in PRIVATE}}
    if all(values["resources"].get(name, asked[name]) == asked[name] for name in PRIVATE):
        return record.code, None
    return record.code, (json.dumps({**values, "resources": asked}, indent=1, ensure_ascii=False) + "\n").encode()


def _printed(
    project: Project, experiments: Experiments, grids: Mapping[str, Sequence[Entry]]
) -> Iterator[tuple[str, bytes]]:
    """Yield the tables as Markdown and CSV, and the published numbers beside them."""
    for name, entries in grids.items():
        spec = experiments.grids[name].table_spec
        with recorded(project, entries) as known:
            made = build(entries, known.states, known.results, spec)
        for form, suffix in (("markdown", "md"), ("csv", "csv")):
            yield f"tables/{name}.{suffix}", render(made, form).encode()
        for pack in spec.published:
            yield f"published/{pack.name}.yaml", pack.document("numbers").read_bytes()


def _declared(project: Project, experiments: Experiments, entries: Sequence[Entry]) -> dict[str, Member]:
    """Return the experiments file, its companions, and the plugins and tasks that it names."""
    folder = project.config.parent
    members: dict[str, Member] = {"experiments.yaml": _inside(experiments.path, folder)}
    members |= {f"experiments{ending}": _inside(path, folder) for ending, path in companions(project.config).items()}
    declared = read_document(experiments.path).plain().get("plugins") or []
    sections = [stage.parameters for entry in entries for stage in entry.cell.later]
    tasks = {task for section in sections for task in getattr(section, "tasks", ())}
    for name in [*declared, *sorted(local_file(task) for task in tasks if is_local(task))]:
        found = _inside(folder / name, folder)
        if Path(name).is_absolute() or ".." in Path(os.path.normpath(name)).parts:
            raise GpasError(f"{name} is not a path below the folder of experiments.yaml; an archive cannot hold it")
        members[Path(os.path.normpath(name)).as_posix()] = found
    for pack in (pack for pack in experiments.included if not pack.installed):
        for path in _files_below(pack.folder):
            real = _inside(path, folder)
            members[real.relative_to(folder.resolve()).as_posix()] = real
    return members


def run_files(runs: Path, entries: Sequence[Entry]) -> dict[str, Path]:
    """Return the records of all stages of the cells, and the records and journals of their attempts."""
    found = [runs / peek.PROJECT_FILE]
    for key in stage_keys(entries):
        found += [stage_dir(runs, key) / name for name in _OF_STAGE]
        found += [attempt.path / name for attempt in attempts(runs, key) for name in _OF_ATTEMPT]
    return {f"runs/{path.relative_to(runs).as_posix()}": _inside(path, runs) for path in found if os.path.lexists(path)}


def _code_files(runs: Path, code: str, papers: Sequence[Pack]) -> dict[str, Member]:
    """Return the copy of the code, with the papers of the package, which it has without them for its jobs."""
    folder = snapshot_path(runs, code) / PACKAGE
    found: dict[str, Member] = {
        f"runs/{path.relative_to(runs).as_posix()}": _inside(path, runs) for path in _files_below(folder)
    }
    for pack in papers if found else ():
        if pack.folder.is_relative_to(OF_PACKAGE):
            place = f"runs/{(folder / OF_PACKAGE.name / pack.folder.name).relative_to(runs).as_posix()}"
            found |= {f"{place}/{path.relative_to(pack.folder).as_posix()}": path for path in _files_below(pack.folder)}
    return found


def _files_below(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if not path.is_dir() and "__pycache__" not in path.parts)


def _inside(path: Path, root: Path) -> Path:
    """Return the real path of a file below `root`. Raises GpasError if it leads out of it, or is not there."""
    real = path.resolve()
    if not real.is_relative_to(root.resolve()):
        raise GpasError(
            f"{path} leads out of {root}, to {real}; an archive holds only files of the project, so copy it there"
        )
    if not real.is_file():
        raise GpasError(f"{path} is not a file")
    return real


def write_members(file: IO[bytes], name: str, members: Mapping[str, Member]) -> None:
    """Write the members in order of name, and then their checksums."""
    sums = []
    with (
        gzip.GzipFile("", "wb", compresslevel=6, fileobj=file, mtime=0) as out,
        tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for member in sorted(members):
            sums.append(f"{_add(tar, f'{name}/{member}', members[member])}  {member}\n")
        _add(tar, f"{name}/SHA256SUMS", "".join(sums).encode())


def _add(tar: tarfile.TarFile, name: str, content: Member) -> str:
    """Add a file and return its sha256. A journal that grows meanwhile has what it had when it was read."""
    data = read_regular(content)[0] if isinstance(content, Path) else content
    info = tarfile.TarInfo(name)
    info.mode, info.size = 0o644, len(data)
    tar.addfile(info, io.BytesIO(data))
    return hashlib.sha256(data).hexdigest()


@contextmanager
def _replacing(path: Path) -> Iterator[IO[bytes]]:
    """Yield a file that replaces `path` once it is complete. Raises GpasError if it cannot be written."""
    aside = path.with_name(f".{path.name}.{os.urandom(8).hex()}")
    try:
        with aside.open("xb") as file:
            yield file
        aside.replace(path)
    except OSError as error:
        raise GpasError(f"{path}: the archive cannot be written: {error.strerror or error}") from error
    finally:
        aside.unlink(missing_ok=True)


def _readme(experiments: Experiments, facts: Mapping[str, Any]) -> str:
    """Return the text of README.md, with the commands that print the tables."""
    beside = {name: " --paper" if experiments.grids[name].table_spec.published else "" for name in facts["grids"]}
    template = Template(_README.read_text("utf-8"), trim_blocks=True, keep_trailing_newline=True)
    text: str = template.render(
        grids=", ".join(beside),
        cells=count(facts["cells"], "cell"),
        attempts=count(facts["attempts"], "attempt"),
        version=__version__,
        commands=[f"gpas table {name}{option}" for name, option in beside.items()],
        codes=", ".join(facts["code"]) or "no version is recorded",
    )
    return text

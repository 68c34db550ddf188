"""An archive of tables: their numbers with everything behind them, from which a reader can print the same tables.

    NAME/README.md              what is inside, and how to print the tables
    NAME/archive.json           the grids, versions and counts
    NAME/experiments.yaml       the declared grids, with the plugins and files of tasks that they name
    NAME/runs/KK/KEY/NNN/       the records and the journal of each attempt at a stage of the grids
    NAME/runs/.code/HASH/       the code that they ran
    NAME/tables/GRID.md, .csv   the tables as they were printed
    NAME/published/SOURCE.yaml  the published numbers beside them
    NAME/SHA256SUMS             checksums of all other files

Checkpoints, logs and texts are not included, nor are forgotten attempts and networks that were not trained here: a
table of the archive has neither. The same content gives the same bytes: files are sorted by name, and have
no time, owner or permissions of their own.

An anonymous archive, for a double-blind review, does not have what identifies its authors and their machines:

    hosts, nodes                       host-1, host-2, ... wherever a record, a journal or a text names them
    users                              user-1, ...
    jobs, submissions                  job-1, ...
    the project's folder, the cache    /project, /cache; the user's home /home/user
    git commits, process ids           removed: a commit can be looked up
    settings of the cluster            accounts, partitions, constraints and set-up commands are removed from records

The same name gets the same substitute everywhere. Numbers, times, versions and texts of cells do not change. Copies of
the code, plugins and files of tasks are checked and not changed, because results are tied to their content.
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
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Annotated, Any

from jinja2 import Template

from gpas_cli import __version__
from gpas_cli.errors import GpasError, StoreError
from gpas_cli.files import open_regular, parse_json
from gpas_cli.grid.companions import companions
from gpas_cli.grid.declared import Entry, Experiments
from gpas_cli.grid.document import parse_document, read_document
from gpas_cli.grid.expand import expand
from gpas_cli.grid.load import interpret
from gpas_cli.permissions import user_name
from gpas_cli.project import Project
from gpas_cli.report import papers
from gpas_cli.report.recorded import recorded, stage_keys
from gpas_cli.report.tables.render import render
from gpas_cli.report.tables.table import build
from gpas_cli.spec.downstream import is_local, local_file
from gpas_cli.store import peek
from gpas_cli.store.journal import decode, encode
from gpas_cli.store.rundir import AttemptDir, attempts, stage_dir
from gpas_cli.store.snapshot import PACKAGE, snapshot_path
from gpas_cli.words import count

_README = Path(__file__).parent / "assets" / "archive.md"
_SUFFIXES = (".tar.gz", ".tgz", ".tar")
_OF_STAGE = ("claim.json", "rerun.json", "cancel.json")
_OF_ATTEMPT = ("attempt.json", "journal.jsonl", "exit.json", "cancel.json")
_CODE = re.compile(r"[0-9a-f]{16}")

Member = Path | bytes  # a file of the project, or content

# Fields of records and events -> what the text in them names.
_NAMED = {
    **dict.fromkeys(("host", "hostname", "node", "nodes"), "host"),
    "user": "user",
    **dict.fromkeys(("job", "submission", "submitter", "id", "token", "boot"), "job"),
}
_REMOVED = ("git", "pid")
# In `resources`.
_OF_CLUSTER = ("partition", "account", "qos", "constraint", "sbatch", "setup", "environment", "python")
_UNCHANGED = ("cell", "axes", "kind", "stage", "key", "parents", "grid", "name", "code", "plugin", "stage_plugins")
# Settings of a cluster in experiments.yaml.
_CLUSTER = re.compile(r"\b(partition|account|qos|constraint)(\s*:\s*)(\"[^\"]*\"|'[^']*'|[^\s,}#]+)")
_RECORDS = (".json", ".jsonl")
_TEXTS = (".md", ".csv", ".yaml")
_SHORTEST = 3  # characters of a name that is replaced within texts


@dataclass(frozen=True)
class Archive:
    """An archive of tables."""

    path: Path
    grids: tuple[str, ...]
    cells: int
    attempts: int
    files: int
    size: Annotated[int, "bytes"]
    digest: Annotated[str, "sha256 of the file"]
    without_code: Annotated[tuple[str, ...], "versions of the code whose copy is gone"]
    names_left: Annotated[tuple[str, ...], "with --anonymous: FILE: NAME for each name that could not be removed"] = ()


def write_archive(
    path: Path,
    project: Project,
    experiments: Experiments,
    grids: Mapping[str, Sequence[Entry]],
    *,
    anonymous: bool = False,
) -> Archive:
    """Write the archive of the tables of `grids` to `path`, which ends in .tar.gz, .tgz or .tar.

    anonymous: replace the names of people and machines (`gpas_cli.origin.archive`).

    Raises GpasError for another name, if nothing has been run, and for a file that leads out of the project. An
    existing file is replaced once the new one is complete.
    """
    suffix = next((end for end in _SUFFIXES if path.name.endswith(end) and path.name != end), None)
    if suffix is None:
        raise GpasError(f"{path}: the name of an archive ends in {', '.join(_SUFFIXES)}")
    entries = list({entry.id: entry for each in grids.values() for entry in each}.values())
    tried = [attempt for key in stage_keys(entries) for attempt in attempts(project.runs, key)]
    if not tried:
        raise GpasError(f"nothing to archive: no cell of {', '.join(grids)} has been run")
    members: dict[str, Member] = dict(_printed(project, experiments, grids))
    members |= _declared(project, experiments, entries)
    members |= _run_files(project.runs, entries)
    codes = _codes(tried)
    copies = {code: files for code in codes if (files := _code_files(project.runs, code))}
    members |= {name: file for files in copies.values() for name, file in files.items()}
    counts = {"cells": len({entry.key for entry in entries}), "attempts": len(tried)}
    facts = {"schema": 1, "gpas": __version__, "grids": list(grids), "code": codes, **counts}
    members["archive.json"] = (json.dumps(facts, indent=1) + "\n").encode()
    members["README.md"] = _readme(experiments, facts, anonymous).encode()
    name = path.name.removesuffix(suffix)
    left: list[str] = []
    with TemporaryDirectory(prefix="gpas-archive-") as aside, _replacing(path) as file:
        if anonymous:
            members, left = anonymised(members, project.config.parent, project.cache, Path(aside))
            _check_keys(members["experiments.yaml"], experiments, grids)
        _write(file, name, members, compressed=suffix != ".tar")
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
        names_left=tuple(left),
    )


def _check_keys(text: Member, experiments: Experiments, grids: Mapping[str, Sequence[Entry]]) -> None:
    """Raise GpasError if the changed experiments file does not declare the same cells."""
    content = text if isinstance(text, bytes) else text.read_bytes()
    try:
        changed = interpret(parse_document(content.decode(), experiments.path.name), experiments.path)
        keys = [[entry.key for entry in expand(changed, [name])] for name in grids]
    except GpasError as error:
        raise GpasError(f"after names of people and machines are removed: {error}") from error
    if keys != [[entry.key for entry in entries] for entries in grids.values()]:
        raise GpasError(
            f"{experiments.path.name}: cells depend on a path or a name that identifies its author, such as "
            "`data.path`; make it a path relative to the project"
        )


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
        for source in spec.published:
            yield f"published/{source}.yaml", papers.path_of(source).read_bytes()


def _declared(project: Project, experiments: Experiments, entries: Sequence[Entry]) -> dict[str, Member]:
    """Return the experiments file, its companions, and the plugins and tasks that it names."""
    folder = project.config.parent
    members: dict[str, Member] = {"experiments.yaml": _inside(experiments.path, folder)}
    members |= {f"experiments{ending}": _inside(path, folder) for ending, path in companions(project.config).items()}
    declared = read_document(experiments.path).plain().get("plugins") or []
    sections = [section for entry in entries if (section := entry.cell.parameters("downstream"))]
    tasks = {task for section in sections for task in section.tasks}
    for name in [*declared, *sorted(local_file(task) for task in tasks if is_local(task))]:
        found = _inside(folder / name, folder)
        if Path(name).is_absolute() or ".." in Path(os.path.normpath(name)).parts:
            raise GpasError(f"{name} is not a path below the folder of experiments.yaml; an archive cannot hold it")
        members[Path(os.path.normpath(name)).as_posix()] = found
    return members


def _run_files(runs: Path, entries: Sequence[Entry]) -> dict[str, Member]:
    """Return the records of all stages of the cells, and the records and journals of their attempts."""
    found = [runs / peek.PROJECT_FILE]
    for key in stage_keys(entries):
        found += [stage_dir(runs, key) / name for name in _OF_STAGE]
        found += [attempt.path / name for attempt in attempts(runs, key) for name in _OF_ATTEMPT]
    return {f"runs/{path.relative_to(runs).as_posix()}": _inside(path, runs) for path in found if os.path.lexists(path)}


def _codes(tried: Sequence[AttemptDir]) -> list[str]:
    """Return the versions of the code of all attempts, sorted."""
    codes = set()
    for attempt in tried:
        try:
            codes.add(attempt.read_attempt().code)
        except (OSError, StoreError):
            continue  # its journal is archived all the same
    return sorted(code for code in codes if _CODE.fullmatch(code))


def _code_files(runs: Path, code: str) -> dict[str, Member]:
    folder = snapshot_path(runs, code) / PACKAGE
    paths = sorted(path for path in folder.rglob("*") if not path.is_dir() and "__pycache__" not in path.parts)
    return {f"runs/{path.relative_to(runs).as_posix()}": _inside(path, runs) for path in paths}


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


def _write(file: IO[bytes], name: str, members: Mapping[str, Member], *, compressed: bool) -> None:
    """Write the members in order of name, and then their checksums."""
    out = gzip.GzipFile("", "wb", compresslevel=6, fileobj=file, mtime=0) if compressed else file
    sums = []
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for member in sorted(members):
            sums.append(f"{_add(tar, f'{name}/{member}', members[member])}  {member}\n")
        _add(tar, f"{name}/SHA256SUMS", "".join(sums).encode())
    if compressed:
        out.close()


def _add(tar: tarfile.TarFile, name: str, content: Member) -> str:
    """Add a file and return its sha256. A journal that grows meanwhile is cut at its size when it was opened."""
    info = tarfile.TarInfo(name)
    info.mode = 0o644
    with open_regular(content) if isinstance(content, Path) else io.BytesIO(content) as file:
        info.size = file.seek(0, os.SEEK_END)
        file.seek(0)
        read = _Read(file)
        tar.addfile(info, read)  # type: ignore[arg-type]  # of a file it only calls `read`
    return read.digest.hexdigest()


class _Read:
    """A file and the sha256 of what has been read of it: a journal may be larger than the memory."""

    def __init__(self, file: IO[bytes]):
        self.file = file
        self.digest = hashlib.sha256()

    def read(self, size: int) -> bytes:
        """Return the next bytes."""
        content = self.file.read(size)
        self.digest.update(content)
        return content


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


def _readme(experiments: Experiments, facts: Mapping[str, Any], anonymous: bool) -> str:
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
        anonymous=anonymous,
    )
    return text


@dataclass
class _Substitutes:
    """What replaces each name and path. `paths` are in the order in which they are tried."""

    names: dict[str, str] = field(default_factory=dict)
    paths: dict[str, str] = field(default_factory=dict)

    def add(self, kind: str, name: str) -> None:
        """Give a name its substitute, once."""
        if name and name not in self.names:
            number = 1 + sum(other.startswith(f"{kind}-") for other in self.names.values())
            self.names[name] = f"{kind}-{number}"

    def in_text(self, text: str) -> str:
        """Return the text with all paths and names replaced; names of less than SHORTEST characters stay."""
        for path, other in self.paths.items():
            text = text.replace(path, other)
        return self._pattern.sub(lambda found: self.names[found[0]], text) if self._pattern else text

    def found_in(self, text: str) -> list[str]:
        """Return the names and paths that a text still has."""
        names = self._pattern.findall(text) if self._pattern else []
        return list(dict.fromkeys([*(path for path in self.paths if path in text), *names]))

    @cached_property
    def _pattern(self) -> re.Pattern[str] | None:
        """The names that are long enough, as whole words; used once all names are known."""
        long = sorted((name for name in self.names if len(name) >= _SHORTEST), key=len, reverse=True)
        return re.compile(rf"(?<![\w-])(?:{'|'.join(map(re.escape, long))})(?![\w-])") if long else None


def anonymised(
    members: Mapping[str, Member], folder: Path, cache: Path, aside: Path
) -> tuple[dict[str, Member], list[str]]:
    """Return the files of an archive without what identifies people and machines, and where such a name is left.

    `folder` is the project's; changed files are written to the folder `aside`. Raises OSError.
    """
    known = _substitutes(members, folder, cache)
    made: dict[str, Member] = {}
    left: list[str] = []
    for number, (name, member) in enumerate(members.items()):
        made[name] = member
        content = _without_names(name, member, known)
        if content is not None:
            made[name] = aside / str(number)
            (aside / str(number)).write_bytes(content)
        text = (_content(member) if content is None else content).decode(errors="replace")
        left += [f"{name}: {one}" for one in known.found_in(text)]
    return made, left


def _substitutes(members: Mapping[str, Member], folder: Path, cache: Path) -> _Substitutes:
    known = _Substitutes()
    places = {str(folder.resolve()): "/project", str(cache.resolve()): "/cache"}
    user = user_name(os.getuid())
    if user != "root":  # which names nobody
        known.add("user", user)
    for name, member in members.items():
        for values in _objects(name, member):
            for key, text in _strings(values):
                if key in _NAMED:
                    known.add(_NAMED[key], text)
                elif key in ("root", "cache"):
                    places.setdefault(text, f"/{'project' if key == 'root' else 'cache'}")
    places.setdefault(str(Path.home()), "/home/user")
    wanted = {path: other for path, other in places.items() if len(path) >= _SHORTEST}
    known.paths = dict(sorted(wanted.items(), key=lambda item: -len(item[0])))
    return known


def _without_names(name: str, member: Member, known: _Substitutes) -> bytes | None:
    """Return the new content of a file, None if it does not change."""
    if _is_record(name):
        objects = [_replaced(values, known) for values in _objects(name, member)]
        if name.endswith(".jsonl"):
            return b"".join(map(encode, objects))
        return b"".join((json.dumps(values, indent=1) + "\n").encode() for values in objects)
    if name == "README.md" or name.startswith(("runs/", "published/")) or not name.endswith(_TEXTS):
        return None
    text = _content(member).decode()
    if name.endswith(".yaml"):
        text = _CLUSTER.sub(r'\1\2""', text)
    return known.in_text(text).encode()


def _objects(name: str, member: Member) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects of a record, or of the undamaged lines of a journal."""
    if not _is_record(name):
        return
    content = _content(member)
    if name.endswith(".jsonl"):
        yield from (values for line in content.split(b"\n") if line and (values := decode(line)) is not None)
    elif name.endswith(".json"):
        try:
            yield parse_json(content)
        except ValueError:
            return  # a damaged record is left out


def _is_record(name: str) -> bool:
    return name.startswith("runs/") and name.endswith(_RECORDS) and not name.startswith("runs/.")


def _strings(values: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Yield (field, text) for each text of a JSON object, outside of what does not change."""
    if isinstance(values, dict):
        for name, value in values.items():
            if name not in _UNCHANGED:
                yield from _strings(value, name)
    elif isinstance(values, list):
        for value in values:
            yield from _strings(value, key)
    elif isinstance(values, str):
        yield key, values


def _replaced(value: Any, known: _Substitutes, key: str = "") -> Any:
    if key in _UNCHANGED:
        return value
    if key in _REMOVED:
        return type(value)()
    if isinstance(value, dict):
        removed = _OF_CLUSTER if key == "resources" else ()
        return {name: type(own)() if name in removed else _replaced(own, known, name) for name, own in value.items()}
    if isinstance(value, list):
        return [_replaced(own, known, key) for own in value]
    if isinstance(value, str):
        return known.names.get(value, "") if key in _NAMED else known.in_text(value)
    return value


def _content(member: Member) -> bytes:
    return member if isinstance(member, bytes) else member.read_bytes()

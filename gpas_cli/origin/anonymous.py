"""Remove from an archive what identifies its authors and their machines, for a double-blind review.

    hosts, nodes                       host-1, host-2, ... wherever a record, a journal or a text names them
    users                              user-1, ...
    jobs, submissions                  job-1, ...
    the project's folder, the cache    /project, /cache; the user's home /home/user
    git commits, process ids           removed: a commit can be looked up
    settings of the cluster            accounts, partitions, constraints and set-up commands are removed from records

The same name gets the same substitute everywhere. Numbers, times, versions and texts of cells do not change. Copies of
the code, plugins and files of tasks are checked and not changed, because results are tied to their content.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from gpas_cli.files import parse_json
from gpas_cli.permissions import user_name
from gpas_cli.store.journal import decode, encode

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

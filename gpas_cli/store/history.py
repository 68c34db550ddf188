"""Who started, cancelled, retried, ran again or forgot what, and when: a line per command in runs/.history.jsonl."""

import json
import os
import socket
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gpas_cli.errors import GpasError
from gpas_cli.files import append_regular, read_regular
from gpas_cli.permissions import user_name
from gpas_cli.structure import Record, from_mapping, to_mapping

FILE = ".history.jsonl"


@dataclass(frozen=True, kw_only=True)
class _Deed(Record):
    """One line: at the time `t`, `user` on `host` did `what` to `cells`, for the reason and in the manner of `how`."""

    t: float
    user: str
    host: str
    what: str
    cells: tuple[str, ...]
    how: str = ""


def note(runs: Path, what: str, cells: Iterable[str], how: str = "") -> None:
    """Append a line. A file that cannot be written does not stop the command, which has been carried out."""
    deed = _Deed(
        t=time.time(), user=user_name(os.getuid()), host=socket.gethostname(), what=what,
        cells=tuple(dict.fromkeys(cells)), how=how,
    )  # fmt: skip
    line = json.dumps(to_mapping(deed), ensure_ascii=False) + "\n"
    with suppress(OSError):
        runs.mkdir(parents=True, exist_ok=True)
        with append_regular(runs / FILE) as file:
            file.write(line.encode())  # one write, so that lines of several users stay whole


def read(runs: Path) -> list[_Deed]:
    """Return all lines, oldest first, without damaged ones. Raises OSError if there is a file that cannot be read."""
    try:
        lines = read_regular(runs / FILE)[0].decode("utf-8", "replace").splitlines()
    except FileNotFoundError:
        return []
    found = []
    for number, line in enumerate(lines, 1):
        with suppress(GpasError, ValueError, AttributeError):
            found.append(from_mapping(_Deed, json.loads(line), f"{FILE}, line {number}"))
    return found

"""Draw what a command prints on a terminal as an SVG, up to a line that begins with UNTIL.

    python docs/picture.py FILE UNTIL COMMAND ...

Run it in a project that has results. The picture names no font of another host: it uses the reader's monospace font.
"""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys
import termios
from itertools import takewhile
from pathlib import Path

from rich.console import Console
from rich.text import Text

COLUMNS = 84
LINES = 50
FONT_FACES = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)


def drawn(command: list[str], until: str, columns: int = COLUMNS) -> str:
    """Return the SVG of a terminal in which `command` has been run, up to the line that begins with `until`."""
    console = Console(record=True, width=columns, file=io.StringIO(), force_terminal=True)
    console.print(Text.assemble(("$ ", "green"), (" ".join(command), "bold")))
    lines = [Text.from_ansi(line) for line in printed(command, columns).rstrip().splitlines()]
    for line in takewhile(lambda line: not line.plain.startswith(until), lines):
        console.print(line, soft_wrap=False)
    return FONT_FACES.sub("", console.export_svg(title=command[0]))


def printed(command: list[str], columns: int) -> str:
    """Return what `command` prints on a terminal of this width. Raises CalledProcessError if it fails."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (LINES, columns))
    environment = {**os.environ, "TERM": "xterm-256color"}
    with subprocess.Popen(command, env=environment, stdout=theirs, stdin=theirs) as process:
        os.close(theirs)
        content = b"".join(iter(lambda: _read(ours), b""))
    os.close(ours)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return content.decode()


def _read(terminal: int) -> bytes:
    """Return the next bytes, none after the last process has closed the terminal."""
    try:
        return os.read(terminal, 1 << 16)
    except OSError:
        return b""


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(drawn(sys.argv[3:], until=sys.argv[2]), encoding="utf-8")

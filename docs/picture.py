"""Draw what a command prints as an SVG: `python docs/picture.py docs/quickstart.svg gpas table quickstart --paper`.

Run it in a project that has results. The picture names no font of another host: it uses the reader's monospace font.
"""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

COLUMNS = 84
FONT_FACES = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)


def drawn(command: list[str], columns: int = COLUMNS) -> str:
    """The SVG of a terminal in which `command` has been run."""
    environment = {**os.environ, "FORCE_COLOR": "1", "COLUMNS": str(columns), "TERM": "xterm-256color"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    console = Console(record=True, width=columns, file=io.StringIO(), force_terminal=True)
    console.print(Text.assemble(("$ ", "green"), (" ".join(command), "bold")))
    for line in done.stdout.rstrip().splitlines():
        console.print(Text.from_ansi(line), soft_wrap=False)
    return FONT_FACES.sub("", console.export_svg(title=command[0]))


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(drawn(sys.argv[2:]), encoding="utf-8")

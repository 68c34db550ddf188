"""The results of `gpu.py` and `gpus.py`, printed as they come and kept in files."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

HEADER = "| case | measure | value | goal |\n|---|---|---|---|"


@dataclass(frozen=True)
class Result:
    """One measurement. `goal`: a bound in words, such as ">= 38 %", "" without one; `met`: whether it is reached."""

    case: str
    measure: str
    value: Any
    unit: str = ""
    goal: str = ""
    met: bool | None = None

    def row(self) -> str:
        """Return the result as a row of a Markdown table."""
        value = f"{self.value:.4g}" if isinstance(self.value, float) else str(self.value).replace("\n", "<br>")
        goal = f"{self.goal}: {'met' if self.met else 'missed'}" if self.goal and self.met is not None else self.goal
        return f"| {self.case} | {self.measure} | {f'{value} {self.unit}'.strip()} | {goal} |"


@dataclass
class Report:
    """Prints results as they come, and keeps the files NAME.json and NAME.md in `folder` complete."""

    folder: Path | None
    as_json: bool
    results: list[Result]
    name: str = "gpu"

    def begin(self) -> None:
        """Print the head of the table."""
        if not self.as_json:
            print(HEADER, flush=True)

    def add_line(self, line: str) -> None:
        """Add the result that a line of a case's output is; pass any other text on to standard error."""
        try:
            result = Result(**json.loads(line))
        except (ValueError, TypeError):
            print(line, end="", file=sys.stderr, flush=True)
        else:
            self.add(result)

    def add(self, result: Result) -> None:
        """Print `result` and write the files anew."""
        self.results.append(result)
        print(json.dumps(asdict(result)) if self.as_json else result.row(), flush=True)
        if self.folder is None:
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            _write(self.folder / f"{self.name}.json", json.dumps([asdict(one) for one in self.results], indent=2))
            _write(self.folder / f"{self.name}.md", "\n".join([HEADER, *(one.row() for one in self.results)]))
        except OSError as error:  # what was printed is there
            print(f"not written: {error}", file=sys.stderr, flush=True)


def say(result: Result) -> None:
    """Print a result as the line that `Report.add_line` reads."""
    print(json.dumps(asdict(result)), flush=True)


def _write(path: Path, text: str) -> None:
    aside = path.with_suffix(".part")
    aside.write_text(f"{text}\n")
    aside.replace(path)

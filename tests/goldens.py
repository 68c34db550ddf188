"""Cases in a YAML file of tests/golden, and what is found of each in the text file of the same name, a section a case.

`GOLDEN=write pytest TESTS` writes what is found into the text files. Read what then differs: it is what users see.
"""

import os
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import yaml
from cases import file_text
from face import Face
from filelock import FileLock

GOLDEN = Path(__file__).parent / "golden"


@cache
def golden_cases(name: str) -> dict[str, Any]:
    """Return the cases of golden/NAME.yaml. Those that begin with a dot are parts of others."""
    found = yaml.load(file_text(f"golden/{name}.yaml"), Loader=yaml.CSafeLoader)
    return {title: case for title, case in found.items() if not title.startswith(".")}


def _sections(path: Path) -> dict[str, str]:
    parts = re.split(r"^=== (.*)\n", path.read_text("utf-8") if path.exists() else "", flags=re.MULTILINE)
    return dict(zip(parts[1::2], (text.rstrip("\n") for text in parts[2::2]), strict=True))


def compare_text(name: str, found: str) -> None:
    """Fail unless `found` is the text of golden/NAME."""
    if os.environ.get("GOLDEN") == "write":
        (GOLDEN / name).write_text(found, "utf-8")
    assert found == file_text(f"golden/{name}")


def compare(name: str, title: str, found: str) -> None:
    """Fail unless `found` is the section of a case in golden/NAME.txt."""
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("GOLDEN") == "write":
        with FileLock(Path(gettempdir()) / f"golden-{path.stem}.lock"):
            sections = {**_sections(path), title: found.rstrip("\n")}
            kept = [f"=== {one}\n{sections[one]}\n" for one in golden_cases(name) if one in sections]
            path.write_text("\n".join(kept), "utf-8")
    sections = _sections(path)
    assert found.rstrip("\n") == sections.get(title)
    assert sections.keys() <= golden_cases(name).keys(), "a section without a case"


def compact(value: Any) -> Any:
    """Return a document without what is empty, with six digits of its numbers; rounding errors are zero."""
    if isinstance(value, Mapping):
        found = {name: compact(own) for name, own in value.items()}
        return {name: own for name, own in found.items() if own not in (None, "", [], {})}
    if isinstance(value, list | tuple):
        return [compact(own) for own in value]
    if isinstance(value, float):
        return 0.0 if abs(value) < 1e-12 else float(f"{value:.6g}")
    return value


def as_yaml(document: Any, flow: bool | None = True) -> str:
    """Return a document as YAML: on one line, or with `flow` None a line for each of its parts."""
    return yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=1000, default_flow_style=flow)


WIDE = re.compile(" {2,}|─+")  # old versions of rich make columns wider


def compare_command(name: str, title: str, face: Face, hidden: str = "$^") -> None:
    """Run the words of a case, and compare how the command ends and what it says.

    Documents are compacted, and what the pattern `hidden` matches is left out.
    """
    said = face(*golden_cases(name)[title], expect=None)
    text = "".join(WIDE.sub("  ", line).rstrip() + "\n" for line in said.out.splitlines())
    out = as_yaml(compact(said.json), flow=None) if said.out.startswith("{") else re.sub(hidden, "…", text)
    compare(name, title, f"exit {said.code}\n{out}{said.err}")

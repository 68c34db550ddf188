"""Cases in a YAML file of tests/golden, and what is found of each in the text file of the same name, a section a case.

`GOLDEN=write pytest TESTS` writes what is found into the text files. Read what then differs: it is what users see.
"""

import os
import re
from functools import cache
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import yaml
from filelock import FileLock

GOLDEN = Path(__file__).parent / "golden"


@cache
def cases(name: str) -> dict[str, Any]:
    """Return the cases of golden/NAME.yaml. Those that begin with a dot are parts of others."""
    found = yaml.load((GOLDEN / f"{name}.yaml").read_text("utf-8"), Loader=yaml.CSafeLoader)
    return {title: case for title, case in found.items() if not title.startswith(".")}


def _sections(path: Path) -> dict[str, str]:
    parts = re.split(r"^=== (.*)\n", path.read_text("utf-8") if path.exists() else "", flags=re.MULTILINE)
    return dict(zip(parts[1::2], (text.rstrip("\n") for text in parts[2::2]), strict=True))


def compare(name: str, title: str, found: str) -> None:
    """Fail unless `found` is the section of a case in golden/NAME.txt."""
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("GOLDEN") == "write":
        with FileLock(Path(gettempdir()) / f"golden-{name}.lock"):
            sections = {**_sections(path), title: found.rstrip("\n")}
            kept = [f"=== {one}\n{sections[one]}\n" for one in cases(name) if one in sections]
            path.write_text("\n".join(kept), "utf-8")
    sections = _sections(path)
    assert found.rstrip("\n") == sections.get(title)
    assert sections.keys() <= cases(name).keys(), "a section without a case"

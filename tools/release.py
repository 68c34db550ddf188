"""Check that this checkout may be released under a tag, and print what CHANGELOG.md says about that version.

    python tools/release.py v0.1.0 https://github.com/owner/gpas_cli

The second word is the address of the repository that makes the release. Exit code 2 if something does not agree.
"""

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def problems(root: Path, tag: str, repository: str) -> list[str]:
    """Return what must be changed before `tag` can be released from `repository`."""
    version, source = _version(root), source_of(root)
    found = []
    if tag != f"v{version}":
        found.append(f"the tag is {tag}, but gpas_cli/__init__.py has version {version}: tag v{version}, or change it")
    if not _section(root):
        found.append(f"CHANGELOG.md has no heading `## {version} - YYYY-MM-DD`")
    if source != repository:
        found.append(f"pyproject.toml has Source = {source}, but this is {repository}: replace the owner everywhere")
    return found


def source_of(root: Path) -> str:
    """Return the address of the public repository."""
    return str(tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]["urls"]["Source"])


def notes(root: Path) -> str:
    """Return the section of CHANGELOG.md about the version, without its heading; "" if it has no date."""
    found = _section(root)
    return found[1].strip() if found else ""


def _version(root: Path) -> str:
    text = (root / "gpas_cli/__init__.py").read_text("utf-8")
    return str(re.findall(r'^__version__ = "(.+)"$', text, re.MULTILINE)[0])


def _section(root: Path) -> re.Match[str] | None:
    text = (root / "CHANGELOG.md").read_text("utf-8")
    heading = rf"^## {re.escape(_version(root))} - \d{{4}}-\d\d-\d\d$"
    return re.search(rf"{heading}(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)


if __name__ == "__main__":
    if found := problems(ROOT, *sys.argv[1:]):
        print(*found, sep="\n", file=sys.stderr)
        sys.exit(2)
    print(notes(ROOT))

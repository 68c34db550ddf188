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
    version = version_of(root)
    source = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]["urls"]["Source"]
    found = []
    if tag != f"v{version}":
        found.append(f"the tag is {tag}, but gpas_cli/__init__.py has version {version}: tag v{version}, or change it")
    if not re.fullmatch(r"\d{4}-\d\d-\d\d", _section(root, version)[0]):
        found.append(f"CHANGELOG.md has no heading `## {version} - YYYY-MM-DD`")
    if source != repository:
        found.append(f"pyproject.toml has Source = {source}, but this is {repository}: replace the owner everywhere")
    return found


def version_of(root: Path) -> str:
    """Return the version in the source."""
    text = (root / "gpas_cli/__init__.py").read_text("utf-8")
    return re.findall(r'^__version__ = "(.+)"$', text, re.MULTILINE)[0]


def notes(root: Path, version: str) -> str:
    """Return the section of CHANGELOG.md about a version, without its heading."""
    return _section(root, version)[1].strip()


def _section(root: Path, version: str) -> tuple[str, str]:
    """Return what follows the version in its heading, and the text below; both are empty if there is none."""
    text = (root / "CHANGELOG.md").read_text("utf-8")
    found = re.search(rf"^## {re.escape(version)} - (\S+)$(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    return (found[1], found[2]) if found else ("", "")


if __name__ == "__main__":
    if found := problems(ROOT, *sys.argv[1:]):
        print(*found, sep="\n", file=sys.stderr)
        sys.exit(2)
    print(notes(ROOT, version_of(ROOT)))

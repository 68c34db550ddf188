"""The adapter for PBS in examples/gpas-pbs as an installed package."""

import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpas_cli.extension import installed

EXAMPLE = Path(__file__).parents[2] / "examples/gpas-pbs"


@pytest.fixture
def gpas_pbs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Install the package in this process, by its pyproject.toml."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    about = tmp_path / f"site/gpas_pbs-{project['version']}.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    ((group, points),) = project["entry-points"].items()
    lines = [f"[{group}]", *(f"{name} = {place}" for name, place in points.items())]
    (about / "entry_points.txt").write_text("\n".join(lines) + "\n")
    monkeypatch.syspath_prepend(tmp_path / "site")
    installed.cache_clear()
    yield
    installed.cache_clear()

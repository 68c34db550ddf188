"""The house's rules, read from the source: who may import whom, where torch may live, how large things grow."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "gpas_cli"
FILES = sorted(PACKAGE.rglob("*.py"))

COMMON = {"errors", "words", "project", "packaged", "processor", "checkpoints", "printable", "permissions", "spec"}
MAY_IMPORT = {
    "spec": {"errors"},
    "grid": COMMON,
    "data": COMMON,
    "model": COMMON,
    "train": COMMON | {"model", "data"},
    "evaluate": COMMON | {"train", "model", "data"},
    "store": COMMON,
    "launch": COMMON | {"train", "evaluate", "model", "data", "store", "grid"},
    "report": COMMON | {"store", "grid"},
    "cli": COMMON | {"grid", "launch", "data", "store", "report", "evaluate"},
}
TORCH_ROOMS = {"model", "train", "evaluate"}
LONGEST_FUNCTION, LONGEST_FILE = 60, 350


def imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def room_of(path: Path) -> str | None:
    parts = path.relative_to(PACKAGE).parts
    return parts[0] if len(parts) > 1 else None


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_flow_one_way(path: Path) -> None:
    room = room_of(path)
    if room is None:
        return
    names = [name.split(".")[1] for name in imports(ast.parse(path.read_text())) if name.startswith("gpas_cli.")]
    assert set(names) <= MAY_IMPORT[room] | {room, "__version__"}


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_torch_stays_in_its_rooms(path: Path) -> None:
    tops = {name.split(".")[0] for name in imports(ast.parse(path.read_text()))}
    allowed = room_of(path) in TORCH_ROOMS or path == PACKAGE / "launch/job.py"
    assert allowed or "torch" not in tops
    if room_of(path) == "spec":
        assert not tops - set(sys.stdlib_module_names) - {"gpas_cli"}


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_rooms_stay_small(path: Path) -> None:
    source = path.read_text()
    assert source.count("\n") <= LONGEST_FILE
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef):
            docstring = len((ast.get_docstring(node) or "").splitlines())
            assert node.end_lineno - node.lineno + 1 - docstring <= LONGEST_FUNCTION, node.name


@pytest.mark.parametrize(
    "module", ["gpas_cli.cli.app", "gpas_cli.launch.watch", "gpas_cli.grid.expand", "gpas_cli.store.ingest"]
)
def test_torch_is_not_loaded_by_the_face(module: str) -> None:
    code = f"import sys, {module}; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)

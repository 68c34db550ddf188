"""Print the test files of what has changed since a commit, by default the last one: `make test-fast`.

    python tools/touched.py [COMMIT]

A file of the package stands for its room's tests, and for the tests that import it themselves. A test stands for
itself, and a module that tests share for the tests that import it. Anything else that has changed, such as
experiments.yaml, has the tests that name it. The architecture is always checked.
"""

import ast
import subprocess
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
TESTS = ROOT / "tests"


def changed(commit: str) -> set[str]:
    """Return the paths that differ from a commit, files that git does not know included."""
    commands = (["diff", "--name-only", commit], ["ls-files", "--others", "--exclude-standard"])
    outputs = (
        subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True) for words in commands
    )
    return {line for output in outputs for line in output.stdout.splitlines()}


@cache
def imports(path: Path) -> frozenset[str]:
    """Return the modules that a file imports, also within functions: `from a import b` is a and a.b."""
    found = set[str]()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return frozenset(found)


def importers(modules: Iterable[str]) -> Iterator[Path]:
    """Yield the tests that import one of `modules`, or a module of the tests that does."""
    wanted = set(modules)
    files = sorted(TESTS.rglob("*.py"))
    while more := {path.stem for path in files if imports(path) & wanted and not is_test(path)} - wanted:
        wanted |= more
    yield from (path for path in files if is_test(path) and imports(path) & wanted)


def is_test(path: Path) -> bool:
    """Return whether pytest collects the file."""
    return path.name.startswith("test_")


def tests_of(name: str) -> Iterator[Path]:
    """Yield the tests of one changed path, which may be gone."""
    path = ROOT / name
    if name.startswith("gpas_cli/") and path.suffix in (".py", ".yaml"):
        yield from (TESTS / path.relative_to(ROOT / "gpas_cli").parts[0]).rglob("test_*.py")
        yield from importers([".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")])
    elif path.suffix == ".py" and not (name.startswith("tests/") and is_test(path)):
        yield from importers([path.stem])
    elif path.suffix == ".py":
        yield path
    else:
        yield from (test for test in TESTS.rglob("test_*.py") if path.name in test.read_text("utf-8"))


def main() -> None:
    names = changed(sys.argv[1] if len(sys.argv) > 1 else "HEAD")
    found = {TESTS / "test_architecture.py", *(test for name in names for test in tests_of(name))}
    print(" ".join(str(test.relative_to(ROOT)) for test in sorted(found) if test.exists()))


if __name__ == "__main__":
    main()

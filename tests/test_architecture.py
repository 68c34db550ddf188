"""The architecture rules, checked against the source: imports between rooms, imports of torch, and size limits."""

import ast
import graphlib
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from cases import tables

from gpas_cli.cli.app import COMMANDS, TOGETHER
from gpas_cli.extension import IN_WHEEL, extensions
from gpas_cli.spec.extensions import stage_kinds
from gpas_cli.spec.norm import SCHEMES
from gpas_cli.spec.objective import OBJECTIVES

PACKAGE = Path(__file__).parents[1] / "gpas_cli"
FILES = {
    ".".join(["gpas_cli", *path.relative_to(PACKAGE).with_suffix("").parts]).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
    if "papers" not in path.relative_to(PACKAGE).parts[:1]  # plugins of packs, which are written as anybody's are
}
# A room may import the rooms after it in this chain, and those listed with it.
CHAIN = ("cli", "doctor", "schedule", "worker", "plan", "state", "store", "spec")
BESIDE = {
    "spec": {"errors"},
    "grid": {"spec"},
    "data": {"spec"},
    "model": {"spec"},
    "train": {"model", "data", "spec"},
    "evaluate": {"train", "model", "data", "spec"},
    "worker": {"train", "evaluate", "model", "data"},
    "plan": {"grid", "data"},
    "state": {"grid"},
    "schedule": {"grid"},
    "doctor": {"grid"},
    "statistics": set(),
    "report": {"store", "state", "grid", "spec", "statistics"},
    "origin": {"report", "store", "state", "grid", "spec", "statistics"},
    "results": {"report", "store", "state", "grid", "spec", "statistics"},
    "cli": {"grid", "data", "report", "origin", "statistics", "evaluate"},
}
# The most lines of code. A commit may lower these, not raise them: a capability lands with its deletion.
ENGINE, PACKAGE_LINES = 32_363, 43_075
LARGEST_EXTENSION = 1_500
TORCH_ROOMS = {"model", "train", "evaluate", "worker", "extensions"}
LONGEST_FUNCTION, LONGEST_FILE = 60, 500
# The most modules that `gpas run grid quickstart --dry-run` loads, which only falls, and
# rooms that it does not load.
MOST_MODULES = 110
ROOMS_OF_RESULTS = {"report", "origin", "statistics", "results", "evaluate"}


@cache
def tree(module: str) -> ast.Module:
    return ast.parse(FILES[module].read_text())


@cache
def nodes(module: str) -> list[ast.AST]:
    return list(ast.walk(tree(module)))


@cache
def names(module: str) -> list[str]:
    """Return the imports of a file, including those in functions and for type checkers: `from a import b` is a.b."""
    found = list[str]()
    for node in nodes(module):
        if isinstance(node, ast.Import):
            found += (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found += (f"{node.module}.{alias.name}" for alias in node.names)
    return found


@cache
def imports(module: str) -> set[str]:
    """Return the files of the package that a file imports."""
    found = {name if name in FILES else name.rpartition(".")[0] for name in names(module)}
    return (found & FILES.keys()) - {module}


def room(module: str) -> str:
    """Return the folder of a module in the package, or "" for a module at its root."""
    parts = module.split(".")
    is_room = len(parts) > 2 or (len(parts) == 2 and FILES[module].name == "__init__.py")
    return parts[1] if is_room else ""


def extension(module: str) -> str:
    """Return the name of the extension that a module belongs to, "" for the engine's."""
    parts = module.split(".")
    return parts[2] if parts[1:2] == ["extensions"] and len(parts) > 2 else ""


def allowed(origin: str) -> set[str]:
    if origin == "extensions":
        return {room(module) for module in FILES}
    below = set(CHAIN[CHAIN.index(origin) + 1 :]) if origin in CHAIN else set()
    return {origin, "", *below, *BESIDE.get(origin, set())}


def test_imports_point_one_way() -> None:
    breaches = {
        f"{module} imports {other}"
        for module in FILES
        if room(module)
        for other in imports(module)
        if room(other) not in allowed(room(module))
    }
    assert not breaches


def test_only_what_an_extension_declares_imports_it() -> None:
    declared = {one.name: one.requires for one in extensions().values()}
    assert declared.keys() == IN_WHEEL.keys() == {name for name in map(extension, FILES) if name}
    breaches = {
        f"{module} imports {other}"
        for module in FILES
        for other in imports(module)
        if extension(other) and extension(other) not in (extension(module), *declared.get(extension(module), ()))
    }
    assert not breaches


def test_the_engine_asks_no_stage_scheme_or_objective_for_its_name() -> None:
    """What depends on one of them is a hook of its class: an extension's is not in the engine's lists."""
    known = {*stage_kinds(), *SCHEMES, *OBJECTIVES}
    declaring = {f"gpas_cli.spec.{name}" for name in ("norm", "stage", "finetune", "objective")}
    breaches = {
        f"{module}:{node.lineno} names '{text.value}'"
        for module in FILES.keys() - declaring
        if not extension(module)
        for node in nodes(module)
        for text in _asked_for(node)
        if text.value in known
    }
    assert not breaches


def _asked_for(node: ast.AST) -> Iterator[ast.Constant]:
    """Yield the constants that something is compared with, and the sections of a cell that are asked for."""
    asked: list[ast.AST] = []
    if isinstance(node, ast.Compare):
        asked = [node.left, *node.comparators]
    elif isinstance(node, ast.MatchValue):
        asked = [node.value]
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "parameters":
        asked = [*node.args]
    for one in asked:
        yield from (part for part in ast.walk(one) if isinstance(part, ast.Constant))


def test_no_file_imports_itself_through_others() -> None:
    graph = {module: imports(module) for module in FILES}
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        pytest.fail(" <- ".join(error.args[1]))


def test_the_root_imports_no_room_but_spec() -> None:
    """Every room may import the root modules of the package, so they depend on little themselves."""
    roots = [module for module in FILES if not room(module) and module != "gpas_cli.__main__"]
    assert {room(other) for module in roots for other in imports(module)} <= {"", "spec"}


def test_a_file_of_a_command_bears_its_name() -> None:
    """TOGETHER has the commands that share a file."""
    known = {TOGETHER.get(name, name) for names in COMMANDS.values() for name in names}
    found = {
        module.removeprefix("gpas_cli.cli.commands.") for module in FILES if module.startswith("gpas_cli.cli.commands.")
    }
    assert known <= found
    assert {name.split("_")[0] for name in found} <= known


def test_commands_are_leaves() -> None:
    """What several commands need is in a file beside them, so that a command imports what it uses and no more."""
    commands = {module for module in FILES if module.startswith("gpas_cli.cli.commands.")}
    assert commands
    assert not {f"{module} imports {other}" for module in FILES for other in imports(module) & commands}


def test_spec_needs_only_the_standard_library() -> None:
    tops = {name.split(".")[0] for module in FILES if room(module) == "spec" for name in names(module)}
    assert tops <= set(sys.stdlib_module_names) | {"gpas_cli"}


def test_torch_is_imported_in_its_rooms_only() -> None:
    users = {module for module in FILES if any(name.split(".")[0] == "torch" for name in names(module))}
    assert {room(module) for module in users} <= TORCH_ROOMS


def test_files_and_functions_stay_small() -> None:
    large = [module for module in FILES if FILES[module].read_text().count("\n") > LONGEST_FILE]
    large += [
        f"{module}.{node.name}" for module in FILES for node in functions(module) if lines(node) > LONGEST_FUNCTION
    ]
    assert not large


def test_the_package_keeps_to_its_budget() -> None:
    engine = [module for module in FILES if room(module) != "extensions"]
    assert sum(map(code_lines, engine)) <= ENGINE
    assert sum(map(code_lines, FILES)) <= PACKAGE_LINES


def test_an_extension_stays_small() -> None:
    sizes = Counter[str]()
    for module in FILES:
        sizes[extension(module)] += code_lines(module)
    assert not [name for name, lines in sizes.items() if name and lines > LARGEST_EXTENSION]


def code_lines(module: str) -> int:
    """Return the number of lines that are neither blank nor comments nor part of a docstring."""
    texts = {
        line
        for node in nodes(module)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for line in range(node.lineno, node.end_lineno + 1)
    }
    numbered = enumerate(FILES[module].read_text().splitlines(), start=1)
    return sum(number not in texts and line.strip()[:1] not in ("", "#") for number, line in numbered)


def functions(module: str) -> Iterator[ast.FunctionDef]:
    return (node for node in nodes(module) if isinstance(node, ast.FunctionDef))


def lines(function: ast.FunctionDef) -> int:
    docstring = ast.get_docstring(function) or ""
    return function.end_lineno - function.lineno + 1 - len(docstring.splitlines())


def test_a_dry_run_loads_few_modules_and_nothing_of_results(tmp_path: Path) -> None:
    """Without SLURM on the path: where it is, the plan needs its modules too."""
    environment = {"HOME": str(tmp_path), "PATH": str(tmp_path)}
    subprocess.run([sys.executable, "-m", "gpas_cli", "init"], cwd=tmp_path, env=environment, check=True)
    code = (
        "import atexit, runpy, sys; atexit.register(lambda: print(*sys.modules, file=sys.stderr)); "
        "sys.argv = ['gpas', 'run', 'grid', 'quickstart', '--dry-run']; "
        "runpy.run_module('gpas_cli', run_name='__main__')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    assert "22 jobs to start" in done.stdout
    loaded = [name for name in done.stderr.split() if name.split(".")[0] == "gpas_cli"]
    assert not {name for name in loaded if name.split(".")[1:2] and name.split(".")[1] in ROOMS_OF_RESULTS}
    assert len(loaded) <= MOST_MODULES


FACE = [
    *("gpas_cli.state.observe", "gpas_cli.grid.expand", "gpas_cli.store.ingest", "gpas_cli.results"),
    *(one for one in FILES if one.startswith("gpas_cli.cli.") and one != "gpas_cli.cli.commands.data"),
]
LAUNCHING = "schedule.local schedule.scheduler plan.plan schedule.process store.refresh worker.job"


@pytest.mark.parametrize(
    ("modules", "absent"),
    [
        (FACE, {"torch", "numpy"}),
        ([f"gpas_cli.{name}" for name in LAUNCHING.split()], {"torch", "numpy", "sqlalchemy"}),
        (["gpas_cli.store.journal", "gpas_cli.store.rundir"], {"torch", "numpy", "sqlalchemy", "alembic", "yaml"}),
    ],
    ids=["the face", "launching", "the writer of journals"],
)
def test_what_starts_often_loads_no_heavy_library(modules: list[str], absent: set[str]) -> None:
    code = f"import sys, {', '.join(modules)}; print({absent} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


@pytest.mark.parametrize("file", sorted(Path(__file__).parent.rglob("cases.yaml")), ids=lambda file: file.parent.name)
def test_every_table_of_cases_has_its_test(file: Path) -> None:
    tests = "".join(path.read_text("utf-8") for path in file.parent.rglob("test_*.py"))
    assert [name for name in tables(str(file)) if f"\ndef test_{name}(" not in tests] == []

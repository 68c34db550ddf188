"""Change the package in small ways, and count the changes that its tests notice.

    python tools/mutants.py --seed 7                    200 mutants of FILES, each tried with its room's tests
    python tools/mutants.py --seed 7 --tests REVISION   the same mutants, tried with the tests of another revision
    python tools/mutants.py --seed 7 --tests REVISION --survivors FILE    those alone that survived in an output
    python tools/mutants.py --seed 7 --done FILE        without those of an output that was cut short

A mutant is one file with another comparison, another constant, a statement less or two arguments exchanged. It is
killed if pytest fails or takes too long; without a change, every room's tests must pass. The same seed gives the same
mutants of the same package, so that two suites compare. Each mutant is one line of JSON on standard output; the last
line counts them.
"""

from __future__ import annotations

import argparse
import ast
import copy
import json
import random
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from queue import SimpleQueue

ROOT = Path(__file__).parents[1]
# The files with the most calls while one cell of the quickstart goes from YAML to its table.
FILES = (
    "spec/parse.py", "spec/parse_cell.py", "spec/cell.py", "spec/stage.py", "spec/run.py", "grid/document.py",
    "grid/read.py", "grid/load.py", "grid/expand.py", "plan/stage_jobs.py", "state/observe.py", "state/attempt.py",
    "state/claims.py", "schedule/local/run.py", "data/shards.py", "data/loader.py", "data/tokenizer.py",
    "model/layers.py", "model/attention.py", "model/llama.py", "train/loop.py", "train/loss.py", "train/optim.py",
    "store/journal.py", "store/ingest.py",
)  # fmt: skip
COMPARISONS = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
SECONDS = 1500  # after which the tests of a mutant count as failed


@dataclass(frozen=True)
class Mutant:
    """One change: where it is, of which kind, and the line before and after."""

    file: str
    line: int
    kind: str
    before: str
    after: str
    source: str

    @property
    def name(self) -> tuple[str, int, str]:
        return self.file, self.line, self.after


def changes(tree: ast.Module) -> Iterator[tuple[str, ast.AST, ast.AST]]:
    """Yield the kind of each possible change of a file, the node, and what replaces it."""
    for node in ast.walk(tree):
        other = copy.copy(node)
        if isinstance(node, ast.Compare) and len(node.ops) == 1 and isinstance(other, ast.Compare):
            other.ops = [COMPARISONS[type(node.ops[0])]()]
            yield "comparison", node, other
        elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
            yield "constant", node, ast.Constant(not node.value if isinstance(node.value, bool) else node.value + 1)
        elif isinstance(node, ast.Expr | ast.Assign | ast.AugAssign | ast.Raise):
            if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):  # a docstring
                yield "statement", node, ast.Pass()
        elif isinstance(node, ast.Call) and isinstance(other, ast.Call) and len(set(map(ast.dump, node.args))) == 2:
            other.args = node.args[::-1]
            yield "arguments", node, other


def mutants(root: Path, seed: int, most: int) -> list[Mutant]:
    """Return `most` mutants of FILES, chosen by `seed`: as many of each kind as there are, in turn."""
    found: dict[str, list[Mutant]] = {}
    for name in FILES:
        source = (root / "gpas_cli" / name).read_text("utf-8")
        for kind, node, other in changes(ast.parse(source)):
            if made := _replaced(source, node, other):
                line = node.lineno  # type: ignore[attr-defined]
                before, after = (text.splitlines()[line - 1].strip() for text in (source, made))
                found.setdefault(kind, []).append(Mutant(name, line, kind, before, after, made))
    draw = random.Random(seed)
    for each in found.values():
        draw.shuffle(each)
    kinds = sorted(found)
    return [found[kinds[i % len(kinds)]][i // len(kinds)] for i in range(most)]


def _replaced(source: str, node: ast.AST, other: ast.AST) -> str:
    """Return the source with one node replaced, "" if the result is not a program."""
    text = ast.get_source_segment(source, node)
    if text is None:
        return ""
    lines = source.splitlines(keepends=True)
    start = len("".join(lines[: node.lineno - 1]))  # type: ignore[attr-defined]
    start += len(lines[node.lineno - 1].encode()[: node.col_offset].decode())  # type: ignore[attr-defined]
    made = source[:start] + ast.unparse(other) + source[start + len(text) :]
    try:
        ast.parse(made)
    except SyntaxError:
        return ""
    return made


def killed(mutant: Mutant, copied: Path) -> bool:
    """Return whether the tests of the mutant's room fail in a copy of the repository."""
    path = copied / "gpas_cli" / mutant.file
    original = path.read_bytes()
    path.write_text(mutant.source, "utf-8")
    try:
        return fails(copied, room_of(mutant))
    finally:
        path.write_bytes(original)


def fails(copied: Path, room: str) -> bool:
    """Return whether the tests of a room fail, or take too long."""
    declared = (copied / "pyproject.toml").read_text("utf-8")
    rings = [f"not {ring}" for ring in ("long", "release", "machine") if f'"{ring}:' in declared]
    which = ["-m", " and ".join(rings), f"tests/{room}"]
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *which]
    try:
        return subprocess.run(command, cwd=copied, capture_output=True, timeout=SECONDS, check=False).returncode != 0
    except subprocess.TimeoutExpired:
        return True


def room_of(mutant: Mutant) -> str:
    return mutant.file.partition("/")[0]


def tried_before(output: Path) -> dict[tuple[str, int, str], bool]:
    """Return for each mutant of an earlier output whether it was killed."""
    lines = [json.loads(line) for line in output.read_text("utf-8").splitlines()]
    return {(line["file"], line["line"], line["after"]): line["killed"] for line in lines if "file" in line}


def copy_of(revision: str, folder: Path) -> Path:
    """Return a copy of this package, with the tests of a revision."""
    for what, paths in (("HEAD", ["."]), (revision, ["tests", "pyproject.toml"])):
        archive = subprocess.run(["git", "archive", what, *paths], cwd=ROOT, check=True, capture_output=True).stdout
        subprocess.run(["tar", "-x", "-C", folder], input=archive, check=True)
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--tests", default="HEAD", help="the revision whose tests are run")
    parser.add_argument("--survivors", type=Path, help="an earlier output, whose survivors alone are tried")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--done", type=Path, help="an earlier output, whose mutants are not tried again")
    options = parser.parse_args()
    chosen = mutants(ROOT, options.seed, options.count)
    if options.survivors:
        before = tried_before(options.survivors)
        chosen = [mutant for mutant in chosen if before.get(mutant.name) is False]
    if options.done:
        before = tried_before(options.done)
        chosen = [mutant for mutant in chosen if mutant.name not in before]
    with tempfile.TemporaryDirectory(prefix="gpas-mutants-") as folder:
        copies: SimpleQueue[Path] = SimpleQueue()
        for i in range(options.jobs):
            (own := Path(folder, str(i))).mkdir()
            copies.put(copy_of(options.tests, own))

        def tried(test: Callable[[Path], bool]) -> bool:
            mine = copies.get()
            try:
                return test(mine)
            finally:
                copies.put(mine)

        counts = Counter[bool]()
        with ThreadPoolExecutor(options.jobs) as pool:
            rooms = sorted({room_of(mutant) for mutant in chosen})
            for room, failed in zip(rooms, pool.map(lambda room: tried(partial(fails, room=room)), rooms), strict=True):
                if failed:
                    sys.exit(f"The tests of {room} fail without any change.")
            for mutant, dead in zip(chosen, pool.map(lambda one: tried(partial(killed, one)), chosen), strict=True):
                facts = {name: value for name, value in asdict(mutant).items() if name != "source"}
                print(json.dumps({"killed": dead, **facts}), flush=True)
                counts[dead] += 1
    print(json.dumps({"mutants": len(chosen), "killed": counts[True], "seed": options.seed, "tests": options.tests}))


if __name__ == "__main__":
    main()

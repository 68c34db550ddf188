"""Small experiments files for the tests, and their problems as lines of text."""

from pathlib import Path

from gpas_cli.errors import InvalidExperiments
from gpas_cli.grid.declared import Entry, Experiments
from gpas_cli.grid.document import parse_document
from gpas_cli.grid.expand import expand
from gpas_cli.grid.load import interpret

HEAD = """\
version: 1
recipes: {quickstart: {lr: 1.5e-3, warmup: 60, steps: 600, batch: 16}}
grids:
"""


def read(text: str) -> Experiments:
    """Return the experiments of a file `e.yaml` with this text."""
    return interpret(parse_document(text, "e.yaml"), Path("e.yaml"))


def grid(body: str) -> list[Entry]:
    """Return the cells of one grid `g` whose lines, from line 5 of the file on, are `body`."""
    return expand(read(whole(body)))


def whole(body: str) -> str:
    """Return a file with one grid `g`: quickstart size and text unless `body` has a base."""
    lines = body.strip("\n").splitlines()
    return HEAD + "  g:\n" + "".join(f"    {line}\n" for line in lines)


def cells(**axes: str) -> str:
    """Return the body of a grid at quickstart size with these axes, in YAML."""
    return "base: {size: quickstart, data: quickstart}\naxes: {" + ", ".join(f"{k}: {v}" for k, v in axes.items()) + "}"


def complaints(text: str) -> list[str]:
    """Return the printed problems of a file and of the cells of all its grids."""
    try:
        experiments = read(text)
        expand(experiments, list(experiments.grids))
    except InvalidExperiments as error:
        return str(error).splitlines()
    return []

"""Every command is documented: a help text with an example, and texts of its arguments and options.

What README and docs/ show after `$ gpas ...` is what the command prints for the results of a real quickstart:
tests/quickstart_results.json has the perplexities of the grids, as trained on two CPU cores.
"""

import json
import re
from pathlib import Path

import pytest
from command_list import COMMANDS
from face import TRAINED, Face, end
from shipped import EXPERIMENTS

from gpas_cli.grid.expand import expand
from gpas_cli.grid.load import load

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
CELL = re.compile(r"(?<![\w./-])([a-z][a-z0-9-]*)/([a-z0-9][a-z0-9.-]*[a-z0-9])(?![\w/-]|\.\w)")


@pytest.mark.parametrize(("path", "command"), COMMANDS, ids=[path for path, _ in COMMANDS])
def test_command_is_documented(path: str, command: object) -> None:
    assert command.help, path
    assert f"Example: {path}" in command.help
    for parameter in command.params:
        assert parameter.name in ("help",) or getattr(parameter, "help", None), (path, parameter.name)


def test_cells_of_shipped_grids_in_examples_exist() -> None:
    texts = [command.help for _, command in COMMANDS] + [page.read_text() for page in PAGES]
    texts = [re.sub(r"\.trunk\d+", "", text) for text in texts]
    named = {match.groups() for text in texts for match in CELL.finditer(text) if match[1] in EXPERIMENTS.grids}
    assert named
    declared = {entry.id for entry in expand(EXPERIMENTS, list({grid for grid, _ in named}))}
    assert {"/".join(cell) for cell in named} - declared == set()


CONSOLE = re.compile(r"^```console\n(\$ gpas .*?)^```$", re.MULTILINE | re.DOTALL)
RESULTS = json.loads((ROOT / "tests" / "quickstart_results.json").read_text("utf-8"))
AGE = re.compile(r"\d+ (s|min|h) ago")


def shown() -> list[tuple[str, str, str]]:
    """Return (page, command, output) of each command in the pages; `...` in an output stands for lines left out."""
    found = []
    for page in PAGES:
        for block in CONSOLE.findall(page.read_text("utf-8")):
            for part in block.split("$ gpas ")[1:]:
                command, _, output = part.partition("\n")
                found.append((str(page.relative_to(ROOT)), command, output))
    return found


@pytest.fixture
def quickstart(face: Face, monkeypatch: pytest.MonkeyPatch) -> Face:
    """Return the repository's experiments with the tutorial's grid at the end, and with the results."""
    tutorial = (ROOT / "docs" / "tutorial.md").read_text("utf-8")
    (mine,) = re.findall(r"^```yaml\ngrids:\n(  mine:.*?)^```$", tutorial, re.MULTILINE | re.DOTALL)
    face.declare((ROOT / "experiments.yaml").read_text("utf-8") + mine)
    monkeypatch.setenv("COLUMNS", "100")
    for grid, numbers in RESULTS.items():
        for entry in expand(load(face.folder / "experiments.yaml"), [grid]):
            if entry.name in numbers:
                metrics = {"perplexity": numbers[entry.name]}
                face.recorded(entry, *TRAINED, ("outcome", end("done", metrics=metrics)))
    return face


def lines_of(text: str) -> list[str]:
    """Return the lines that say something, with every age alike."""
    return [AGE.sub("AGO", line.rstrip()) for line in text.splitlines() if line.strip()]


def test_the_outputs_shown_are_those_of_the_program(quickstart: Face) -> None:
    pages = shown()
    assert len(pages) >= 3
    for page, command, output in pages:
        printed = lines_of(quickstart(*command.split()).out)
        for part in re.split(r"^\.\.\.\n?", output, flags=re.MULTILINE):
            wanted = lines_of(part)
            starts = range(len(printed) - len(wanted) + 1)
            assert any(printed[start : start + len(wanted)] == wanted for start in starts), (
                f"{page}: `gpas {command}` prints\n" + "\n".join(printed)
            )

"""Text that users and jobs bring is printed as it is: no markup, no emoji, no terminal escapes, no formulas."""

import csv
import io
import unicodedata
from pathlib import Path

import pytest
from cases import cases, file_text
from face import Face, gpas, tiny

GRIDS = file_text("experiments/hostile.yaml")
SCHEME = r"""
from dataclasses import dataclass
from gpas_cli.spec.norm import Norm, Scheme, Wiring

@dataclass(frozen=True, kw_only=True)
class Odd(Scheme):
    title = "[/odd] \x1b[31m\u202e norm"
    def wiring(self, layer: int, depth: int) -> Wiring:
        return Wiring(in_norm=Norm(), skip=0.9)
SCHEMES = {"odd": Odd}
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Face:
    """Return a grid with hostile names, of which some cells are done, one failed and one is missing."""
    made = Face(tmp_path_factory.mktemp("[bold]project[") / "[/here]", tiny(GRIDS))
    made.edit("grids:", "plugins: [schemes.py]\ngrids:", 1)
    (made.folder / "schemes.py").write_text(SCHEME)
    *done, failed, _ = made.cells()
    for i, entry in enumerate(done):
        made.trained(entry, 30 + i / 10, host="[/host]\x1b[31m")
    made.trained(failed, 99, cause="ValueError: [/cause]\x1b[2J [red]")
    return made


@cases("cli/cases.yaml")
def test_hostile_names_are_printed_as_they_are(project: Face, command: str, said: list[str]) -> None:
    """`said` is what the command must say in full."""
    done = project(*command.split(), expect=None if command == "doctor" else 0)
    assert done.code in (0, 2)
    text = done.out + done.err
    assert not {c for c in text if unicodedata.category(c) in ("Cc", "Cf", "Cs") and c != "\n"}
    assert "💥" not in text
    assert [piece for piece in said if piece not in text] == []


def test_a_spreadsheet_reads_no_formula(project: Face) -> None:
    rows = list(csv.reader(io.StringIO(project("table", "--format", "csv").out)))
    header, *cells = rows
    gates = [row[header.index("gate")] for row in cells]
    assert gates[2:6] == ['\'=HYPERLINK("http://x")', "'@SUM(1)", "'+1+cmd", "'-2+3"]
    for row in cells:
        for value in row:
            assert value[:1] not in ("=", "@", "\t", "\r", "+", "-") or isinstance(float(value), float)
    deltas = [row[header.index("delta")] for row in cells if row[header.index("delta")]]
    assert deltas
    assert all(isinstance(float(delta), float) for delta in deltas)


def test_json_keeps_text_as_it_was(project: Face) -> None:
    document = project("table", "--json").json
    assert document["rows"][1]["labels"]["gate"] == "[/red]"
    assert project("status", "--json").json["cells"][0]["name"] == "pre-s1"


def test_a_mistake_in_a_plugin_with_hostile_text_is_one_clean_message(tmp_path: Path) -> None:
    (tmp_path / "schemes.py").write_text('raise ValueError("[/x] \\x1b[31m")\n')
    (tmp_path / "experiments.yaml").write_text("version: 1\nplugins: [schemes.py]\ngrids: {g: {axes: {norm: [pre]}}}\n")
    assert "[/x] \\x1b[31m" in gpas(tmp_path, "plan", expect=2).err

"""The pack of docs/how-to/paper.md: its files as the page has them, and its commands in their order."""

import re
import shlex
import tomllib
from pathlib import Path

import pytest
from documentation import DOCS, FENCE
from end_to_end import jobs_run_here
from face import Said, gpas

from gpas_cli.grid.packs import known_packs
from gpas_cli.report.papers import published
from gpas_cli.spec.extensions import installed

BLOCKS = [found[1:] for found in FENCE.findall((DOCS / "how-to/paper.md").read_text("utf-8"))]
COMMANDS = [shlex.split(line)[1:] for language, text in BLOCKS if language == "bash" for line in text.splitlines()]
RUN = COMMANDS.index(["run", "grid"])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with the files of the page."""
    for language, text in BLOCKS:
        if title := re.search(r'title="(.*)"', language):
            path = tmp_path / title[1]
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
    return tmp_path


def test_it_plans_and_prints_its_numbers_before_anything_is_trained(folder: Path) -> None:
    plan, explained, table = (gpas(folder, *words).out for words in COMMANDS[:RUN])
    assert "4 cells: 4 new" in plan
    assert "x <- x + 0.7071 f(N(x))" in explained
    assert re.search(r"Damped-LN +missing +239\.8 \(-1\.4\)", table)
    assert "the paper does not say how many seeds it averages" in table


def test_a_colleague_includes_it_under_another_name(folder: Path) -> None:
    plan, figure = (gpas(folder, *words, expect=None) for words in COMMANDS if "--config" in words)
    assert "theirs.damped-table1/damped-s1" in plan.out
    assert "4 cells without a result: theirs.damped-table1/pre-s1" in figure.out
    claims = gpas(folder, "--config", "colleague/experiments.yaml", "claims", "theirs.damping-lowers-perplexity")
    assert "Damped, Table 1" in claims.out
    assert "gpas run grid theirs.damped-table1" in claims.out


def test_an_installed_package_offers_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    information = folder / "mypaper-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: mypaper\nVersion: 1.0\n")
    project = tomllib.loads(next(text for language, text in BLOCKS if language.startswith("toml")))["project"]
    lines = [f"[{group}]\n{name} = {module}\n" for group, points in project["entry-points"].items()
             for name, module in points.items()]  # fmt: skip
    (information / "entry_points.txt").write_text("".join(lines))
    monkeypatch.syspath_prepend(str(folder))
    known_packs.cache_clear()
    installed.cache_clear()
    try:
        assert published(known_packs()["damped"], "table1").what == "validation perplexity after 60 updates"
        (folder / "experiments.yaml").write_text("version: 1\ninclude: [damped]\n")
        assert "4 cells: 4 new" in gpas(folder, "plan").out
    finally:
        monkeypatch.undo()
        known_packs.cache_clear()
        installed.cache_clear()


@pytest.mark.long
def test_it_runs_as_written(folder: Path) -> None:
    said: dict[str, Said] = {}
    with jobs_run_here():
        for words in COMMANDS:
            said[" ".join(words)] = gpas(folder, *words, expect=3 if "theirs.mypaper-1" in words else 0)
    assert "4 done" in said["run grid"].out
    assert re.search(r"Damped-LN +\d+\.\d\d ± \d", said["table --paper"].out)
    assert re.search(r"damping-lowers-variance +(un)?(decided|supported|contradicted)", said["claims"].out)
    assert "Damped, Table 1" in said["claims damping-lowers-perplexity"].out
    assert (folder / "figures/mypaper-1.svg").stat().st_size > 1000
    assert "Wrote figures/mypaper-1.pdf" in said["figure paper mypaper-1"].out

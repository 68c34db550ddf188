"""README and docs/: their commands parse, their YAML loads, their Python runs, and their links have targets."""

import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from pathlib import Path

import pytest
import yaml
from browser import CHROMIUM, chromium
from cases import file_text, tables
from documentation import DOCS, FENCE, PAGES, PYTHON, ROOT, YAML, blocks, hooks, name_of, script, written
from schemas import document_of, documents, json_schema
from shipped import EXPERIMENTS, cells_of
from typer.core import TyperGroup
from typer.main import get_command

from gpas_cli import __version__
from gpas_cli.cli.app import make_app
from gpas_cli.errors import InvalidExperiments
from gpas_cli.events import KINDS
from gpas_cli.extension import Extension
from gpas_cli.grid.expand import expand
from gpas_cli.grid.load import load
from gpas_cli.grid.packs import known_packs
from gpas_cli.report.papers import load as numbers_of
from gpas_cli.report.quantities import QUANTITIES
from gpas_cli.spec.equation import description
from gpas_cli.spec.extensions import stage_kinds
from gpas_cli.spec.norm import SCHEMES
from gpas_cli.spec.optim import OPTIMIZERS, SCHEDULES
from gpas_cli.spec.stage import STAGE_KINDS, TRAINING_PARTS
from gpas_cli.state.view import _BUILT_IN
from gpas_cli.store.schema import Base

INLINE_COMMAND = re.compile(r"`(gpas [^`]+)`")
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
FILE = re.compile(r"(?<![\w./-])((?:gpas_cli|tests|docs|benchmarks|migrations)/[\w./-]*)")
CODE_COLUMNS = 100
INSTALLERS = {"git", "uv", "pip", "pipx", "docker", "apptainer"}
EXTERNAL = re.compile(r'<(?:script|img|link|iframe)\b[^>]*\b(?:src|href)="(?:https?:)?//[^"]*"', re.IGNORECASE)


def commands() -> Iterator[tuple[str, list[str]]]:
    """Yield every line of the bash blocks, with its page; test_install.py has those of other programs."""
    for page, text in blocks("bash"):
        for line in text.replace("\\\n", " ").splitlines():
            if (words := shlex.split(line, comments=True)) and words[0] not in INSTALLERS:
                yield name_of(page), words


def inline_commands() -> Iterator[tuple[str, list[str]]]:
    for page in PAGES:
        for text in INLINE_COMMAND.findall(FENCE.sub("", page.read_text("utf-8"))):
            yield name_of(page), shlex.split(text)


def parse(words: list[str]) -> None:
    """Parse the words after `gpas` as the program does, without running anything. Raise click's UsageError."""
    silent().main(args=words, prog_name="gpas", standalone_mode=False)


@cache
def silent() -> TyperGroup:
    """Return the program with commands that do nothing."""
    command = get_command(make_app())
    _silence(command)
    # These act while they are parsed, on the shell of whoever runs the tests.
    command.params = [option for option in command.params if not option.name.endswith("_completion")]
    return command


def _silence(command: object) -> None:
    command.callback = None
    for inner in getattr(command, "commands", {}).values():
        _silence(inner)


BASH = list(commands())


def make_targets() -> list[str]:
    return re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)


def test_readme_is_short_and_has_its_picture() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    assert len(text.splitlines()) <= 70
    picture = (ROOT / re.search(r"!\[.*?\]\((.*?\.svg)\)", text)[1]).read_text("utf-8")
    assert "gpas&#160;table&#160;quickstart&#160;--paper" in picture
    assert_loads_nothing(picture)


def test_the_description_on_a_package_index_has_no_relative_link() -> None:
    hook = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["hatch"]["metadata"]["hooks"]
    text = (ROOT / "README.md").read_text("utf-8")
    for each in hook["fancy-pypi-readme"]["substitutions"]:
        text = re.sub(each["pattern"], each["replacement"], text)
    assert [link for link in LINK.findall(text) if "://" not in link] == []
    assert "![" not in text
    assert "how-to guides ·" in text


def test_each_picture_shows_the_output_of_its_command() -> None:
    try:
        ends = os.openpty()
    except OSError:
        pytest.skip("this machine has no pseudo-terminals")
    for end in ends:
        os.close(end)
    command = [sys.executable, "-c", "print('\x1b[1m47.13\x1b[0m\\nnotes on it')"]
    picture = script("picture").drawn(command, until="notes")
    assert ">47.13</text>" in picture
    assert ">notes" not in picture
    assert_loads_nothing(picture)


def assert_loads_nothing(picture: str) -> None:
    assert "url(" not in re.sub(r"url\(#[\w-]+\)", "", picture)


@pytest.mark.parametrize(
    ("page", "words"), BASH, ids=lambda value: value if isinstance(value, str) else " ".join(value)
)
def test_command_lines_parse(page: str, words: list[str]) -> None:
    if words[0] == "make":
        assert words[1] in make_targets()
    elif words[0] == "python":
        assert (ROOT / words[1]).is_file()
    elif words[0] == "source":
        assert words[1] == ".venv/bin/activate"
    else:
        parse(words[words.index("gpas") + 1 :])


def test_commands_in_sentences_parse() -> None:
    found = list(inline_commands())
    assert len(found) > 50
    for page, words in found:
        try:
            parse(words[1:])
        except Exception as error:
            # `gpas why` within a sentence needs no cell.
            if not str(error).startswith("Missing parameter"):
                pytest.fail(f"{page}: {' '.join(words)}: {error}")


def test_examples_in_help_texts_parse() -> None:
    examples = re.findall(r"Example: `(gpas .*?)`", hooks().PARTS["commands"]())
    assert len(examples) > 20
    for example in examples:
        parse(shlex.split(example)[1:])


@pytest.mark.parametrize("wrong", ["gpas stauts", "gpas status --wide", "gpas plan --price many"])
def test_the_check_of_commands_can_fail(wrong: str) -> None:
    with pytest.raises(Exception, match=r"stauts|--wide|many"):
        parse(wrong.split()[1:])


@pytest.mark.parametrize(("page", "text"), YAML, ids=[f"{page}-{i}" for i, (page, _) in enumerate(YAML)])
def test_yaml_loads_and_its_cells_are_valid(page: str, text: str, tmp_path: Path) -> None:
    loaded = load(written(tmp_path, text))
    grids = yaml.safe_load(text).get("grids", {"example": {}})
    for grid in grids:
        assert expand(loaded, [grid]), f"{page}: {grid} has no cells"


MISTAKES = file_text("experiments/mistakes.yaml")


def test_the_messages_shown_are_those_of_the_program(tmp_path: Path) -> None:
    (tmp_path / "experiments.yaml").write_text(MISTAKES)
    with pytest.raises(InvalidExperiments) as caught:
        expand(load(tmp_path / "experiments.yaml"), ["mine"])
    assert f"gpas: {caught.value}".replace(f"{tmp_path}/", "") in (DOCS / "tutorial.md").read_text("utf-8")


@pytest.mark.parametrize("page", ["docs/tutorial.md", "docs/explanation/wiring.md"])
def test_the_equations_shown_are_those_of_the_cell(page: str) -> None:
    cells = {entry.name: entry for entry in cells_of("quickstart")}
    entry = cells["mix-gpas-s1"]
    shown = (ROOT / page).read_text("utf-8")
    assert f"quickstart/mix-gpas-s1  Mix-LN + GPAS  key {entry.key}" in shown
    assert all(line in shown for line in description(entry.cell.model))


@pytest.mark.parametrize(("page", "code"), PYTHON, ids=[page for page, _ in PYTHON])
def test_python_runs(page: str, code: str, tmp_path: Path) -> None:
    (tmp_path / "block.py").write_text(code)
    done = subprocess.run([sys.executable, "block.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=name_of)
def test_code_fits_the_width_of_a_page(page: Path) -> None:
    found = FENCE.findall(page.read_text("utf-8"))
    lines = [line for _, language, text in found if language != "math" for line in text.splitlines()]
    assert [line for line in lines if len(line) > CODE_COLUMNS] == []


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as generated by Markdown's toc extension."""
    headings = re.findall(r"^#+ +(.*)$", FENCE.sub("", page.read_text("utf-8")), re.MULTILINE)
    words = (re.sub(r"[^\w\s-]", "", heading).strip().lower() for heading in headings)
    return {re.sub(r"[-\s]+", "-", heading) for heading in words}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    for link in LINK.findall(FENCE.sub("", page.read_text("utf-8"))):
        path, _, anchor = link.partition("#")
        if path.startswith(("http://", "https://")):
            continue
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def files_to_open() -> dict[str, list[str]]:
    """Return the files that CONTRIBUTING names by kind of change."""
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    rows = re.findall(r"^\| (an? .*?) \| (.*) \|$", text, re.MULTILINE)
    return {change: FILE.findall(files) for change, files in rows}


def test_contributing_names_files_for_ten_kinds_of_change() -> None:
    named = files_to_open()
    assert len(named) >= 10
    assert all(named.values())


def defining_files() -> Iterator[tuple[str, str]]:
    """Yield (kind of change in CONTRIBUTING, file) of every entry of a registry that the package itself fills."""
    constructors = [kind.constructor.partition(":")[0] for kind in OPTIMIZERS.values()]
    modules = {
        "a normalisation scheme": [cls.__module__ for cls in SCHEMES.values()],
        "a learning-rate schedule": [cls.__module__ for cls in SCHEDULES.values()],
        "an optimizer": [*constructors, *(type(kind).__module__ for kind in OPTIMIZERS.values())],
        "a setting of a cell": [cls.__module__ for cls in hooks()._sections().values()],
        "a curve": [type(quantity).__module__ for quantity in QUANTITIES.values()],
        "a kind of stage": [str(kind.runner).partition(":")[0] for kind in STAGE_KINDS.values()],
        "a scheduler": [place.partition(":")[0] for place in _BUILT_IN.values()],
    }
    for change, named in modules.items():
        yield from ((change, f"{name.replace('.', '/')}.py") for name in named)
    for change, name in (("a claim of a paper", "claims"), ("a figure of a paper", "figures")):
        paths = (pack.document(name) for pack in known_packs().values() if pack.has(name))
        yield from ((change, str(path.relative_to(ROOT))) for path in paths)


def test_every_registry_lies_in_the_files_that_contributing_names() -> None:
    named = files_to_open()
    # A scheduler is a folder beside the one that the table names.
    named["a scheduler"] = [f"{ROOT.joinpath(named['a scheduler'][0]).parent.relative_to(ROOT)}/"]
    found = list(defining_files())
    assert len(found) > 50
    astray = {(change, file) for change, file in found if not any(file.startswith(place) for place in named[change])}
    assert not astray


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_files_that_are_named_exist(page: Path) -> None:
    named = {path.rstrip(".") for path in FILE.findall(page.read_text("utf-8"))}
    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []


def test_the_citation_and_the_changelog_are_of_this_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert (citation["version"], citation["license"]) == (__version__, "Apache-2.0")
    assert citation["type"] == "software"
    assert "preferred-citation" not in citation  # which would be cited in place of the software
    papers = [pack for pack in known_packs().values() if pack.has("numbers") and pack.name != "code"]
    titles = {numbers_of(pack)["title"].removesuffix(" (poster)") for pack in papers}
    assert {work["title"] for work in citation["references"]} == titles
    assert f"## {__version__} " in (ROOT / "CHANGELOG.md").read_text("utf-8")
    assert (ROOT / "LICENSE").read_text("utf-8").split("\n")[0].strip() == "Apache License"
    assert (ROOT / "gpas_cli/py.typed").is_file()


def test_ci_calls_targets_of_the_makefile() -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text("utf-8"))
    steps = [step["run"] for job in workflow["jobs"].values() for step in job["steps"] if "run" in step]
    called = {step.split()[1] for step in steps if step.startswith("make ")}
    assert {"check", "docs", "test", "test-engine", "venv"} == called <= set(make_targets())
    phases = re.findall(r"^ *phase \w+ (?:make|newcomer) ([\w-]+)", (ROOT / ".ci/run").read_text("utf-8"), re.MULTILINE)
    assert {*phases} == {"dev", "check", "docs", "test", "test-machine", "test-engine", "test-long"}
    assert {*phases} <= {*make_targets(), "dev"}


def test_every_field_of_an_extension_is_described() -> None:
    _, table = (DOCS / "how-to/extension.md").read_text("utf-8").split("| field of `Extension` | meaning |")
    named = (re.findall(r"`(\w+)`", row.split("|")[1]) for row in table.split("\n\n")[0].splitlines()[2:])
    assert sorted(name for names in named for name in names) == sorted(own.name for own in fields(Extension))


def test_generated_parts_are_placed_once_each() -> None:
    parts = hooks()
    placed = [name for page in PAGES for name in parts.MARKER.findall(page.read_text("utf-8"))]
    assert sorted(placed) == sorted(parts.PARTS)


def test_generated_parts_name_everything() -> None:
    parts = hooks().PARTS
    listed = parts["commands"]()
    for name in ("gpas plan", "gpas run grid", "gpas data prepare", "gpas db rebuild"):
        assert f"# `{name}`\n" in listed
        assert f"| [`{name}`](#{name.replace(' ', '-')}) | " in listed
    assert re.search(r"^#### `--notify` \{ #option-notify \}\n\n- .*`gpas run grid`", parts["options"](), re.MULTILINE)
    assert "\nExample: `gpas run grid quickstart --where gate=gpas`\n" in listed
    form = parts["json"]()
    for name in documents():
        assert f"`gpas {name}`" in form
        assert all(f"| `{field}` |" in form for field in json_schema(document_of(name))["properties"])
    events = parts["events"]()
    assert all(f"## `{kind}`\n\n{cls.__doc__.splitlines()[0]}" in events for kind, cls in KINDS.items())
    assert "| `step` | integer | required |\n| `loss` | number |  |" in events
    tables = parts["tables"]()
    for table in Base.metadata.sorted_tables:
        assert f"## `{table.name}`" in tables
        assert all(f"| `{column.name}` |" in tables for column in table.columns)
    settings = parts["settings"]()
    own = {*TRAINING_PARTS, *(name for name, kind in stage_kinds().items() if kind.parameters)}
    for section in own | {"size", "gate", "embed", "init", "family", "cadence", "watch", "resources"}:
        assert f"`{section}`" in re.search(rf"^### .*`{section}`.*$", settings, re.MULTILINE)[0]
    grids = parts["experiments"]()
    assert all(f"| `{name}` |" in grids for name in EXPERIMENTS.grids)
    assert "| `table2` | `gpas` | 55 | 4 | 2,552 |" in grids
    assert re.search(r"^\| `quickstart-spike` \| `spike_no_more` \| \d+ \| CPU \|  \|", grids, re.MULTILINE)
    assert "| `71m` | 512 | 1,368 | 8 | 12 |" in parts["sizes"]()
    assert "| `b2t` | B2T |" in parts["schemes"]()
    assert "| `mean_importance` |" in parts["metrics"]()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("material", reason="`make docs` installs MkDocs")
    built = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(built)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return built


def test_the_site_builds_without_a_warning_and_loads_nothing_from_elsewhere(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > len(list(DOCS.rglob("*.md"))) - 1
    for page in pages:
        text = page.read_text("utf-8")
        assert "<!-- generated" not in text
        assert not EXTERNAL.findall(text), page


FOUND = tables("cases.yaml")["the_search_of_the_site_works_when_it_is_opened_as_files"]


@pytest.mark.long
@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
def test_the_search_of_the_site_works_when_it_is_opened_as_files(site: Path) -> None:
    pytest.importorskip("playwright", reason="needs playwright")
    with chromium() as browser:
        page = browser.new_page()
        page.goto(f"{site.as_uri()}/index.html")
        for query, place in FOUND.items():
            page.fill("input.md-search__input", query)
            page.press("input.md-search__input", "End")
            first = page.locator(f".md-search-result__item:nth-child(-n+2) a[href*='{place}']").first
            first.wait_for(state="attached", timeout=20_000)

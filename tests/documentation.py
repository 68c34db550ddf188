"""The pages of the repository, the blocks of code in them, and the experiments file that a YAML block is part of."""

import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import yaml

from gpas_cli.project import packaged

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
FORMS = [path for path in sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml")) if path.stem != "config"]
PAGES = [*sorted(ROOT.glob("*.md")), *FORMS, *sorted(DOCS.rglob("*.md"))]
# A block with a title is the file that the title names: its language is not that of an experiments file or a command.
FENCE = re.compile(r'^( *)```(\w*(?: title="[^"\n]*")?)\n(.*?)^\1```$', re.MULTILINE | re.DOTALL)


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(language: str) -> Iterator[tuple[Path, str]]:
    for page in PAGES:
        for _, found, text in FENCE.findall(page.read_text("utf-8")):
            if found == language:
                yield page, text


YAML = [(name_of(page), text) for page, text in blocks("yaml")]
PYTHON = [(name_of(page), text) for page, text in blocks("python")]


def experiments(text: str) -> str:
    """Return a complete experiments file for a block.

    A complete file is returned unchanged; grids are appended to the shipped file; other sections get an example grid.
    """
    declared = yaml.safe_load(text)
    if "version" in declared:
        return text
    if "grids" in declared:
        assert list(declared) == ["grids"]
        return packaged("experiments.yaml").read_text("utf-8") + text.removeprefix("grids:\n")
    recipe = "optim: {lr: 1e-3, warmup: 1, steps: 2}"
    return f"version: 1\n{text}grids:\n  example:\n    base: {{size: 130m, {recipe}}}\n"


def written(folder: Path, text: str) -> Path:
    """Write the experiments file of a block to `folder`, with the plugins of the docs. Return its path."""
    for name, declared in (("my_schemes.py", "SCHEMES = "), ("my_stages.py", "STAGE_KINDS = ")):
        (folder / name).write_text(next(code for _, code in PYTHON if declared in code))
    config = folder / "experiments.yaml"
    config.write_text(experiments(text), "utf-8")
    return config


def hooks() -> ModuleType:
    return script("hooks")


def script(name: str) -> ModuleType:
    """Return a file of docs/ as a module."""
    spec = importlib.util.spec_from_file_location(f"docs_{name}", DOCS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module

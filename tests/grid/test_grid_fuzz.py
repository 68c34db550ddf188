"""Every file results in cells or a GpasError, never in a traceback."""

import contextlib
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from shipped import excerpt

from gpas_cli.errors import GpasError
from gpas_cli.grid.document import parse_document
from gpas_cli.grid.expand import expand
from gpas_cli.grid.load import interpret

# Grids of each kind: with a gate, later stages, a depth schedule, another family, objective and networks.
TEXT = excerpt(
    "quickstart", "quickstart-ablations", "quickstart-downstream", "quickstart-translate", "quickstart-raptr",
    "quickstart-spike", "quickstart-stability", "quickstart-raptr-mlm", "quickstart-glue", "quickstart-ul2",
)  # fmt: skip
# Without the comments, so that most changes hit something meaningful.
LINES = [line for line in TEXT.splitlines(keepends=True) if line.strip() and not line.lstrip().startswith("#")]
FILES = settings(max_examples=6, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
TREES = settings(FILES, max_examples=30)
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)

WORDS = sorted({*TEXT.replace(",", " ").replace(":", " ").replace("{", " ").replace("}", " ").split()})
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 100),
    st.floats(allow_nan=True),
    st.sampled_from(WORDS),
    st.text(max_size=6),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(WORDS) | st.text(max_size=4), inner, max_size=4)
    ),
    max_leaves=8,
)


def survives(text: str) -> None:
    """Load the text and expand all its grids; any error but a GpasError fails the test."""
    with contextlib.suppress(GpasError):
        experiments = interpret(parse_document(text, "e.yaml"), Path("e.yaml"))
        entries = expand(experiments, list(experiments.grids))
        event("valid")
        assert all(entry.key for entry in entries)


@pytest.mark.long
@FILES
@given(st.data())
def test_the_shipped_file_with_characters_changed(data: st.DataObject) -> None:
    text = "".join(LINES)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(text) - 1))
        new = data.draw(
            st.sampled_from([*"{}[]:,&*!-#\"'\n\t 0x", "<<: ", "*quickstart", "null", "none", ".nan", "- "])
        )
        text = text[:at] + new + text[at + data.draw(st.integers(0, 6)) :]
    survives(text)


@pytest.mark.long
@FILES
@given(st.data())
def test_the_shipped_file_with_lines_moved(data: st.DataObject) -> None:
    lines = list(LINES)
    for _ in range(data.draw(st.integers(1, 3))):
        line = lines.pop(data.draw(st.integers(0, len(lines) - 1)))
        if data.draw(st.booleans()):
            lines.insert(data.draw(st.integers(0, len(lines))), line)
    survives("".join(lines))


@FILES
@given(st.data())
def test_the_shipped_file_with_values_replaced(data: st.DataObject) -> None:
    tree = yaml.load("".join(LINES), Loader=_LOADER)
    for _ in range(data.draw(st.integers(1, 2))):
        _replace(tree, data)
    survives(yaml.dump(tree, Dumper=_DUMPER, allow_unicode=True))


def _replace(tree: Any, data: st.DataObject) -> None:
    """Replace one value somewhere in the tree by another."""
    while True:
        keys = list(tree) if isinstance(tree, dict) else list(range(len(tree)))
        key = data.draw(st.sampled_from(keys))
        below = tree[key]
        if not below or not isinstance(below, dict | list) or data.draw(st.integers(0, 5)) == 0:
            tree[key] = data.draw(VALUES)
            return
        tree = below


@TREES
@given(st.dictionaries(st.sampled_from(["version", "default", "sizes", "recipes", "grids"]), VALUES), VALUES)
def test_random_trees(tree: dict[str, Any], grid: Any) -> None:
    survives(yaml.dump({**tree, "version": 1, "grids": {"g": grid}}, Dumper=_DUMPER, allow_unicode=True))


@TREES
@given(st.text(max_size=60))
def test_random_text(text: str) -> None:
    survives(text)

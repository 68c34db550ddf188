"""YAML text -> nodes: scalars as in YAML 1.2, positions, refusals; every file results in cells or a GpasError."""

import contextlib
import math
from pathlib import Path
from typing import Any

import pytest
import yaml
from cases import cases
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from shipped import excerpt

from gpas_cli.errors import GpasError, InvalidExperiments
from gpas_cli.grid.document import parse_document, read_document, resolve
from gpas_cli.grid.expand import expand
from gpas_cli.grid.load import interpret


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001), ("1.5E3", 1500.0), (".5", 0.5), ("010", 10), ("0x10", 16), ("0o10", 8), ("-7", -7),
        ("1:30:00", "1:30:00"), ("1-00:00:00", "1-00:00:00"), ("1_000", "1_000"), ("2024-01-01", "2024-01-01"),
        ("71m", "71m"), ("on", "on"), ("No", "No"), ("true", True), ("False", False), ("~", None), ("", None),
        (".inf", math.inf),
    ],
)  # fmt: skip
def test_plain_scalars_follow_yaml_12(text: str, value: Any) -> None:
    found = resolve(text)
    assert found == value
    assert type(found) is type(value)


def test_quoted_scalars_are_words() -> None:
    assert parse_document("""{a: "1e-3", b: 'true'}""", "e").plain() == {"a": "1e-3", "b": "true"}


def test_every_node_knows_its_line_and_column() -> None:
    items = parse_document("a:\n  - x\n  - {b: 3}\n", "e.yaml").value["a"].value
    assert [str(item.mark) for item in items] == ["e.yaml:2:5", "e.yaml:3:5"]
    three = items[1].value["b"]
    assert (str(three.mark), str(three.key)) == ("e.yaml:3:9", "e.yaml:3:6")


def test_anchors_and_merge_keys() -> None:
    text = "a: &a {x: 1, y: 2}\nb: {<<: *a, y: 3}\nc: {<<: [{x: 5}, *a]}\nd: *a\n"
    assert parse_document(text, "e").plain() == {
        "a": {"x": 1, "y": 2}, "b": {"x": 1, "y": 3}, "c": {"x": 5, "y": 2}, "d": {"x": 1, "y": 2},
    }  # fmt: skip


def test_an_alias_refers_to_the_last_anchor_before_it() -> None:
    assert parse_document("a: &x 1\nb: *x\nc: &x 2\nd: *x\n", "e").plain() == {"a": 1, "b": 1, "c": 2, "d": 2}


LAUGHS = "a0: &a0 [x]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 10))


@cases("grid/cases.yaml")
def test_refused(text: str, where: str, message: str) -> None:
    assert_refused(text, where, message)


def assert_refused(text: str, where: str, message: str) -> None:
    with pytest.raises(InvalidExperiments) as caught:
        parse_document(text, "e")
    assert str(caught.value).startswith(f"{where}: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_texts_that_no_file_of_cases_can_have_are_refused() -> None:
    assert_refused("a: \x00\n", "e:1:1", "is not YAML")
    assert_refused(LAUGHS, "e:7:5", "aliases expand")
    nested = "a0: &a0 [x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}]\n" for i in range(1, 40))
    assert_refused(nested, "e:24:6", "nested more than")


def test_a_text_so_deep_that_a_recursive_parser_crashes_is_refused() -> None:
    with pytest.raises(InvalidExperiments, match=r"^e:1:\d+: .*nest"):  # new versions of libyaml refuse it themselves
        parse_document("[" * 200_000, "e")


def test_all_duplicate_keys_are_reported_at_once() -> None:
    with pytest.raises(InvalidExperiments) as caught:
        parse_document("a: 1\na: 2\nb: {c: 1, c: 2}\n", "e")
    assert [problem.where for problem in caught.value.problems] == ["e:2:1", "e:3:11"]


def test_a_file_that_is_not_utf8(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "e.yaml"
    path.write_bytes(b"a: 1\nb: caf\xe9\n")
    with pytest.raises(InvalidExperiments, match=r"^e.yaml:2:7: is not UTF-8 text$"):
        read_document(path)


def test_a_byte_order_mark_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "e.yaml"
    path.write_bytes(b"\xef\xbb\xbfa: 1\n")
    assert read_document(path).plain() == {"a": 1}


def test_unreadable_and_enormous_files(tmp_path: Path) -> None:
    with pytest.raises(GpasError, match="No such file"):
        read_document(tmp_path / "absent.yaml")
    with pytest.raises(GpasError, match="directory"):
        read_document(tmp_path)
    path = tmp_path / "e.yaml"
    path.write_bytes(b"#" * 4_000_001)
    with pytest.raises(GpasError, match="at most 4,000,000"):
        read_document(path)


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

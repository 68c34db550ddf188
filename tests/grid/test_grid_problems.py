"""Every mistake has a message with its line and column; all mistakes of a file are reported at once. The words of other
tools and of plain English are answered with what to write here."""

import re
import time
from pathlib import Path

import pytest
from cases import cases
from grids import HEAD, complaints, grid, read, whole

import gpas_cli

BASE = "base: {size: quickstart, data: quickstart}\n"
BAD_CELLS = "{norm: [prenorm], gate: [true], optim.lr: [-1]}"


@cases("grid/cases.yaml", body="", adds="", times=1)
def test_a_mistake_in_a_grid_is_reported_once_at_its_position(
    body: str, adds: str, place: str, says: str, times: int
) -> None:
    found = complaints(whole(body or BASE + adds))
    assert len(found) == times, found
    assert found[0].startswith(f"e.yaml:{place}: "), found
    assert says in found[0]


@cases("grid/cases.yaml")
def test_a_mistake_of_a_grid_does_not_hide_those_of_its_cells(body: str) -> None:
    said = "\n".join(complaints(whole(body.replace("CELLS", BAD_CELLS) + "\ntable: {rows: [gte]}")))
    own = complaints(whole(body.replace("CELLS", "{norm: [pre]}")))
    assert own
    assert all(mistake.partition(": ")[2].partition(";")[0] in said for mistake in own)
    for mistake in ("unknown scheme 'prenorm'", "unknown gate 'True'", "optim.lr: -1.0 is too small", "no axis 'gte'"):
        assert said.count(mistake) == 1, said


def test_a_grid_with_a_mistake_and_too_many_cells_is_not_expanded() -> None:
    many = BASE + "lr: 1\naxes: {seed: {range: [1, 9000]}, optim.lr: {linear: [0.1, 0.2], n: 9000}}"
    assert len(complaints(whole(many))) == 1


@pytest.mark.whole
@cases("grid/cases.yaml")
def test_a_mistake_outside_the_grids(text: str, place: str, says: str) -> None:
    found = [line for line in complaints(text) if says in line]
    assert len(found) == 1, complaints(text)
    assert found[0].startswith(f"e.yaml:{place}: ")


@cases("grid/cases.yaml")
def test_mistakes_of_a_file_are_reported_at_once_and_once(text: str, says: list[str]) -> None:
    """A mistake is reported once, and what follows from it is not; `says` has words of each message, in order."""
    found = complaints(text)
    assert len(found) == len(says), found
    assert all(words in line for words, line in zip(says, found, strict=True)), found


def test_an_endless_chain_of_includes_is_refused() -> None:
    chain = "".join(f"  g{i}: {{include: [g{i + 1}]}}\n" for i in range(400))
    found = complaints(HEAD + chain + "  g400: {base: {size: quickstart, data: quickstart}}\n")
    assert len(found) == 351
    assert found[0].startswith("e.yaml:4:18: grids.g0.include: the incl")
    assert all("the includes are nested more than 50 grids deep" in line for line in found[1:])


def test_whole_numbers_may_have_exponents() -> None:
    (entry,) = grid(BASE[:-2] + ", optim.steps: 6e2, optim.warmup: 6.0e1}")
    assert (entry.cell.optim.steps, entry.cell.optim.warmup) == (600, 60)
    assert entry.key == grid(BASE)[0].key


@pytest.mark.parametrize("text", ["grids:\n\tg: 1\n", "grids:\n  g: 1\n\th: 2\n"])
def test_a_tab_in_the_indentation_is_named(text: str) -> None:
    (found,) = complaints(text)
    assert found.endswith("is not YAML: the line is indented with a tab; use spaces")


def test_titles_over_several_lines_become_one_and_shell_keeps_its_lines() -> None:
    text = 'title: >\n  Two\n  lines\nresources: {setup: ["a\\nb"]}\n' + BASE
    experiments = read(whole(text))
    assert experiments.grids["g"].title == "Two lines"
    assert experiments.grids["g"].resources.own.plain()["setup"] == ["a\nb"]


def test_ten_thousand_seeds_are_read_in_less_than_a_second() -> None:
    """The best of three, in seconds of processor time: the machine may be busy."""
    text = whole(BASE + f"axes: {{seed: [{', '.join(map(str, range(10_000)))}]}}")

    def seconds() -> float:
        before = time.process_time()
        assert len(read(text).grids["g"].axes[0].points) == 10_000
        return time.process_time() - before

    assert min(seconds() for _ in range(3)) < 1


@cases("grid/cases.yaml")
def test_a_mistake_beside_the_cells_hides_none_in_the_cells(beside: str) -> None:
    text = whole("base: {size: quickstart, data: quickstart, optim.lr: -1}\naxes: {gate: [gpass]}\n" + beside)
    found = complaints(text)
    assert [line.split(": ")[1].split(".")[0] for line in found] == ["grids", "gate", "optim"], found


@cases("grid/cases.yaml")
def test_a_guess_in_the_base(written: str, says: str) -> None:
    (message,) = complaints(whole(f"base: {{size: quickstart, data: quickstart, {written}}}"))
    assert message.endswith(says)


@cases("grid/cases.yaml")
def test_a_guess_at_an_axis(written: str, says: str) -> None:
    (message,) = complaints(whole(f"base: {{size: quickstart, data: quickstart}}\naxes: {{{written}}}"))
    assert message.endswith(says)


def test_a_file_as_data_is_declared_first() -> None:
    (message,) = complaints(whole("base: {size: quickstart, data: texts/a.txt}"))
    assert message.endswith("declare a text first: corpora: {mine: {source: files, path: texts/a.txt, tokenizer: bpe}}")


def test_the_settings_that_are_offered_exist() -> None:
    lines = (Path(gpas_cli.__file__).parent / "other_words.txt").read_text("utf-8").splitlines()
    offered = {found for line in lines for found in re.findall(r"\b([a-z]+\.[a-z_0-9]+)", line.partition(" = ")[0])}
    for section, name in (setting.split(".") for setting in offered - {"errors.nearest"}):
        own = "gate: {like: gpas}, " if section != "gate" else ""
        (message,) = complaints(whole(f"base: {{size: quickstart, data: quickstart, {own}{section}.{name}: {{}}}}"))
        assert f"{section}.{name}: " in message
        assert "unknown" not in message

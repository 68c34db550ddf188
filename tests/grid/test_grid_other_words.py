"""The words of other tools and of plain English are answered with what to write here."""

import re
from pathlib import Path

from cases import cases
from grids import complaints, whole

import gpas_cli


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

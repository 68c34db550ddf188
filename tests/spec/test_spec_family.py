"""Families: the rows that a network with learned positions can be given."""

from __future__ import annotations

import pytest

from gpas_cli.spec.model import FAMILIES


@pytest.mark.parametrize(("family", "tokens", "given"), [("llama", 4096, 4096), ("gpt", 4096, 2048), ("gpt", 64, 64)])
def test_a_row_has_no_more_tokens_than_there_are_learned_positions(family: str, tokens: int, given: int) -> None:
    assert FAMILIES[family].row_length(tokens) == given

"""The reader of a cell's objective: how rows of tokens become inputs and targets."""

from __future__ import annotations

from gpas_cli.data.loader import CAUSAL, CausalReader, RowReader
from gpas_cli.data.mask_token import no_such_token
from gpas_cli.data.masked import MaskedReader
from gpas_cli.data.spans import SpanReader
from gpas_cli.data.tokenizer import Tokenizer
from gpas_cli.errors import DataError
from gpas_cli.spec.cell import Cell
from gpas_cli.spec.objective import Masked, Spans

_NO_ID = -1


def reader_of(cell: Cell, tokenizer: Tokenizer) -> RowReader:
    """Return the reader of the cell's objective. Raises DataError if the tokenizer has no token that it needs."""
    objective = cell.objective
    mask_id = _mask_of(objective, tokenizer) if isinstance(objective, Masked) and objective.mask_token else None
    return _reader(cell, tokenizer.eos_id, mask_id)


def untokenised_reader(cell: Cell) -> RowReader:
    """Return the reader of the cell's objective for tokens from no tokenizer."""
    return _reader(cell, _NO_ID, None)


def _reader(cell: Cell, end_id: int, mask_id: int | None) -> RowReader:
    """`mask_id`: None for the last id of the vocabulary."""
    objective = cell.objective
    vocab = cell.model.size.vocab
    last = vocab - 1
    if isinstance(objective, Masked):
        return MaskedReader(objective, cell.data.length, last if mask_id is None else mask_id, cell.text_vocab, end_id)
    if isinstance(objective, Spans):
        return SpanReader(objective, cell.data.length, vocab, end_id)
    return CAUSAL if cell.data.documents == "joined" else CausalReader(end_id)


def _mask_of(objective: Masked, tokenizer: Tokenizer) -> int:
    """Return the id of the tokenizer's mask token. Raises DataError if there is none of that name."""
    found = tokenizer.id_of(objective.mask_token)
    if found is None:
        raise DataError(no_such_token(tokenizer.origin, f"'{objective.mask_token}' below {tokenizer.vocab}"))
    return found

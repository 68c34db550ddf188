"""What a choice of cells needs tokenised, each corpus once and as much of it as its greediest cell reads."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from gpas_cli.spec.cell import Cell
from gpas_cli.spec.data import Data


@dataclass(frozen=True)
class TextRequirement:
    """One corpus under one vocabulary: `rows` of training (updates times batch), `data.eval_tokens` of validation."""

    data: Data
    vocab: int
    rows: int

    @property
    def label(self) -> str:
        """What people call the corpus: c4, stdlib, or the path of one's own text."""
        return self.data.path or self.data.source

    def serves(self, cell: Cell) -> bool:
        """Whether the cell reads this corpus under this vocabulary."""
        same = replace(cell.data, eval_tokens=self.data.eval_tokens) == self.data
        return same and cell.model.size.vocab == self.vocab


def requirements(cells: Iterable[Cell]) -> list[TextRequirement]:
    """The corpora of the cells, in the order of the cells."""
    found: dict[object, TextRequirement] = {}
    for cell in cells:
        size = cell.model.size
        data, rows = cell.data, cell.optim.rows
        key = (replace(data, eval_tokens=1), size.vocab)
        known = found.get(key, TextRequirement(data, size.vocab, 0))
        tokens = max(known.data.eval_tokens, data.eval_tokens)
        found[key] = TextRequirement(replace(data, eval_tokens=tokens), size.vocab, max(known.rows, rows))
    return list(found.values())

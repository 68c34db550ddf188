"""What the evaluations ask of a network that was not trained here: an extension loads it (`Network.open`)."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from torch import Tensor, nn

from gpas_cli.data.tokenizer import Tokenizer
from gpas_cli.structure import Frozen
from gpas_cli.train.precision import Precision


class ForeignNetwork(nn.Module):
    """A network with the call signature of `model.llama.Llama`, which applies all layers."""

    inner: Any  # the module that has its layers
    source: str  # what messages call it
    predicts: bool
    """Whether it has a head for the next token; without any `read` gets None in place of the head's matrix."""
    mask_id: int | None = None
    """The token in place of those that its head predicts; None if it predicts the next token, or has no head."""

    def probe(self) -> Tensor:
        """Return the result of one forward pass over a few tokens."""
        raise NotImplementedError

    def require_head(self, tasks: Sequence[str]) -> None:
        """Raise GpasError unless the network has the head that tasks need: for answers, or for the next token."""
        raise NotImplementedError

    def attention_to_first(self, attentions: Sequence[nn.Module]) -> AbstractContextManager[list[Tensor]]:
        """Return a context that collects the shares of attention on the first token of each row, of all other tokens,
        in a forward pass: a tensor (batch, time - 1) for each layer, the mean over its heads. Nothing where the
        attention does not give its matrix.

        Rows have no padding. The matrices are computed for this, those of one layer at a time.
        """
        raise NotImplementedError


class Opened(Frozen):
    """A loaded network with its tokenizer."""

    network: ForeignNetwork
    precision: Precision
    tokenizer: Tokenizer
    parameters: int  # their number
    positions: int | None  # the most tokens of a row that it reads; None if they are rotary or unknown

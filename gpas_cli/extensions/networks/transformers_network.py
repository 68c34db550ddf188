"""Networks of `transformers` with the call signature of `model.llama.Llama`.

CausalNetwork   predicts the next token: log-likelihoods of texts and choices
MaskedNetwork   predicts masked tokens
Encoder         has no head for the next token: its streams, and answers to questions if it has a head for them
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpas_cli.errors import GpasError
from gpas_cli.evaluate.foreign import ForeignNetwork
from gpas_cli.model.llama import Read
from gpas_cli.model.packing import Packing
from gpas_cli.model.stream import hooked
from gpas_cli.spec.downstream import SQUAD, base_name

_HEAD_TOLERANCE = 1e-3  # of a logit, relative to the largest
# Of a state when a later token changes, relative to the largest: of weights in float32, and in bfloat16.
_LATER_TOLERANCE, _HALF_TOLERANCE = 1e-4, 1e-2
_PROBE_TOKENS = 8


class _TransformersNetwork(ForeignNetwork):
    """What both have. answers: the head that maps states to two logits, that a token is the first of the answer and the
    last; None if there is none."""

    answers: Any
    vocab: int

    def require_head(self, tasks: Sequence[str]) -> None:
        for task in tasks:
            if base_name(task) == SQUAD and self.answers is None:
                kind = "an architecture ForQuestionAnswering"
                raise GpasError(f"{task} needs a head for answers ({kind}), and {self.source} has none")
            if base_name(task) != SQUAD and not self.predicts:
                only = f"; it can be asked {SQUAD}" if self.answers is not None else ""
                raise GpasError(f"{task} needs a head that predicts the next token, and {self.source} has none{only}")

    @contextmanager
    def attention_to_first(self, attentions: Sequence[nn.Module]) -> Iterator[list[Tensor]]:
        found: list[Tensor] = []

        def keep(_attention: nn.Module, _inputs: object, output: object) -> None:
            weights = output[1] if isinstance(output, tuple) and len(output) > 1 else None
            if isinstance(weights, Tensor) and weights.dim() == 4:
                found.append(weights[:, :, 1:, 0].double().mean(1))

        usual = self.inner.config._attn_implementation
        self.inner.set_attn_implementation("eager")
        with ExitStack() as stack:
            stack.callback(self.inner.set_attn_implementation, usual)
            for attention in attentions:
                stack.callback(attention.register_forward_hook(keep).remove)
            yield found

    def _few(self) -> Tensor:
        """Return a row of tokens to try the network on, (1, time)."""
        device = next(self.parameters()).device
        return torch.arange(_PROBE_TOKENS, device=device)[None] % self.vocab


class _HeadedNetwork(_TransformersNetwork):
    """A network with logits of tokens. A hook captures the input of the head, so that logits are computed only where
    they are read. options: more arguments of `inner`."""

    options: ClassVar[Mapping[str, Any]] = {}

    def __init__(self, inner: Any, source: str):
        """Raises GpasError if the logits are not a linear map of the head's input."""
        super().__init__()
        self.inner = inner
        self.source = source
        self.answers = None
        head = inner.get_output_embeddings()
        if not isinstance(head, nn.Linear):
            raise GpasError(f"{source}: its head is not a matrix, so it cannot be scored")
        self.vocab = head.out_features
        self._head = head
        self.eval()
        self._check_head()

    def forward(self, tokens: Tensor, packing: Packing | None = None, read: Read = F.linear, *unused: object) -> Tensor:
        if self.predicts:
            assert unused.count(None) == len(unused)  # no token sees a later one
        else:
            assert packing is None  # every token sees the whole row, so that padding would need a mask
        rows = tokens if packing is None else tokens[0][packing.token].view(packing.rows, packing.time)
        hidden = self._hidden(rows)
        states = hidden if packing is None else packing.join(hidden)
        matrix = self._head.weight
        if self._head.bias is not None:
            # A bias is one more column of the matrix.
            matrix = torch.cat((matrix, self._head.bias[:, None]), 1)
            states = torch.cat((states, states.new_ones(*states.shape[:2], 1)), 2)
        return read(states, matrix)

    def _hidden(self, rows: Tensor) -> Tensor:
        """Return the input of the head (batch, time, hidden)."""
        caught: list[Tensor] = []

        def catch(_head: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor]:
            caught.append(inputs[0])
            return (inputs[0][:, :1],)

        self._call(rows, catch)
        return caught[0]

    def _call(self, rows: Tensor, hook: Callable[..., Any]) -> Any:
        with hooked([self._head], hook):
            return self.inner(input_ids=rows, **self.options).logits

    def probe(self) -> Tensor:
        return self._hidden(self._few())

    @torch.no_grad()
    def _check_head(self) -> None:
        rows = self._few()
        expected = self._call(rows, lambda _head, inputs: None).float()
        found = self(rows).float()
        if not (found - expected).abs().max() <= _HEAD_TOLERANCE * expected.abs().max():
            raise GpasError(
                f"{self.source}: its logits are not its head's matrix times its last states, so it cannot be scored"
            )


class CausalNetwork(_HeadedNetwork):
    """A causal language model. Rows are padded on the right, where causal attention ignores it."""

    predicts = True
    options: ClassVar[Mapping[str, Any]] = {"use_cache": False}

    def __init__(self, inner: Any, source: str):
        """Raises GpasError if the network has no usable head, or does not predict the next token."""
        super().__init__(inner, source)
        self._check_order()

    @torch.no_grad()
    def _check_order(self) -> None:
        rows = self._few()
        changed = torch.cat((rows[:, :-1], rows[:, :1]), 1)
        before, after = (self._hidden(one)[:, :-1].float() for one in (rows, changed))
        tolerance = _LATER_TOLERANCE if self._head.weight.dtype == torch.float32 else _HALF_TOLERANCE
        if not (before - after).abs().max() <= tolerance * before.abs().max():
            raise GpasError(f"{self.source}: its states depend on later tokens, so it does not predict the next token")


class MaskedNetwork(_HeadedNetwork):
    """A network that predicts masked tokens from all tokens of a row. mask_id: the token in their place."""

    predicts = False

    def __init__(self, inner: Any, source: str, mask_id: int | None):
        """Raises GpasError if the network has no usable head, or its tokenizer no mask token."""
        if mask_id is None:
            raise GpasError(f"{source}: it predicts masked tokens, and its tokenizer has no mask_token")
        super().__init__(inner, source)
        self.mask_id = mask_id


class Encoder(_TransformersNetwork):
    """A network of which only the last states are read, and answers to questions."""

    predicts = False

    def __init__(self, loaded: Any, source: str):
        super().__init__()
        self.inner = loaded.base_model
        self.answers = getattr(loaded, "qa_outputs", None)
        self.source = source
        self.vocab = int(self.inner.get_input_embeddings().num_embeddings)
        self._typed = getattr(loaded.config, "type_vocab_size", 0) > 1
        self.eval()

    def forward(self, tokens: Tensor, packing: Packing | None = None, read: Any = F.linear, *unused: object) -> Any:
        if packing is None:
            return read(self._states(tokens), None)
        rows = tokens[0][packing.token].view(packing.rows, packing.time)
        mask = torch.zeros_like(rows)
        mask.view(-1)[packing.index] = 1
        return read(packing.join(self._states(rows, attention_mask=mask)), None)

    def answer_logits(self, rows: Tensor, mask: Tensor, types: Tensor) -> Tensor:
        """Return the logits of first and last tokens of answers. rows: tokens; mask: 0 at padding; types: 0 in the
        question and 1 in the passage; all (batch, time) -> (batch, time, 2)."""
        assert self.answers is not None
        typed = {"token_type_ids": types} if self._typed else {}
        found: Tensor = self.answers(self._states(rows, attention_mask=mask, **typed))
        return found

    def probe(self) -> Tensor:
        return self._states(self._few())

    def _states(self, rows: Tensor, **more: Tensor) -> Tensor:
        found: Tensor = self.inner(input_ids=rows, **more).last_hidden_state
        return found

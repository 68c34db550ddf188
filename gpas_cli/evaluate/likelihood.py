"""Log-likelihoods of continuations given their contexts, from which the scores of downstream tasks are computed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gpas_cli.data.loader import IGNORED
from gpas_cli.data.tokenizer import Tokenizer
from gpas_cli.errors import GpasError
from gpas_cli.model.llama import LanguageModel
from gpas_cli.spec.objective import Frame
from gpas_cli.structure import Frozen
from gpas_cli.train.loss import DeviceRows, logits_at_once
from gpas_cli.train.precision import Precision

# More tokens at once are no faster: measured with benchmarks/scoring.py.
CPU_TOKENS = 2048
GPU_TOKENS = 2**15
_NO_FRAME = Frame()

# Called with the requests that are done, and their total.
Report = Callable[[int, int], None]


class Request(Frozen):
    """Token ids: a context, which is not empty, and the continuation to score, which may be empty."""

    context: tuple[int, ...]
    continuation: tuple[int, ...]

    @classmethod
    def of_text(cls, tokenizer: Tokenizer, context: str, continuation: str) -> Request:
        """Return the request for texts, divided into ids as lm-evaluation-harness does.

        White space at the end of the context belongs to the continuation. The two are encoded together and divided
        after as many ids as the context alone has. No special tokens are added but the tokenizer's `start`. Its
        `first_id` stands for an empty context.
        """
        bare = context.rstrip()
        continuation = context[len(bare) :] + continuation
        if not bare:
            return cls((tokenizer.first_id,), tuple(tokenizer.encode(continuation)))
        known = tokenizer.encode(bare)
        return cls((*tokenizer.start, *known), tuple(tokenizer.encode(bare + continuation)[len(known) :]))


class Likelihood(Frozen):
    """The likelihood of a continuation."""

    total: float  # the sum of log p of the continuation's tokens, in nats
    greedy: bool  # whether each token is the likeliest one


class ScoringStopped(Exception):
    """`stop` returned true before every request was scored."""


def never() -> bool:
    """Return False."""
    return False


def in_batches(
    lengths: Sequence[int],
    room: int,
    progress: Report | None = None,
    stop: Callable[[], bool] = never,
    counts: Sequence[int] = (),
) -> Iterator[list[int]]:
    """Yield the numbers of rows with these `lengths` in batches, the longest first: as many as have together at most
    `room` tokens, padding included, at least one.

    `stop` is polled before each batch, and ScoringStopped is raised if it returns true. `progress` gets how many are
    done after each: rows, or for each as many as `counts` says.
    """
    counts = counts or [1] * len(lengths)
    order = sorted(range(len(lengths)), key=lambda number: -lengths[number])
    done = 0
    while order:
        if stop():
            raise ScoringStopped
        size = max(1, room // lengths[order[0]])
        batch, order = order[:size], order[size:]
        yield batch
        done += sum(counts[number] for number in batch)
        if progress is not None:
            progress(done, sum(counts))


@contextmanager
def evaluating(network: LanguageModel) -> Iterator[None]:
    """Put a network into the mode of evaluations inside the context, without gradients."""
    training = network.training
    network.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        network.train(training)


@dataclass(eq=False)
class Scorer:
    """Computes log-likelihoods with one network.

    Its layers may be changed between calls. Rows are cut on the left to `max_length` tokens; `truncated` counts the
    requests that were, over all calls. At most `tokens_at_once` tokens, padding included, are computed together, which
    changes no likelihood beyond rounding. `frame` is around each context, and its ids count in `max_length`. Once
    `stop` returns true, scoring ends with ScoringStopped. Log-probabilities are float32 at least, whatever the
    precision of the network. `samples`: what tasks found for each question, as lm-evaluation-harness logs it; None: not
    kept.
    """

    network: LanguageModel
    precision: Precision
    _: KW_ONLY
    max_length: int
    tokens_at_once: int = 0  # as many as fit the device
    frame: Frame = _NO_FRAME
    stop: Callable[[], bool] = never
    truncated: int = 0
    samples: list[dict[str, Any]] | None = None

    def __post_init__(self) -> None:
        self.max_length -= self.frame.overhead
        if not self.tokens_at_once:
            self.tokens_at_once = CPU_TOKENS if self.precision.device.type == "cpu" else GPU_TOKENS

    def score(self, requests: Sequence[Request], progress: Report | None = None) -> list[Likelihood]:
        """Return the likelihoods of `requests`, in their order.

        Requests with equal inputs, such as one context with several continuations of one token, are computed once.
        `progress` gets the number of requests done and their total after each batch. Raises GpasError if a context is
        empty or a continuation longer than `max_length`, and ScoringStopped after `stop`.
        """
        rows = self._rows(requests)
        found: list[Likelihood] = [Likelihood(0.0, True)] * len(requests)
        lengths, counts = [len(row.tokens) for row in rows], [len(row.requests) for row in rows]
        with evaluating(self.network):
            for batch in in_batches(lengths, self.tokens_at_once, progress, self.stop, counts):
                for number, likelihood in self._score_batch([rows[place] for place in batch], requests):
                    found[number] = likelihood
        return found

    def fits(self, request: Request) -> bool:
        """Return whether the continuation is at most `max_length` long."""
        return len(request.continuation) <= self.max_length

    def _rows(self, requests: Sequence[Request]) -> list[_Row]:
        """Return the rows to compute, with the requests that each of them answers."""
        rows: dict[tuple[int, ...], _Row] = {}
        for number, request in enumerate(requests):
            self._check(request)
            # The last token is only a target.
            cut = max(0, len(request.context + request.continuation[:-1]) - self.max_length)
            self.truncated += cut > 0
            laid, prefix = self.frame.laid(request.context[cut:])
            tokens = laid + request.continuation[:-1]
            row = rows.setdefault(tokens, _Row(tokens, prefix))
            row.requests.append(number)
            row.scored = max(row.scored, len(request.continuation))
        return list(rows.values())

    def _check(self, request: Request) -> None:
        if not request.context:
            raise GpasError("a request has an empty context; the end token can stand for it")
        if not self.fits(request):
            raise GpasError(
                f"a continuation has {len(request.continuation)} tokens, more than the {self.max_length} tokens of "
                "context that the network is given"
            )

    def _score_batch(self, rows: Sequence[_Row], requests: Sequence[Request]) -> Iterator[tuple[int, Likelihood]]:
        plan = _Plan.of(rows, requests)
        prefix = np.array([row.prefix for row in rows], np.int64) if self.frame.after else None
        device_rows = DeviceRows.of(*_padded(rows), self.precision.device, prefix)

        def read(hidden: Tensor, head: Tensor) -> Tensor:
            states = hidden.flatten(0, 1)
            dtype = self.precision.matmul(hidden.dtype)
            with torch.autocast(states.device.type, enabled=False):
                return _look_up(states.to(dtype), head.to(dtype), plan)

        with self.precision.compute():
            answers = self.network(device_rows.inputs, device_rows.packing, read, device_rows.visible).cpu().numpy()
        for number, start, end in plan.requests:
            total, greedy = answers[0, start:end].sum(), answers[1, start:end].all()
            yield number, Likelihood(float(total), bool(greedy))


@dataclass
class _Row:
    """The inputs of a row, how many of them are the framed context, the numbers of its requests, and how many of its
    last positions they need."""

    tokens: tuple[int, ...]
    prefix: int
    requests: list[int] = field(default_factory=list)
    scored: int = 0


def padded(rows: Sequence[Sequence[int]], device: torch.device) -> Tensor:
    """Return rows of numbers as a tensor, (rows, longest), int64, with zeros at the ends of shorter ones."""
    longest = max(map(len, rows))
    return torch.tensor([[*row, *[0] * (longest - len(row))] for row in rows], device=device)


def _padded(rows: Sequence[_Row]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return inputs and targets (rows, time) for `DeviceRows`: targets are IGNORED at padding, 0 elsewhere."""
    shape = (len(rows), len(rows[0].tokens))
    inputs = np.zeros(shape, np.int64)
    targets = np.full(shape, IGNORED, np.int64)
    for i, row in enumerate(rows):
        inputs[i, : len(row.tokens)] = row.tokens
        targets[i, : len(row.tokens)] = 0
    return inputs, targets


class _Plan(Frozen):
    """What to look up in a batch without padding.

    `slots` and `tokens`, (p,): index into `positions`, and token to look up there.
    """

    positions: NDArray[np.int64]  # (m,): positions of the stream whose logits are needed
    slots: NDArray[np.int64]
    tokens: NDArray[np.int64]
    requests: list[tuple[int, int, int]]  # number, and start and end of each request in (p,)

    @classmethod
    def of(cls, rows: Sequence[_Row], requests: Sequence[Request]) -> _Plan:
        positions: list[int] = []
        slots: list[int] = []
        tokens: list[int] = []
        spans = []
        end = 0
        for row in rows:
            end += len(row.tokens)
            positions.extend(range(end - row.scored, end))
            for number in row.requests:
                continuation = requests[number].continuation
                spans.append((number, len(slots), len(slots) + len(continuation)))
                slots.extend(range(len(positions) - len(continuation), len(positions)))
                tokens.extend(continuation)
        return cls(np.array(positions, np.int64), np.array(slots, np.int64), np.array(tokens, np.int64), spans)


def _look_up(states: Tensor, head: Tensor, plan: _Plan) -> Tensor:
    """Return float64 (2, p): log p of each token of `plan`, and 1 where it is the likeliest token.

    states: (n, hidden); head: (vocab, hidden). The logits of all positions never exist at once.
    """
    device = states.device
    found = torch.empty(2, len(plan.slots), dtype=torch.float64, device=device)
    most = max(1, logits_at_once(device) // len(head))
    for start in range(0, len(plan.positions), most):
        part = torch.from_numpy(plan.positions[start : start + most]).to(device)
        (chosen,) = np.nonzero((plan.slots >= start) & (plan.slots < start + most))
        slots = torch.from_numpy(plan.slots[chosen] - start).to(device)
        tokens = torch.from_numpy(plan.tokens[chosen]).to(device)
        logits = states[part] @ head.t()
        wide = torch.promote_types(logits.dtype, torch.float32)
        # log_softmax only of the tokens that are looked up: the others need no logarithm.
        values = logits[slots, tokens].to(wide) - torch.logsumexp(logits.to(wide), -1)[slots]
        where = torch.from_numpy(chosen).to(device)
        found[0, where] = values.double()
        found[1, where] = (logits.argmax(-1)[slots] == tokens).double()
    return found

"""What a network is trained to predict: the next token, masked tokens (BERT) or corrupted spans (UL2).

An objective decides which tokens are targets, which tokens each token sees, and how many ids of the vocabulary are its
own. The ids of an objective are the last ones of `size.vocab`; the tokenizer has those below.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from gpas_cli.errors import Problem, nearest
from gpas_cli.spec import parse
from gpas_cli.spec.parse import setting
from gpas_cli.structure import Frozen

# The first tokens of rows by denoiser, in the order of their ids.
MODES = ("r", "s", "x")
# Two tokens, one of them replaced by a sentinel and predicted after it, an end token and a mode.
_SHORTEST_ROW = 8
_LONGEST_MEAN = 10_000  # tokens of a span


class Denoiser(Frozen):
    """One way to corrupt a row: the share `rate` of its tokens, in spans of `mean` tokens on average; 0: one span."""

    mode: str
    mean: float
    rate: float

    @property
    def spans_per_token(self) -> float:
        """The number of spans for each token of a long row."""
        return self.rate / self.mean if self.mean else 0.0

    def corrupted(self, tokens: int) -> int:
        """Return how many of `tokens` >= 2 tokens are corrupted."""
        return min(max(round(self.rate * tokens), 1), tokens - 1)

    def spans(self, tokens: int) -> int:
        """Return the number of spans in a row of `tokens` >= 2 tokens: intact ones precede each of them."""
        corrupted = self.corrupted(tokens)
        wanted = round(corrupted / self.mean) if self.mean else 1
        return min(max(wanted, 1), corrupted, tokens - corrupted)

    def fitting(self, tokens: int, room: int) -> int:
        """Return how many of a row's `tokens` can be kept so that they and two ids per span fit into `room` ids.

        Less than 2 if none can.
        """
        return next((n for n in range(min(tokens, room), 1, -1) if n + 2 * self.spans(n) <= room), 0)


def _parse_denoiser(text: str) -> Denoiser:
    """Return the denoiser that "r MEAN RATE", "x MEAN RATE" or "s RATE" describes. Raises ValueError."""
    mode, *numbers = text.split()
    if mode not in MODES or len(numbers) != (1 if mode == "s" else 2):
        raise ValueError(text)
    rate = float(numbers[-1])
    mean = float(numbers[0]) if mode != "s" else 0.0
    if not 0 < rate < 1 or (mode != "s" and not 1 <= mean <= _LONGEST_MEAN):
        raise ValueError(text)
    return Denoiser(mode, mean, rate)


def _denoiser_problem(text: str) -> str:
    """Return what is wrong with the description of a denoiser, "" if nothing is."""
    try:
        _parse_denoiser(text)
    except ValueError:
        return (
            f"'{text}' is not 'r MEAN RATE', 'x MEAN RATE' or 's RATE', with MEAN at least 1 and RATE between 0 and 1"
        )
    return ""


class Frame(Frozen):
    """The ids around a text that a network continues: `before` it, `after` it and again before the continuation, which
    ends before an id of at least `end`. The network reads the text with both in both directions."""

    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    end: int = 2**31

    def laid(self, text: tuple[int, ...]) -> tuple[tuple[int, ...], int]:
        """Return the row of a text, at whose end its continuation begins, and how many of its ids see each other."""
        read = self.before + text + self.after
        return read + self.after, len(read)

    @property
    def overhead(self) -> int:
        """The number of ids of a row that belong neither to the text nor to its continuation."""
        return len(self.before) + 2 * len(self.after)


class Objective:
    """Base class of objectives: frozen dataclasses."""

    kind: str  # the name under which a cell records it
    causal: ClassVar[bool] = False  # every token predicts the next one and sees no later one
    scored_as: ClassVar[str] = ""
    """The first word of the metrics of its validation loss, "" for the loss of the next token: losses of different
    objectives cannot be compared, so their names differ."""
    word_dropout: float = 0.0

    @property
    def reserved(self) -> int:
        """The number of ids at the end of the vocabulary that the tokenizer does not have."""
        return 0

    def frame(self, vocab: int) -> Frame | None:
        """Return what is around a text that the network continues, with ids for `vocab`; None if it continues none."""
        return Frame() if self.causal else None

    def target_share(self) -> float:
        """Return the expected number of targets per token that the network reads."""
        raise NotImplementedError

    def attended_share(self) -> float:
        """Return the expected fraction of its row that a token sees."""
        raise NotImplementedError

    def problems(self) -> Iterator[Problem]:
        """Yield what is wrong with several settings together."""
        yield from ()

    def problems_in(self, length: int) -> Iterator[Problem]:
        """Yield what is wrong with the objective for rows of `length` tokens."""
        yield from ()

    def describe(self, vocab: int) -> str:
        """Return the objective in one line, with ids for a vocabulary of `vocab`."""
        raise NotImplementedError

    def needs_next_token(self, what: str) -> str:
        """Return why `what`, which needs log p of the next token, cannot use a network of this objective."""
        return f"{what} needs a network that predicts the next token, not one of objective {self.kind}"

    def named(self, scores: Mapping[str, float]) -> dict[str, float]:
        """Return the scores of an evaluation under the names of this objective's metrics."""
        if not self.scored_as:
            return dict(scores)
        kept = {f"{self.scored_as}_{name}": scores[name] for name in ("loss", "perplexity")}
        return {**kept, "tokens": scores["tokens"]}


class _Causal(Frozen, Objective, kw_only=True):
    """Every token predicts the next one from itself and the tokens before it."""

    kind: str = setting("causal", choices=("causal",))

    causal: ClassVar[bool] = True

    def target_share(self) -> float:
        return 1.0

    def attended_share(self) -> float:
        return 0.5

    def describe(self, vocab: int) -> str:
        return "every token predicts the next one"


class Masked(Frozen, Objective, kw_only=True):
    """Masked language modelling (Devlin et al. 2018): chosen tokens are predicted from all tokens of the row.

    rate: the probability that a token is chosen; end tokens never are. mask, random: the probabilities that a chosen
    token is replaced by the mask token, and by a random token of the tokenizer; else it is unchanged.
    mask_token: the name of the tokenizer's own mask token, such as "[MASK]"; empty: the last id of `size.vocab`, which
    the tokenizer then does not have.
    """

    kind: str = setting("mlm", choices=("mlm",))
    rate: float = setting(0.15, above=0, high=1)
    mask: float = setting(0.8, low=0, high=1)
    random: float = setting(0.1, low=0, high=1)
    mask_token: str = setting("")

    scored_as: ClassVar[str] = "masked"

    @property
    def reserved(self) -> int:
        return 0 if self.mask_token else 1

    def target_share(self) -> float:
        return self.rate

    def attended_share(self) -> float:
        return 1.0

    def problems(self) -> Iterator[Problem]:
        if self.mask + self.random > 1 + 1e-9:
            yield Problem(("random",), f"mask {self.mask:g} and random {self.random:g} add up to more than 1")

    def describe(self, vocab: int) -> str:
        kept = max(0.0, 1 - self.mask - self.random)
        token = f"the tokenizer's {self.mask_token}" if self.mask_token else f"id {vocab - 1}"
        return (
            f"{_percent(self.rate)} of the tokens are predicted from the whole row: {_percent(self.mask)} of them are "
            f"masked ({token}), {_percent(self.random)} random, {_percent(kept)} unchanged"
        )


class Spans(Frozen, Objective, kw_only=True):
    """Span corruption with a prefix language model (Raffel et al. 2020; Tay et al. 2022).

    Spans of a row are replaced by one sentinel each. The row's inputs, which attend to each other in both directions,
    are followed by its targets, which attend to the inputs and the targets before them: each sentinel with the tokens
    that it replaced, then an end token. Only they count in the loss. A row and its sentinels fit into `data.length`
    tokens: the end of a full row is left out.

    denoisers: one of them is drawn for each row: "r MEAN RATE" and "x MEAN RATE" corrupt the share RATE of the tokens
    in spans of MEAN tokens on average, "s RATE" the last RATE of the row; name one twice to have it twice as often.
    modes: the inputs begin with a token for the denoiser's letter, as in UL2. sentinels: their number, at least the
    spans of a row. Sentinels and modes are the last ids of `size.vocab`, the first sentinel the very last, as in T5's
    vocabulary of 32,100.
    """

    kind: str = setting("span", choices=("span",))
    denoisers: tuple[str, ...] = setting(("r 3 0.15",), check=_denoiser_problem)
    modes: bool = setting(False)
    sentinels: int = setting(100, low=1, high=10_000)

    scored_as: ClassVar[str] = "denoising"

    @property
    def reserved(self) -> int:
        return self.sentinels + (len(MODES) if self.modes else 0)

    @property
    def each(self) -> tuple[Denoiser, ...]:
        """The denoisers, in their order."""
        return tuple(_parse_denoiser(text) for text in self.denoisers)

    @property
    def overhead(self) -> int:
        """The number of ids of a row that are neither tokens nor sentinels: the end token and the mode."""
        return 1 + self.modes

    def frame(self, vocab: int) -> Frame | None:
        # A text whose end is a span: the denoiser s, where there are modes.
        mode = (vocab - self.reserved + MODES.index("s"),) if self.modes else ()
        return Frame(mode, (vocab - 1,), vocab - self.reserved)

    def target_share(self) -> float:
        shares = [(one.rate + one.spans_per_token) / (1 + 2 * one.spans_per_token) for one in self.each]
        return sum(shares) / len(shares)

    def attended_share(self) -> float:
        inputs = [(1 - one.rate + one.spans_per_token) / (1 + 2 * one.spans_per_token) for one in self.each]
        return sum((1 + share**2) / 2 for share in inputs) / len(inputs)

    def problems(self) -> Iterator[Problem]:
        if not self.denoisers:
            yield Problem(("denoisers",), "names no denoiser")

    def problems_in(self, length: int) -> Iterator[Problem]:
        if length < _SHORTEST_ROW:
            yield Problem((), f"{self.kind} needs rows of at least {_SHORTEST_ROW} tokens; data.length is {length}")
            return
        needed = max(one.spans(one.fitting(length, length + 1 - self.overhead)) for one in self.each)
        if needed > self.sentinels:
            yield Problem(
                ("sentinels",), f"{self.sentinels} are fewer than the {needed} spans of a row of {length} tokens"
            )

    def describe(self, vocab: int) -> str:
        modes = f", after a token for r, s or x (ids from {vocab - self.reserved})" if self.modes else ""
        return (
            f"spans are replaced by sentinels (ids {vocab - self.sentinels} to {vocab - 1}) and predicted after the "
            f"rest of the row{modes}; denoisers {', '.join(self.denoisers)}"
        )


class Translated(Frozen, Objective, kw_only=True):
    """The translation of a text: an encoder reads the text, and a decoder predicts its translation token by token.

    A pair with more than `data.length` tokens does not count. word_dropout: the probability that a token's embedding is
    the zero vector in training, in text and translation (Takase and Kiyono 2021).
    """

    kind: str = setting("translation", choices=("translation",))
    word_dropout: float = setting(0.0, low=0, high=0.9, omit_default_from_key=True)

    scored_as: ClassVar[str] = "translation"

    def target_share(self) -> float:
        return 0.5

    def attended_share(self) -> float:
        # Half of the tokens see their half of the row; the others see it too, and half of their own.
        return 0.625

    def describe(self, vocab: int) -> str:
        return "every token of the translation is predicted from the text and the tokens before it"


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"


CAUSAL = _Causal()
OBJECTIVES: dict[str, Objective] = {
    "causal": CAUSAL,
    "mlm": Masked(),
    "translation": Translated(),
    "span": Spans(),
    # The seven denoisers of Tay et al. 2022, Table 1, each for the same share of rows.
    "ul2": Spans(
        denoisers=("r 3 0.15", "r 8 0.15", "s 0.25", "x 3 0.5", "x 8 0.5", "x 64 0.15", "x 64 0.5"), modes=True
    ),
}


def parse_objective(value: Any, problems: list[Problem]) -> Objective | None:
    """Return the objective of a name, or of a mapping that extends one (`like` or `kind`), or None after adding to
    `problems`."""
    values = dict(value) if isinstance(value, Mapping) else {"like": value}
    name = values.pop("like", values.pop("kind", CAUSAL.kind))
    if not isinstance(name, str) or name not in OBJECTIVES:
        path = ("objective", "kind") if isinstance(value, Mapping) else ("objective",)
        problems.append(Problem(path, f"unknown objective {name!r}; {nearest(str(name), OBJECTIVES)}"))
        return None
    known = OBJECTIVES[name]
    made = parse.build(type(known), {**parse.plain(known), **values}, ("objective",), problems)
    if made is not None:
        problems.extend(found.under("objective") for found in made.problems())
    return made

"""Remove layers of a network, and measure the validation loss without each.

Removing layer l means that the residual stream passes it unchanged: x_{l+1} = x_l. Everything that belongs to the layer
goes with it (attention, feed-forward network, norms, gates, skip factor), and every other layer keeps its own norms,
gate and factors, those that depend on its number included (the 1/sqrt(l) of LNS, the alpha of DeepNorm, the part of
Mix-LN). Nothing is retrained.

    Pre-LN, LNS, Sandwich, Peri   y = x + ...: the branch is left out, and the skip path remains.
    Post-LN, DeepNorm, B2T        y = N(x + ...): the norm is left out too. The next layer reads the normalised output
                                  of layer l - 1; without layer 1, it reads the embedding, which no norm has seen.
    Mix-LN                        a layer of the first kind or of the second, depending on its number.
    with a gate                   the stream is not scaled by 1 - act(alpha) of this layer.

`evaluate.blocks` leaves the layers out, alone or in groups, in a network that was trained here or not.

Angular distances between the inputs of layers (Gromov et al., 2024: The Unreasonable Ineffectiveness of the Deeper
Layers).

    d(l, l + n) = arccos( x_l . x_{l+n} / (|x_l| |x_{l+n}|) ) / pi

x_l is the residual stream entering layer l at the last token of a row of text, and d is averaged over rows. It is 0 for
parallel vectors, 1/2 for orthogonal ones and 1 for opposite ones. The stream that leaves the last layer, the input of
the final norm, counts as the input of layer L + 1. So d(l, l + n) is how far layers l to l + n - 1 turn the stream.

How stable a trained network's output is when a layer is dropped (RaPTr, definition 4.1 and Figure 2).

    stream_norm   |y^(l)|, the length of the residual stream entering layer l, and that leaving the last layer
    stability     Psi_l = |F_-l(x) - F(x)|, with F(x) the stream that leaves the last layer, F_-l without layer l

Both are means over the first tokens that are evaluated. Theorem 4.2 bounds the rise of the loss between two stages of
random paths by a multiple of (1/L) sum_l Psi_l / |F|.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from gpas_cli.data.loader import IGNORED, Batch, Draw, validation_batches
from gpas_cli.data.objective import MaskedReader, reader_of
from gpas_cli.data.prepare import Corpus
from gpas_cli.data.text_documents import ScoredText
from gpas_cli.data.tokenizer import Tokenizer
from gpas_cli.evaluate.foreign import ForeignNetwork
from gpas_cli.events import Emit, Removal
from gpas_cli.extensions.layers.blocks import WHOLE, Blocks, Removed, own_blocks
from gpas_cli.extensions.layers.stage import Importance
from gpas_cli.model.llama import LanguageModel, Llama, build
from gpas_cli.spec.cell import Cell
from gpas_cli.spec.objective import Masked
from gpas_cli.structure import Frozen
from gpas_cli.train.assemble import TrainedNetwork, micro_batch_rows
from gpas_cli.train.evaluate import Watch, evaluate, unwatched
from gpas_cli.train.loss import DeviceRows
from gpas_cli.train.parallel import ALONE, World
from gpas_cli.train.precision import Precision
from gpas_cli.train.training import record_verified

_STABILITY = "stability"
_NORMS = "stream_norm"
_TOKENS = 4096  # the most tokens of each process whose outputs are compared
ANGULAR = "angular_distance"


class Subject(Frozen, kw_only=True):
    """The network whose layers are removed, and the text on which its loss is measured."""

    network: LanguageModel  # one without a head for the next token has no loss
    blocks: Blocks
    precision: Precision
    tokenizer: Tokenizer
    name: str  # its name in events
    step: int  # the update after which it was saved
    batches: Sequence[Batch]  # of the text
    bytes_per_token: float
    text: str  # what identifies the text
    rows: int  # the most rows that are computed at once
    positions: int | None  # the most tokens of a row that the network reads, None if it reads any number
    loss: str = "loss"  # the metric of its loss
    begun: Callable[[], Llama] | None = None
    """Returns the network that its training began with; None if it was not trained here."""
    record_verified: Callable[[Emit], None] = lambda _: None
    """Emits which shards were compared with their checksums, once the text has been read."""


def own_subject(
    cell: Cell, loaded: TrainedNetwork, corpus: Corpus, name: str, eval_tokens: int, world: World = ALONE
) -> Subject:
    """Return the trained network of a cell with its validation text, `eval_tokens` tokens of it."""
    facts = corpus.facts()
    reader = reader_of(cell, corpus.tokenizer)
    return Subject(
        network=loaded.network,
        blocks=own_blocks(loaded.network),
        precision=loaded.precision,
        tokenizer=corpus.tokenizer,
        name=name,
        step=loaded.position.step,
        batches=list(validation_batches(corpus.validation, cell.optim.batch, eval_tokens, reader)),
        bytes_per_token=corpus.validation_bytes_per_token,
        text=f"{facts.validation_fingerprint} {facts.tokenizer}",
        rows=micro_batch_rows(cell, loaded.precision, processes=world.size),
        positions=cell.model.family.context if cell.model.family.positions == "learned" else None,
        loss=f"{cell.objective.scored_as}_loss".removeprefix("_"),
        begun=lambda: build(cell.model, seed=cell.seed, dtype=loaded.precision.weights),
        record_verified=partial(record_verified, corpus),
    )


@torch.no_grad()
def read_streams(subject: Subject, batch: Batch, watch: Watch) -> None:
    """Pass a batch through the network, some rows at once, each time inside a context of `watch`, without its head."""
    network = subject.network.eval()
    for start in range(0, len(batch.targets), subject.rows):
        rows = DeviceRows.of_batch(batch, slice(start, start + subject.rows), subject.precision.device)
        with watch(rows), subject.precision.compute():
            network(rows.inputs, rows.packing, lambda hidden, _: hidden, rows.visible)


def text_batches(text: ScoredText, tokenizer: Tokenizer, length: int, most: int) -> tuple[list[Batch], float]:
    """Return a text as batches of one row of `length` tokens, at least `most` tokens of it, and its bytes per token.

    Documents are joined with the end token between them. Every token is predicted once; a row begins with the
    tokenizer's start token, or with the end token if it has none. Raises DataError if no token is left.
    """
    tokens: list[int] = []
    size = 0
    for document in text.documents:
        tokens += [*tokenizer.encode(document.context + document.text), tokenizer.eos_id]
        size += len((document.context + document.text).encode())
        if len(tokens) >= most:
            break
    bytes_per_token = size / len(tokens)
    rows = [[tokenizer.first_id, *tokens[start : start + length]] for start in range(0, min(len(tokens), most), length)]
    sequences = [np.array([row], np.int64) for row in rows]
    return [Batch(one[:, :-1], one[:, 1:]) for one in sequences], bytes_per_token


def masked_batches(
    text: ScoredText, tokenizer: Tokenizer, mask_id: int, length: int, most: int
) -> tuple[list[Batch], float]:
    """Return a text as batches of one row of at most `length` tokens, at least `most` tokens of it, and its bytes per
    token.

    Rows are pieces of one document between the tokenizer's own first and last tokens. 15 % of their other tokens are
    targets, and replaced as BERT's are (Devlin et al. 2018), the same in each measurement.
    """
    marked, bare = (tokenizer.backend.encode("a", add_special_tokens=own).ids for own in (True, False))
    before = marked.index(bare[0])
    start, end = marked[:before], marked[before + len(bare) :]
    room = length - len(start) - len(end)
    reader = MaskedReader(Masked(), room, mask_id, tokenizer.vocab, tokenizer.eos_id)
    batches: list[Batch] = []
    read = size = 0
    for document in text.documents:
        tokens = tokenizer.encode(document.context + document.text)
        for place in range(0, min(len(tokens), most - read), room):
            piece = np.array([tokens[place : place + room]])
            made = reader.batch(piece, np.array([piece.size]), np.array([read + place]), Draw.validation())
            inputs = np.array([[*start, *made.inputs[0], *end]])
            targets = np.pad(made.targets, ((0, 0), (len(start), len(end))), constant_values=IGNORED)
            batches.append(Batch(inputs, targets, prefix=np.array([inputs.size])))
        read += len(tokens)
        size += len((document.context + document.text).encode())
        if read >= most:
            break
    return batches, size / max(1, read)


class _LayerStability:
    """The outputs of a whole network, kept to be compared with those without a layer.

    `whole` watches an evaluation of the whole network, `dropped` one without a layer, over the same rows.
    """

    def __init__(self, blocks: Blocks, device: torch.device) -> None:
        self.blocks = blocks
        self.ready = False  # whether outputs of the whole network are kept
        self._outputs: list[Tensor] = []
        self._device = device
        # Each a sum over tokens and their number.
        self._norms = torch.zeros(len(blocks) + 1, 2, dtype=torch.float64, device=self._device)
        self._psi = torch.zeros(2, dtype=torch.float64, device=self._device)
        self._passes = 0

    def start(self) -> None:
        """Begin a measurement without a layer."""
        self._psi = torch.zeros_like(self._psi)
        self._passes = 0

    @contextmanager
    def whole(self, rows: DeviceRows) -> Iterator[None]:
        """Keep the outputs of one forward pass over `rows`, which the block does, unless enough are kept."""
        self.ready = True
        if sum(map(len, self._outputs)) >= _TOKENS:
            yield
            return
        lengths: list[Tensor] = []

        def observe(place: int, x: Tensor) -> None:
            chosen = _evaluated(rows, x)
            lengths.append(_sum_and_count(chosen.norm(dim=-1)))
            if place == len(self.blocks):
                self._outputs.append(chosen)

        with self.blocks.observed(observe):
            yield
        self._norms += torch.stack(lengths)

    @contextmanager
    def dropped(self, rows: DeviceRows) -> Iterator[None]:
        """Compare one forward pass over `rows`, which the block does, with the whole network's."""
        at = self._passes
        self._passes += 1
        if at >= len(self._outputs):
            yield
            return

        def observe(place: int, x: Tensor) -> None:
            if place == len(self.blocks):
                self._psi += _sum_and_count((_evaluated(rows, x) - self._outputs[at]).norm(dim=-1))

        with self.blocks.observed(observe):
            yield

    def norms(self, world: World = ALONE) -> list[float]:
        """Return the mean length of the stream entering each layer and leaving the last. Collective."""
        return [float(total / count) for total, count in world.sum(self._norms)]

    def psi(self, world: World = ALONE) -> float:
        """Return Psi of the layer that was left out since `start`. Collective."""
        total, count = world.sum(self._psi)
        return float(total / count)


def joined(rows: DeviceRows, x: Tensor) -> Tensor:
    """Return the stream x with the tokens of `rows` alone: (tokens, hidden). Some networks compute padding too."""
    packing = rows.packing
    flat = x.flatten(0, 1)
    return flat if packing is None or len(flat) == len(packing.index) else flat[packing.index]


def _evaluated(rows: DeviceRows, x: Tensor) -> Tensor:
    """Return the stream at tokens with a target, float64. x: (rows, time, hidden) -> (tokens, hidden)."""
    return joined(rows, x)[rows.targets.flatten() != IGNORED].double()


def _sum_and_count(values: Tensor) -> Tensor:
    return torch.stack([values.sum(), values.new_tensor(len(values))])


class AngularDistance:
    """The angular distances inside a network, summed over the rows of the forward passes within `watch`.

    Only the streams at last tokens are kept, and only until the end of a pass: (rows, layers + 1, hidden).
    """

    def __init__(self, blocks: Blocks, device: torch.device) -> None:
        self.blocks = blocks
        layers = len(blocks)
        self._sums = [torch.zeros(layers + 1 - n, dtype=torch.float64, device=device) for n in range(1, layers + 1)]
        self._rows = 0

    @contextmanager
    def watch(self, rows: DeviceRows) -> Iterator[None]:
        """Add the distances of one forward pass over `rows`, which the block does."""
        last = _last_tokens(rows)
        states: list[Tensor] = []
        with self.blocks.observed(lambda _, x: states.append(joined(rows, x)[last].double())):
            yield
        stream = torch.stack(states, 1)
        for n, total in enumerate(self._sums, start=1):
            total += angular_distance(stream[:, :-n], stream[:, n:]).sum(0)
        self._rows += len(last)

    def series(self, world: World = ALONE) -> dict[str, list[float]]:
        """Return the mean distances by name of series: for n layers, layers + 1 - n numbers, of l = 1, 2, ...
        Collective."""
        rows = world.sum(torch.tensor(self._rows, dtype=torch.float64, device=self._sums[0].device))
        means = iter((world.sum(torch.cat(self._sums)) / rows).tolist())
        return {_series_name(n): [next(means) for _ in total] for n, total in enumerate(self._sums, start=1)}


def _series_name(n: int) -> str:
    """Return the name of the series of the distances over `n` layers: "angular_distance", "angular_distance/2", ..."""
    return ANGULAR if n == 1 else f"{ANGULAR}/{n}"


def angular_distance(a: Tensor, b: Tensor) -> Tensor:
    """Return the angle between vectors in units of pi. a, b: (..., hidden), float64 -> (...).

    For unit vectors the angle is 2 atan2(|a - b|, |a + b|), which is accurate also for almost parallel ones, where
    arccos is not. A zero vector is orthogonal to every other, and parallel to itself.
    """
    a = normalize(a, dim=-1)
    b = normalize(b, dim=-1)
    return 2 / math.pi * torch.atan2((a - b).norm(dim=-1), (a + b).norm(dim=-1))


def _last_tokens(rows: DeviceRows) -> Tensor:
    """Return the positions of each row's last token, in the stream of all rows' tokens: int64, (rows,).

    It is the last one that predicts, where attention is causal; there rows without a target have none.
    """
    if rows.packing is None:
        count, time = rows.targets.shape
        return torch.arange(1, count + 1, device=rows.targets.device) * time - 1
    row = rows.packing.index // rows.packing.time
    ends = torch.ones_like(row, dtype=torch.bool)
    ends[:-1] = row[1:] != row[:-1]
    counted = ends if rows.visible else ends & (rows.targets[0] != IGNORED)
    return counted.nonzero().flatten()


def removals(section: Importance, layers: int, distances: Mapping[str, Sequence[float]]) -> list[Removed]:
    """Return what the section `importance` leaves out, the whole network first.

    distances: the angular distances of the whole network, by which `closest` groups are chosen; without them there are
    none yet. Of n layers those are closest whose input and output have the least distance (Gromov et al., 2024).
    """
    single = [Removed(layer, part=part) for part in ("", *section.parts) for layer in range(1, layers + 1)]
    last = [Removed(layers + 1 - n, n, how="last") for n in section.groups]
    known = {n: distances[_series_name(n)] for n in section.groups if _series_name(n) in distances}
    closest = [Removed(1 + own.index(min(own)), n, how="closest") for n, own in known.items()]
    return [WHOLE, *single, *last, *closest]


def by_layer(values: Mapping[Removed, float], layers: int) -> dict[str, list[float | None]]:
    """Return the series of differences, by the names of `Removed.series`: by layer, and of groups by their size."""
    found: dict[str, list[float | None]] = {}
    for removed, value in values.items():
        series = found.setdefault(removed.series, [None] * layers)
        series[(removed.count if removed.how else removed.first) - 1] = value
    return found


def key_of(layer: int, label: str | None) -> tuple[int, str]:
    """Return what distinguishes the measurements of a network, from their events."""
    return layer, label or ""


class RemovalLosses:
    """The losses of a network on its text without each layer, by what is removed."""

    def __init__(self, subject: Subject, section: Importance, world: World, earlier: Iterable[object]):
        """Take over those of `earlier`, which all processes have, of the same checkpoint and text. Collective."""
        self.subject = subject
        self.section = section
        self.world = world
        own = (subject.name, subject.text)
        found = [one for one in earlier if isinstance(one, Removal) and (one.checkpoint, one.text) == own]
        self.removals = {key_of(one.layer, one.removed): one for one in found}
        # The sums of fewer rows are rounded differently: all measurements compute as many rows at once as the first.
        self.rows = min([world.min(subject.rows), *(one.rows for one in found)])
        self.stability = _LayerStability(subject.blocks, subject.precision.device)

    @property
    def whole(self) -> Removal:
        """The measurement of the whole network."""
        return self.removals[key_of(0, "")]

    def wanted(self) -> list[Removed]:
        """Return what is left out, the whole network first. `closest` groups follow once that is measured."""
        known = key_of(0, "") in self.removals
        return removals(self.section, len(self.subject.blocks), self.whole.distances if known else {})

    def missing(self) -> list[Removed]:
        """Return what has not been measured yet."""
        return [one for one in self.wanted() if key_of(one.first, one.label) not in self.removals]

    def measure(self, removed: Removed) -> Removal:
        """Measure the network without `removed`. Collective."""
        if removed == WHOLE:
            angles = AngularDistance(self.subject.blocks, self.subject.precision.device)
            loss = self._loss(both(angles.watch, self.stability.whole))
            distances = {**angles.series(self.world), _NORMS: self.stability.norms(self.world)}
        else:
            if not self.stability.ready:  # an earlier attempt measured the whole network
                self._loss(self.stability.whole)
            self.stability.start()
            with self.subject.blocks.without(removed, "loss"):
                loss = self._loss(self.stability.dropped)
            distances = {_STABILITY: [self.stability.psi(self.world)]}
        removal = Removal(
            removed.first, self.subject.name, self.subject.text, self.rows, loss, distances, removed.label or None
        )
        self.removals[key_of(removed.first, removed.label)] = removal
        return removal

    def _loss(self, watch: Watch = unwatched) -> float | None:
        """Return the loss on the text, None of a network without a head for it, while `watch` reads its streams."""
        network = self.subject.network
        if isinstance(network, ForeignNetwork) and not network.predicts and network.mask_id is None:
            for batch in self.subject.batches:
                read_streams(self.subject, batch, watch)
            return None
        found = evaluate(
            network, self.subject.batches, self.subject.precision, self.subject.bytes_per_token,
            micro_batch=self.rows, world=self.world, watch=watch,
        )  # fmt: skip
        return found["loss"]

    def series(self) -> dict[str, list[float | None]]:
        """Return the series by layer: `importance`, the rise of the loss, angular distances, norms and stability."""
        measured = {one: self.removals[key_of(one.first, one.label)] for one in self.wanted() if one != WHOLE}
        whole = self.whole.loss
        losses = {one: removal.loss for one, removal in measured.items()}
        rises = {one: loss - whole for one, loss in losses.items() if loss is not None and whole is not None}
        series: dict[str, list[float | None]] = {
            "_".join(filter(None, ("importance", name))): values
            for name, values in by_layer(rises, len(self.subject.blocks)).items()
        }
        series |= {name: list(values) for name, values in self.whole.distances.items()}
        single = {one: removal.distances for one, removal in measured.items() if not one.series}
        if all(_STABILITY in distances for distances in single.values()):  # older versions have not measured it
            series[_STABILITY] = [distances[_STABILITY][0] for distances in single.values()]
        return series


def both(first: Watch, second: Watch) -> Watch:
    """Return a watch that calls both watches in each forward pass."""

    @contextmanager
    def watch(rows: DeviceRows) -> Iterator[None]:
        with first(rows), second(rows):
            yield

    return watch

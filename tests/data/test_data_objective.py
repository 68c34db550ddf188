"""Masked batches: proportions, targets, independence of everything but (seed, update, row).

Span corruption: nothing is lost, proportions, sentinels and modes, and what it depends on: seed, update and row.
"""

import math

import numpy as np
import pytest

from gpas_cli.data.loader import IGNORED, Batch, Draw, lengths_needed
from gpas_cli.data.objective import MaskedReader, _span_lengths, _SpanReader
from gpas_cli.data.rows import Ints
from gpas_cli.spec.objective import MODES, OBJECTIVES, Masked, Spans, _parse_denoiser

END, MASK, IDS, VOCAB, LENGTH = 1, 99, 98, 600, 64
READER = MaskedReader(Masked(), LENGTH, MASK, IDS, END)
UL2 = OBJECTIVES["ul2"]
FIRST_SENTINEL = VOCAB - 1


def tokens(rows: int = 400) -> Ints:
    """Return rows without the mask token and sentinels, and with some end tokens."""
    return np.random.default_rng(5).integers(1, 50, (rows, LENGTH + 1))


def made(numbers: Ints, draw: Draw, reader: MaskedReader | _SpanReader = READER, sizes: Ints | None = None) -> Batch:
    own = np.full(len(numbers), LENGTH + 1) if sizes is None else sizes
    return reader.batch(tokens()[numbers], own, numbers, draw)


def same(a: Batch, b: Batch) -> bool:
    return a.digest() == b.digest() and np.array_equal(a.prefix, b.prefix)


def within(count: int, of: int, share: float) -> bool:
    """Return whether a count lies within three standard errors of its expectation."""
    return abs(count - of * share) <= 3 * math.sqrt(of * share * (1 - share))


def test_the_proportions_are_within_three_standard_errors() -> None:
    numbers = np.arange(400)
    batch = made(numbers, Draw.training(7, 3))
    original = tokens()[:, :LENGTH]
    eligible = int((original != END).sum())
    chosen = batch.targets != IGNORED
    count = int(chosen.sum())
    assert within(count, eligible, 0.15)
    masked = int((batch.inputs[chosen] == MASK).sum())
    assert within(masked, count, 0.8)
    # A random token equals the original one with probability 1 / IDS.
    unchanged = int((batch.inputs == original)[chosen].sum())
    assert within(unchanged, count, 0.1 + 0.1 / IDS)
    assert within(count - masked - unchanged, count, 0.1 - 0.1 / IDS)


def test_only_chosen_tokens_change_and_only_they_are_targets() -> None:
    batch = made(np.arange(400), Draw.training(7, 3))
    original = tokens()[:, :LENGTH]
    chosen = batch.targets != IGNORED
    assert np.array_equal(batch.inputs[~chosen], original[~chosen])
    assert np.array_equal(batch.targets[chosen], original[chosen])
    assert not chosen[original == END].any()
    assert (batch.prefix == LENGTH).all()
    assert (batch.tokens_read, batch.predicted) == (400 * LENGTH, chosen.sum())


def test_random_tokens_are_uniform_over_the_tokenizer() -> None:
    reader = MaskedReader(Masked(rate=1, mask=0, random=1), LENGTH, MASK, IDS, end_id=-1)
    inputs = made(np.arange(400), Draw.training(1, 1), reader).inputs
    counts = np.bincount(inputs.ravel(), minlength=IDS)
    assert len(counts) == IDS
    expected = inputs.size / IDS
    chi_squared = float(((counts - expected) ** 2 / expected).sum())
    assert chi_squared < IDS - 1 + 4 * math.sqrt(2 * (IDS - 1))


@pytest.mark.parametrize("reader", [READER, _SpanReader(UL2, LENGTH, VOCAB, END)], ids=["masked", "spans"])
def test_a_row_is_corrupted_in_the_same_way_in_any_batch(reader: MaskedReader | _SpanReader) -> None:
    """So the number of processes, the micro-batch and a restart change nothing; seed and update change all."""
    draw = Draw.training(7, 3)
    whole = made(np.arange(20), draw, reader)
    for numbers in (np.array([11]), np.array([19, 11, 2])):
        part = made(numbers, draw, reader)
        assert np.array_equal(part.inputs, whole.inputs[numbers])
        assert np.array_equal(part.targets, whole.targets[numbers])
    others = [Draw.training(8, 3), Draw.training(7, 4), Draw.training(3, 7), Draw.validation(), Draw.training(0, 0)]
    for other in others:
        found = made(np.arange(20), other, reader)
        assert not same(whole, found)
        assert same(found, made(np.arange(20), other, reader))


def test_padding_is_neither_chosen_nor_seen() -> None:
    reader = MaskedReader(Masked(rate=1), LENGTH, MASK, IDS, END)
    batch = made(np.arange(3), Draw.training(1, 1), reader, np.array([1, 5, LENGTH + 1]))
    assert batch.prefix.tolist() == [1, 5, LENGTH]
    assert (batch.targets[1, 5:] == IGNORED).all()
    assert (batch.targets[0, 1:] == IGNORED).all()
    assert lengths_needed(batch.targets, batch.prefix).tolist() == [1, 5, LENGTH]
    assert lengths_needed(batch.targets, None).max() <= LENGTH


def test_the_numbers_are_fixed_for_good() -> None:
    assert Draw.training(42, 0).words(0, 2).tolist() == [5981513110352009476, 7933542913713224937]
    assert Draw.validation().words(3, 1).tolist() == [14351288650538176988]


def spans_made(spec: Spans, numbers: Ints, draw: Draw, sizes: Ints | None = None) -> Batch:
    return made(numbers, draw, _SpanReader(spec, LENGTH, VOCAB, END), sizes)


def parts_of(batch: Batch, i: int) -> tuple[list[int], list[int]]:
    """Return the inputs and the targets of a row."""
    hidden = batch.targets[i][batch.targets[i] != IGNORED].tolist()
    return batch.inputs[i, : batch.prefix[i]].tolist(), hidden


def restored(seen: list[int], hidden: list[int], sentinels: range) -> list[int]:
    """Return the row with each sentinel replaced by the tokens after it in the targets."""
    spans: dict[int, list[int]] = {}
    for token in hidden[:-1]:
        if token in sentinels:
            spans[token] = []
            last = token
        else:
            spans[last].append(token)
    whole: list[int] = []
    for token in seen:
        whole += spans[token] if token in sentinels else [token]
    return whole


@pytest.mark.parametrize("text", UL2.denoisers)
def test_a_corrupted_row_has_every_token_once(text: str) -> None:
    spec = Spans(denoisers=(text,))
    batch = spans_made(spec, np.arange(50), Draw.training(1, 2))
    kept = spec.each[0].fitting(LENGTH, LENGTH + 1 - spec.overhead)
    sentinels = range(VOCAB - spec.sentinels, VOCAB)
    for i in range(50):
        seen, hidden = parts_of(batch, i)
        assert hidden[-1] == END
        assert restored(seen, hidden, sentinels) == tokens()[i, :kept].tolist()
        own = [token for token in seen if token in sentinels]
        assert own == [token for token in hidden if token in sentinels]
        assert own == [FIRST_SENTINEL - number for number in range(len(own))]
        assert len(own) == spec.each[0].spans(kept)
        assert sum(token not in sentinels for token in hidden[:-1]) == spec.each[0].corrupted(kept)


def test_the_network_reads_the_inputs_and_then_each_target_after_its_prediction() -> None:
    batch = spans_made(Spans(), np.arange(20), Draw.training(1, 2))
    for i, prefix in enumerate(batch.prefix.tolist()):
        seen, hidden = parts_of(batch, i)
        assert batch.inputs[i, prefix : prefix + len(hidden) - 1].tolist() == hidden[:-1]
        assert (batch.targets[i, : prefix - 1] == IGNORED).all()
        assert batch.targets[i, prefix - 1] == hidden[0]
        assert len(seen) + len(hidden) <= LENGTH + 1
    rows = [parts_of(batch, i) for i in range(20)]
    assert batch.tokens_read == sum(len(seen) + len(hidden) - 1 for seen, hidden in rows)


def test_the_prefix_denoiser_hides_the_end_of_the_row() -> None:
    batch = spans_made(Spans(denoisers=("s 0.25",)), np.arange(3), Draw.training(1, 2))
    seen, hidden = parts_of(batch, 2)
    row = tokens()[2].tolist()
    assert seen == [*row[: len(seen) - 1], FIRST_SENTINEL]
    assert hidden == [FIRST_SENTINEL, *row[len(seen) - 1 : len(seen) + len(hidden) - 3], END]


def test_modes_and_denoisers_are_drawn_equally_often() -> None:
    """Two of UL2's seven denoisers are r, one is s and four are x."""
    batch = _SpanReader(UL2, LENGTH, VOCAB, END).batch(
        np.tile(tokens(200), (5, 1)), np.full(1000, LENGTH + 1), np.arange(1000), Draw.training(3, 4)
    )
    first = batch.inputs[:, 0] - (VOCAB - UL2.reserved)
    for number, share in enumerate((2 / 7, 1 / 7, 4 / 7)):
        assert within(int((first == number).sum()), 1000, share), MODES[number]


def test_lengths_of_spans_have_the_declared_mean_and_every_place_is_hidden_equally_often() -> None:
    denoiser = _parse_denoiser("r 3 0.15")
    lengths, places = [], np.zeros(200)
    for row in range(2000):
        intact, corrupted = _span_lengths(denoiser, 200, Draw.training(1, 1).words(row, 400))
        assert intact.sum() + corrupted.sum() == 200
        assert min(*intact, *corrupted) >= 1
        lengths += corrupted.tolist()
        ends = np.cumsum(np.stack([intact, corrupted], 1).ravel())
        for start, end in zip(ends[0::2], ends[1::2], strict=True):
            places[start:end] += 1
    assert np.mean(lengths) == 3
    assert set(lengths) >= {1, 2, 3, 4, 5, 6}
    middle = places[50:150] / 2000
    assert abs(middle.mean() - 0.15) < 3 * math.sqrt(0.15 * 0.85 / 2000)


def test_short_rows_lose_nothing_and_the_shortest_has_no_target() -> None:
    spec = Spans()
    batch = spans_made(spec, np.arange(3), Draw.training(1, 2), sizes=np.array([1, 2, 9]))
    assert [len(parts_of(batch, i)[1]) for i in range(3)] == [0, 3, 3]
    sentinels = range(VOCAB - spec.sentinels, VOCAB)
    assert restored(*parts_of(batch, 2), sentinels) == tokens()[2, :9].tolist()
    assert batch.prefix[0] == 1


@pytest.mark.parametrize("text", UL2.denoisers)
def test_the_expected_shares_are_those_of_long_rows(text: str) -> None:
    spec = Spans(denoisers=(text,), sentinels=400)
    batch = _SpanReader(spec, 1024, 33_000, END).batch(
        np.full((1, 1025), 7), np.array([1025]), np.array([0]), Draw.training(1, 1)
    )
    assert batch.predicted / batch.tokens_read == pytest.approx(spec.target_share(), abs=0.02)

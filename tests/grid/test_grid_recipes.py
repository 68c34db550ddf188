"""The recipes of the shipped grids, number by number, against the reference's scripts and the paper's Table 1.

The learning rate of update u is lr lam(u - 1): lam(k) = k / W for k < W, else 0.1 + 0.9 (1 + cos(pi (k-W)/(N-W))) / 2.
"""

import math
from dataclasses import replace

import pytest
from shipped import EXPERIMENTS, cells_of

from gpas_cli.grid.declared import Entry
from gpas_cli.spec.optim import Optim

GRIDS = {name: [entry for entry in cells_of(name) if not entry.cell.network] for name in EXPERIMENTS.grids}

# size: learning rate, warm-up W, updates N, sequences per update
TABLE = {
    "71m": (1e-3, 1_000, 10_000, 512),
    "130m": (1e-3, 2_000, 20_000, 512),
    "250m": (1e-3, 4_000, 40_000, 512),
    "350m": (5e-4, 6_000, 60_000, 512),
    "1b": (5e-4, 10_000, 100_000, 512),
    "7b": (3e-4, 10_000, 150_000, 2048),
}
# grid/cell: global clipping, clipping of the gates. Everything else on C4 is not clipped.
CLIPPED = {
    "table2/1b-sandwich-gpas": (0.0, 0.01),
    "gpas-clipping/clip-gates0.01": (0.0, 0.01),
    "table3/sandwich-gpas": (0.0, 0.01),
    "table3-poster/sandwich-gpas": (0.0, 0.01),
    "appendix-7b/pre": (1.0, 0.0),
    "appendix-7b/pre-gpas": (1.0, 0.01),
}
# Other papers, with recipes of their own, and what no paper has.
OTHERS = ("spike-", "curse-", "rivals-", "muon-", "transfer-")
ON_C4 = [
    entry
    for grid, entries in GRIDS.items()
    for entry in entries
    if entry.cell.data.source == "c4" and not grid.startswith(OTHERS)
]


def size_of(entry: Entry) -> str:
    """Return the name of a size, given its shape."""
    named = [name for name in TABLE if EXPERIMENTS.catalogue.sizes[name] == entry.cell.model.size]
    assert len(named) == 1, entry.id
    return named[0]


def test_every_size_of_the_paper_is_declared() -> None:
    assert {size_of(entry) for entry in ON_C4} == TABLE.keys()


def test_recipes() -> None:
    for entry in ON_C4:
        lr, warmup, steps, batch = TABLE[size_of(entry)]
        clip, clip_gates = CLIPPED.get(entry.id, (0.0, 0.0))
        assert entry.cell.optim == Optim(
            lr=lr, warmup=warmup, steps=steps, batch=batch, schedule="cosine", min_ratio=0.1, beta1=0.9, beta2=0.999,
            eps=1e-8, weight_decay=0.0, clip=clip, clip_gates=clip_gates, clip_over="all", mean_rows=0,
            stop=40_000 if entry.grid == "appendix-7b" else 0,
        ), entry.id  # fmt: skip
        assert entry.resources.micro_batch == 0, entry.id
        assert entry.cadence.eval_every == 1000, entry.id
        compared = entry.grid == "table2-precision"
        assert entry.cell.precision == (entry.axes["precision"] if compared else "pure_bf16"), entry.id
        assert entry.cell.seed == (entry.axes["seed"] if compared else 42), entry.id


def test_texts() -> None:
    """Documents of at most 256 tokens of T5, padded; the evaluation stops at ten million predicted tokens."""
    for entry in ON_C4:
        data = entry.cell.data
        assert (data.source, data.tokenizer, data.layout, data.length) == ("c4", "t5", "pad", 256), entry.id
        assert data.eval_tokens == 10_000_000, entry.id
        assert entry.cell.model.size.vocab == 32_000, entry.id


def test_cells_with_clipping_are_declared() -> None:
    assert CLIPPED.keys() <= {entry.id for entry in ON_C4}


@pytest.mark.parametrize("size", TABLE)
def test_schedule(size: str) -> None:
    lr, warmup, steps, *_ = TABLE[size]
    optim = next(entry.cell.optim for entry in ON_C4 if size_of(entry) == size)
    rate = optim.learning_rate
    assert rate(1) == 0
    assert rate(2) == lr / warmup
    assert rate(warmup) == pytest.approx(lr * (warmup - 1) / warmup, rel=1e-15)
    assert rate(warmup + 1) == pytest.approx(lr, rel=1e-15)
    half = warmup + (steps - warmup) // 2
    assert rate(half + 1) == pytest.approx(0.55 * lr, rel=1e-12)
    last = 0.1 + 0.45 * (1 + math.cos(math.pi * (steps - 1 - warmup) / (steps - warmup)))
    assert rate(steps) == pytest.approx(lr * last, rel=1e-12)
    assert 0.1 * lr < rate(steps) < 0.1001 * lr
    assert rate(steps + 1) == pytest.approx(1e-7 * lr, rel=1e-12)  # the reference's one update more, not done here
    assert max(rate(update) for update in range(1, steps + 1)) == rate(warmup + 1)


def test_the_papers_clipping_for_7b_is_one_setting() -> None:
    """0.01 on gates and 1.0 on other parameters (appendix A); the code clips all gradients at 1.0 first."""
    cell = next(entry.cell for entry in GRIDS["appendix-7b"] if entry.name == "pre-gpas")
    other = replace(cell, optim=replace(cell.optim, clip_over="others"))
    assert other.key != cell.key


def test_figure_4_of_the_curse_of_depth_is_the_pretraining_of_its_table_2() -> None:
    table2 = {stage.key for entry in GRIDS["curse-table2"] for stage in entry.cell.stages}
    assert {entry.key for entry in GRIDS["curse-figure4"]} <= table2
    assert {entry.cell.optim.steps for entry in GRIDS["curse-figure1"]} == {10_000}
    assert {entry.name: len(GRIDS["curse-lns-scaled"]) for entry in GRIDS["curse-figure1"]} == dict.fromkeys(
        ("pre-normal", "pre-scaled", "lns-normal"), 4
    )

"""Statistics by layer: against float64 computations row by row with explicit attention, and in cases with a known
answer."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from importance_ranks import cell_of, save_network, write_texts
from recorder import Recorder
from torch import Tensor, nn

from gpas_cli.data.loader import lengths_needed, validation_batches
from gpas_cli.data.objective import reader_of
from gpas_cli.data.prepare import Corpus
from gpas_cli.events import Outcome
from gpas_cli.extensions.layers.removal import Subject, own_subject
from gpas_cli.extensions.layers.stage import LAYERS
from gpas_cli.extensions.layers.statistics import LayerStatistics, measure
from gpas_cli.model.attention import Visible
from gpas_cli.model.llama import Llama, build
from gpas_cli.model.stream import effective_rank
from gpas_cli.spec.cell import Cell
from gpas_cli.train.assemble import TrainedNetwork, load_trained
from gpas_cli.train.training import prepare_text

TOKENS = 250


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_texts(tmp_path_factory.mktemp("layers"))


def trained(room: Path, folder: Path, **settings: Any) -> tuple[Cell, Path, Llama, Corpus]:
    cell = cell_of(importance=None, layers={"eval_tokens": TOKENS}, **settings)
    path, network = save_network(cell, folder)
    return cell, path, network, prepare_text(cell, room / "cache", room, notify=lambda _: None)


def subject_of(cell: Cell, opened: TrainedNetwork, corpus: Corpus) -> Subject:
    return own_subject(cell, opened, corpus, "", TOKENS)


def by_stage(cell: Cell, path: Path, corpus: Corpus) -> tuple[Outcome, dict[str, list[float]]]:
    recorder = Recorder()
    outcome = measure(subject_of(cell, load_trained(cell, path), corpus), recorder, lambda: None)
    begun, event = recorder.of("layers")
    assert (begun["step"], event["step"]) == (0, 7)
    assert begun["values"].keys() == {name for name in event["values"] if is_of_sublayers(name)}
    return outcome, event["values"]


def is_of_sublayers(name: str) -> bool:
    return name.startswith(("attention_", "feed_forward_"))


def assert_close(series: Mapping[str, Sequence[float]], expected: Mapping[str, Sequence[float]]) -> None:
    """Raise unless the numbers agree up to float32, which may put a few of 4,000 outputs into the bin beside theirs."""
    assert series.keys() == expected.keys()
    for name, values in expected.items():
        rounded = {"abs": 1e-3} if name.endswith("_ks") or "_output/" in name else {"rel": 2e-4, "abs": 2e-4}
        assert series[name] == pytest.approx(values, **rounded), name


def rows_of(cell: Cell, corpus: Corpus) -> list[Tensor]:
    """Return the tokens of each validation row, without padding."""
    batches = validation_batches(corpus.validation, 5, TOKENS, reader_of(cell, corpus.tokenizer))
    return [
        torch.from_numpy(np.ascontiguousarray(tokens[:length]))
        for batch in batches
        for tokens, length in zip(batch.inputs, lengths_needed(batch.targets, batch.prefix), strict=True)
        if length
    ]


class ByHand:
    """The statistics of a network in float64, from the streams of each row, which it keeps."""

    def __init__(self, network: Llama, *, causal: bool):
        self.network = network.double()
        self.causal = causal
        self.inputs: list[list[Tensor]] = [[] for _ in network.model.layers]
        self.outputs: list[list[Tensor]] = [[] for _ in network.model.layers]
        self.shares: list[list[Tensor]] = [[] for _ in network.model.layers]
        self.returned: dict[str, list[list[Tensor]]] = {}
        for part, name in (("attention", "self_attn"), ("feed_forward", "mlp")):
            self.returned[part] = [[] for _ in network.model.layers]
            for i, layer in enumerate(network.model.layers):
                getattr(layer, name).register_forward_hook(lambda _m, _x, y, to=self.returned[part][i]: to.append(y[0]))
        for i, layer in enumerate(network.model.layers):
            layer.register_forward_hook(partial(self.keep, i))
            layer.self_attn.register_forward_hook(partial(self.keep_share, i))

    def keep(self, i: int, _layer: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
        self.inputs[i].append(args[0][0])
        self.outputs[i].append(output[0])

    def keep_share(self, i: int, attention: nn.Module, args: tuple[Tensor, ...], _output: Tensor) -> None:
        self.shares[i].append(self.share(attention, args[0][0]))

    def share(self, attention: nn.Module, x: Tensor) -> Tensor:
        """Return the share of attention on token 1 of tokens 2, 3, ..., mean over heads; x: (time, hidden)."""
        time, heads, width = len(x), attention.heads, attention.head_dim
        angles = torch.outer(torch.arange(time).double(), 10000.0 ** (-torch.arange(0, width, 2).double() / width))
        turn = torch.polar(torch.ones_like(angles), angles)[:, None]
        q, k = (
            turn * torch.complex(*projection(x).view(time, heads, 2, width // 2).unbind(2))
            for projection in (attention.q_proj, attention.k_proj)
        )
        scores = torch.einsum("qhj,khj->hqk", q, k.conj()).real / math.sqrt(width)
        if self.causal:
            scores = scores.masked_fill(torch.ones(time, time).triu(1).bool(), -math.inf)
        return scores.softmax(-1)[:, 1:, 0].mean(0)

    @torch.no_grad()
    def run(self, rows: Sequence[Tensor]) -> dict[str, list[float]]:
        for row in rows:
            self.network(row[None], visible=None if self.causal else Visible())
        x, y = ([torch.cat(of) for of in streams] for streams in (self.inputs, self.outputs))
        streams = [*x, y[-1]]
        pairs = list(zip(x, y, strict=True))
        sigma = [torch.linalg.svdvals(one) for one in streams]
        p = [one / one.sum() for one in sigma]
        centred = [one - one.mean(1, keepdim=True) for one in streams]
        return {
            "activation_variance": [float(one.var(1, correction=0).mean()) for one in streams],
            "kurtosis": [float(((c**4).mean(1) / (c**2).mean(1) ** 2).mean()) for c in centred],
            "max_to_rms": [float((one.abs().max(1)[0] / (one**2).mean(1) ** 0.5).mean()) for one in streams],
            "max_to_median": [float((one.abs().max(1)[0] / one.abs().sort(1)[0][:, 7]).mean()) for one in streams],
            "effective_rank": [float((-(one * one.log())).nansum().exp()) for one in p],
            "block_cosine": [float(((a * b).sum(1) / (a.norm(dim=1) * b.norm(dim=1))).mean()) for a, b in pairs],
            "block_update": [float(((b - a).norm(dim=1) / a.norm(dim=1)).mean()) for a, b in pairs],
            "first_token_share": [float(torch.cat(own).mean()) for own in self.shares],
        } | self.distributions()

    def distributions(self) -> dict[str, list[float]]:
        """Return the distributions of the sub-layers' outputs, by NumPy and the error function."""
        found: dict[str, list[float]] = {}
        edges = [-math.inf, *(i / 8 for i in range(-40, 41)), math.inf]
        normal = [(1 + math.erf(z / math.sqrt(2))) / 2 for z in edges]
        for part, layers in self.returned.items():
            found[f"{part}_excess_kurtosis"], found[f"{part}_ks"] = [], []
            for i, outputs in enumerate(layers, 1):
                x = torch.cat(outputs).numpy().ravel()
                z = (x - x.mean()) / x.std()
                below = [(z <= edge).mean() for edge in edges]
                found[f"{part}_excess_kurtosis"].append((z**4).mean() - 3)
                found[f"{part}_ks"].append(max(abs(a - b) for a, b in zip(below, normal, strict=True)))
                found[f"{part}_output/{i}"] = np.diff(below).tolist()
        return found


@pytest.mark.parametrize(
    ("scheme", "gate", "layout"), [("pre", None, "pack"), ("post", "gpas", "pad"), ("sandwich", "gpas", "pack")]
)
def test_numbers_are_those_of_rows(room: Path, tmp_path: Path, scheme: str, gate: str | None, layout: str) -> None:
    cell, path, network, corpus = trained(room, tmp_path, norm=scheme, gate=gate, layout=layout)
    outcome, series = by_stage(cell, path, corpus)
    rows = rows_of(cell, corpus)
    assert (len({len(row) for row in rows}) > 1) == (layout == "pad")
    expected = ByHand(network, causal=True).run(rows)
    assert_close(series, expected)
    assert all(sum(series[f"attention_output/{layer}"]) == pytest.approx(1) for layer in range(1, 5))
    declared = {metric.name for metric in LAYERS.metrics}
    assert outcome.metrics.keys() == declared | {"seconds"}
    assert outcome.metrics["largest_kurtosis"] == max(series["kurtosis"])
    assert outcome.metrics["largest_ks"] == max(series["attention_ks"] + series["feed_forward_ks"])
    assert outcome.metrics["mean_block_update"] == pytest.approx(sum(series["block_update"]) / 4)


def test_tokens_of_a_masked_network_see_the_whole_row(room: Path, tmp_path: Path) -> None:
    objective = {"like": "mlm", "mask_token": ""}
    cell, path, network, corpus = trained(room, tmp_path, norm="pre", objective=objective, layout="pad")
    _, series = by_stage(cell, path, corpus)
    expected = ByHand(network, causal=False).run(rows_of(cell, corpus))
    assert_close(series, expected)


def test_the_outputs_at_the_beginning_are_those_of_the_initialised_network(room: Path, tmp_path: Path) -> None:
    cell, path, _, corpus = trained(room, tmp_path, norm="lns", gate="gpas")
    recorder = Recorder()
    measure(subject_of(cell, load_trained(cell, path), corpus), recorder, lambda: None)
    begun, ended = (event["values"] for event in recorder.of("layers"))
    hand = ByHand(build(cell.model, seed=cell.seed), causal=True)
    hand.run(rows_of(cell, corpus))
    assert_close(begun, hand.distributions())
    assert ended["attention_ks"] != begun["attention_ks"]


def test_uniform_attention_gives_each_token_its_share(room: Path, tmp_path: Path) -> None:
    cell, path, _, corpus = trained(room, tmp_path, norm="pre")
    opened = load_trained(cell, path)
    for layer in opened.network.model.layers:
        layer.self_attn.q_proj.weight.data.zero_()
    recorder = Recorder()
    measure(subject_of(cell, opened, corpus), recorder, lambda: None)
    shares = recorder.of("layers")[-1]["values"]["first_token_share"]
    assert shares == pytest.approx([sum(1 / t for t in range(2, 17)) / 15] * 4)


def test_a_stage_that_is_stopped_reports_no_layers(room: Path, tmp_path: Path) -> None:
    cell, path, _, corpus = trained(room, tmp_path, norm="pre")
    recorder = Recorder()
    asked = iter([None, "interrupted"])
    outcome = measure(subject_of(cell, load_trained(cell, path), corpus), recorder, lambda: next(asked))
    assert outcome.outcome == "interrupted"
    assert [event["step"] for event in recorder.of("step")] == [1]
    assert not recorder.of("layers")


def statistics_of(streams: Sequence[Tensor], real: Tensor | None = None) -> dict[str, list[float]]:
    """Return the statistics of a network whose layers are entered by these streams, (tokens, hidden) each."""
    found = LayerStatistics(lambda observe: entered(streams, observe))
    with found.watch(lambda x: x if real is None else x[real]):
        pass
    return found.series()


@contextmanager
def entered(streams: Iterable[Tensor], observe: Callable[[int, Tensor], None]) -> Iterator[None]:
    for place, x in enumerate(streams):
        observe(place, x)
    yield


def test_known_answers() -> None:
    signs = torch.tensor([[1.0, -1.0], [1.0, 1.0]]).repeat(3, 4)  # two orthogonal rows of 8, three times
    outlier = torch.zeros(6, 8)
    outlier[:, 2] = 5.0
    series = statistics_of([signs, 3 * signs, -signs, outlier + 1])
    assert series["effective_rank"] == pytest.approx([2, 2, 2, 1])
    assert series["block_cosine"][:2] == pytest.approx([1, -1])
    assert series["block_update"][:2] == pytest.approx([2, 4 / 3])
    assert series["activation_variance"] == pytest.approx([0.5, 4.5, 0.5, 25 * 7 / 64])
    assert series["kurtosis"] == pytest.approx([1, 1, 1, 6 + 1 / 7])  # a constant token has none
    assert series["max_to_median"] == pytest.approx([1, 1, 1, 6])
    assert series["max_to_rms"][:3] == pytest.approx([1, 1, 1])
    assert "first_token_share" not in series


def test_tokens_that_do_not_count_are_left_out() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(2, 9, 8)
    real = torch.arange(9) < 6
    garbage = torch.where(real[:, None], x, math.nan)
    assert statistics_of([garbage, y], real) == statistics_of([x[:6], y[:6]])


def test_passes_add_up() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(2, 9, 8)
    parts = iter([slice(0, 5), slice(5, 9)])

    def observed(observe: Callable[[int, Tensor], None]) -> AbstractContextManager[None]:
        part = next(parts)
        return entered([x[part], y[part]], observe)

    found = LayerStatistics(observed)
    for _ in range(2):
        with found.watch(lambda x: x):
            pass
    whole = statistics_of([x, y])
    assert {name: pytest.approx(values) for name, values in whole.items()} == found.series()


def test_a_stream_that_is_not_finite_has_no_effective_rank() -> None:
    assert math.isnan(effective_rank(torch.full((3, 3), math.inf, dtype=torch.float64)))
    assert math.isnan(statistics_of([torch.full((4, 3), math.nan)] * 2)["kurtosis"][0])

"""Two processes compute the same as one: losses, gradients, weights, evaluation, under DDP and FSDP; and reload.

Four do as well, as two nodes of two, under HSDP. And one that is killed often ends as one that never is."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
import torch.distributed as dist
from cases import tables
from marks import long_but, release_but
from once import made_once
from safetensors.torch import load_file
from together import run, start, text
from torch import Tensor, nn

from gpas_cli.checkpoints import newest_first
from gpas_cli.model.layers import RMSNorm
from gpas_cli.model.llama import Llama, build
from gpas_cli.spec.parse_cell import cell_from, parse_model
from gpas_cli.train import checkpoint, parallel
from gpas_cli.train.device import make_deterministic
from gpas_cli.train.loss import DeviceRows, summed_loss
from gpas_cli.train.optim import make_optimizer
from gpas_cli.train.parallel import ALONE, GradientSum, ParallelLayout, World
from gpas_cli.train.precision import Precision

SIZE = {"hidden": 16, "ffn": 24, "heads": 2, "layers": 3, "vocab": 280}
DATA = {"source": "files", "path": "*.txt", "tokenizer": "bpe", "layout": "pad", "length": 16, "eval_tokens": 150}
OPTIM = {"lr": 3e-3, "warmup": 1, "steps": 5, "batch": 8, "clip": 1.0, "clip_gates": 0.01}
ALL = 10**6


def values(norm: str, gate: object = "gpas", optim: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return {"size": SIZE, "norm": norm, "gate": gate, "data": DATA, "optim": {**OPTIM, **(optim or {})}, **more}


DECLARED = tables("train/cases.yaml")["several_processes_compute_the_same_as_one"]
CELLS = {name: values(**cell) for name, cell in DECLARED.items()}
KILLED = values("pre", optim={"steps": 20, "batch": 4, "mean_rows": 2})
KILLS = 4
# Feed-forward widths that are padded, q, k and v in one product, as on GPUs.
WIDE_LAYOUTS = tables("train/cases.yaml")["sharded_weights_are_padded_at_use"]
# Each layout with one of the two types of gathered weights.
WIDE = [("fsdp", "bf16"), ("recomputed", "pre"), ("compiled", "pre"), ("both", "bf16")]
OPTIMIZER_CELLS = ("adafactor", "muon")
LAYOUTS = {
    "ddp": {"strategy": "ddp", "micro_batch": 2},
    "fsdp": {"strategy": "fsdp", "micro_batch": 2, "activation_checkpointing": "blocks"},
}
NODES = {"ranks": 4, "nodes": 2, "strategy": "hsdp", "micro_batch": 1, "activation_checkpointing": "blocks"}
ON_NODES = ("pre", "paths", "adafactor", "muon")
# With whole weights, only the sums of gradients differ from one process: their weights, their layers, their type.
COMPARED = [("ddp", name) for name in ("pre", "paths", "pure")] + [("fsdp", name) for name in CELLS]
# Two processes read whole weights as one does, and every comparison reads those of DDP in one.
RESUMED = [("one", "fsdp"), ("ddp", "fsdp"), ("fsdp", "fsdp"), ("fsdp", "one")]
SMALL = ("pre", "paths")
SHORT = {**LAYOUTS["ddp"], "message": 500, "room": [1, 1, 2]}
# One of each kind: layouts, skipped layers, types, optimizers; from whole weights to shards, and back.
USUAL = [("ddp", "pre"), ("ddp", "paths"), ("fsdp", "pre"), ("fsdp", "bf16"), ("fsdp", "muon")]
USUALLY_RESUMED = [("one", "fsdp")]
SWITCHED = [("fsdp", "hsdp"), ("hsdp", "fsdp")]


@pytest.fixture
def room(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """Return the folder of all trainings, which pytest's worker processes share: the first makes it, others wait."""
    if torch.cuda.device_count() == 1:
        pytest.skip("two processes cannot use the same GPU")
    made = made_once(tmp_path_factory, "together", train_usual)
    if request.node.get_closest_marker("long"):
        made_once(tmp_path_factory, "together-nodes", lambda _: train_on_nodes(made, ON_NODES[:1]))
    if request.node.get_closest_marker("release"):
        made_once(tmp_path_factory, "together-all", lambda _: train_others(made))
    return made


def train_usual(root: Path) -> None:
    text(root)
    checks = [[check, f"rank_checks:{check}"] for check in ("chosen_kernels", "sharded_series", "overflow_in_one")]
    more = [["short-ddp", CELLS["pre"], SHORT, [], ALL], *checks]
    if not torch.cuda.is_available():  # forks cannot use a GPU
        keep(root, ["never-killed", KILLED, {}, [], ALL])
        more.append(["killed", "kill_often:kill_often", [KILLED, KILLS]])
    train_all(root, USUAL, USUALLY_RESUMED, ["muon"], ["paths"], more)


def train_others(root: Path) -> None:
    train_all(root, COMPARED, RESUMED, OPTIMIZER_CELLS, SMALL, [])
    train_on_nodes(root, ON_NODES)
    start_missing(
        root, [[f"wide-{way}-{name}", CELLS[name], {**WIDE_LAYOUTS[way], "wide": True}, [], ALL] for way, name in WIDE]
    )


def train_on_nodes(root: Path, names: Sequence[str]) -> None:
    """Train cells with four processes on two nodes, and runs that switch between that and shards over two or four."""
    for name in names:
        keep(root, [f"one-{name}", CELLS[name], {"micro_batch": 3}, [], ALL])
    start_missing(root, [["half-fsdp", CELLS["pre"], LAYOUTS["fsdp"], [], 3]])
    cases = [[f"hsdp-{name}", CELLS[name], NODES, [], ALL] for name in names]
    halves = [["half-hsdp", CELLS["pre"], NODES, [], 3]]
    then = [
        [f"{before}-then-{after}", CELLS["pre"], asked, [f"half-{before}"], ALL]
        for before, after, asked in (("fsdp", "hsdp", NODES), ("hsdp", "fsdp", LAYOUTS["fsdp"]))
    ]
    copies = [["copies", "rank_checks:copies_on_nodes"]]
    start_missing(root, [*cases, *halves, *then, *copies], 4)


def train_all(
    root: Path,
    compared: Sequence[tuple[str, str]],
    resumed: Sequence[tuple[str, str]],
    optimizers: Sequence[str],
    small: Sequence[str],
    more: list[list[Any]],
) -> None:
    """Train cells with one process and with two, and some runs that switch between them after three updates."""
    make_deterministic(1)
    for name in dict.fromkeys(name for _, name in compared):
        keep(root, [f"one-{name}", CELLS[name], {"micro_batch": 3}, [], ALL])
    keep(root, ["half-one", CELLS["pre"], {}, [], 3])
    cases = [[f"{way}-{name}", CELLS[name], LAYOUTS[way], [], ALL] for way, name in compared]
    befores = dict.fromkeys(before for before, _ in resumed if before != "one")
    halves = [[f"half-{before}", CELLS["pre"], LAYOUTS[before], [], 3] for before in befores]
    second = [
        [f"{before}-then-{after}", CELLS["pre"], LAYOUTS[after], [f"half-{before}"], ALL]
        for before, after in resumed
        if after != "one"
    ]
    sharded = [[f"half-fsdp-{name}", CELLS[name], LAYOUTS["fsdp"], [], 3] for name in optimizers]
    many = [[f"small-{name}", CELLS[name], {**LAYOUTS["ddp"], "message": 500}, [], ALL] for name in small]
    start_missing(root, [*cases, *halves, *second, *sharded, *many, *more])
    for name in optimizers:
        keep(root, [f"fsdp-then-one-{name}", CELLS[name], {"micro_batch": 3}, [f"half-fsdp-{name}"], ALL])
    for before in befores:
        keep(root, [f"{before}-then-one", CELLS["pre"], {}, [f"half-{before}"], ALL])


def start_missing(root: Path, cases: list[list[Any]], size: int = 2) -> None:
    """Run in `size` processes those cases that have not been run."""
    missing = [case for case in cases if not (root / f"{case[0]}.json").exists()]
    if missing:
        start(root, size, missing)


def keep(root: Path, case: list[Any]) -> None:
    """Run a case in this process, unless it has been run."""
    if not (root / f"{case[0]}.json").exists():
        (root / f"{case[0]}.json").write_text(json.dumps(run(root, case, ALONE)))


def result_of(root: Path, name: str) -> Any:
    return json.loads((root / f"{name}.json").read_text())


def weights(root: Path, name: str, cell: dict[str, Any]) -> dict[str, Tensor]:
    """Return the final network of a run, read by one process."""
    parsed = cell_from(cell)
    dtype = Precision(parsed.precision, torch.device("cpu")).weights
    network = build(parsed.model, dtype=dtype)
    newest = newest_first([root / name])[0]
    position = checkpoint.load(
        newest, parsed.stages[0].key, network, make_optimizer(network, parsed.optim), kind=parsed.optim.kind
    )
    assert position.step == OPTIM["steps"]
    return network.state_dict()


def same(ours: list[dict[str, Any]], theirs: list[dict[str, Any]], names: str, tolerance: float) -> None:
    assert len(ours) == len(theirs) > 0
    for mine, yours in zip(ours, theirs, strict=True):
        for name in names.split():
            assert mine[name] == pytest.approx(yours[name], rel=tolerance, abs=tolerance), name


@pytest.mark.parametrize(
    ("way", "name"),
    [*release_but([*COMPARED, *(("hsdp", name) for name in ON_NODES[1:])], *USUAL), *long_but([("hsdp", "pre")])],
)
def test_several_processes_compute_the_same_as_one(room: Path, way: str, name: str) -> None:
    one, two = result_of(room, f"one-{name}"), result_of(room, f"{way}-{name}")
    wide = {"bf16": 2e-2, "stream": 4e-2, "fp16": 3e-3, "pure": 5e-2}
    wide |= {"adafactor": 1e-5, "muon": 5e-4}
    tolerance = wide.get(name, 1e-6)
    same(two["step"], one["step"], "loss grad_norm lr tokens", tolerance)
    assert [e.get("loss_scale") for e in two["step"]] == [2.0**16 if name == "fp16" else None] * OPTIM["steps"]
    same(two["evaluation"], one["evaluation"], "loss loss_batch_mean loss_reference tokens", tolerance)
    ours, theirs = (weights(room, f"{who}-{name}", CELLS[name]) for who in (way, "one"))
    torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)
    if name != "plain":
        assert any(tensor.abs().max() > 1e-4 for key, tensor in ours.items() if key.endswith("alpha"))


@pytest.mark.parametrize("way", long_but([*LAYOUTS, "hsdp"], *LAYOUTS))
def test_layers_are_observed_over_all_shards(room: Path, way: str) -> None:
    one, two = result_of(room, "one-pre")["layers"], result_of(room, f"{way}-pre")["layers"]
    same([e["values"] for e in two], [e["values"] for e in one], "grad_norm gate", 1e-6)
    assert {len(e["values"]["activation_variance"]) for e in two} == {SIZE["layers"] + 1}


@pytest.mark.parametrize(("before", "after"), [*release_but(RESUMED, *USUALLY_RESUMED), *long_but(SWITCHED)])
def test_a_run_resumes_under_another_layout(room: Path, before: str, after: str) -> None:
    first, second, straight = (result_of(room, n) for n in (f"half-{before}", f"{before}-then-{after}", "one-pre"))
    assert (first["outcome"]["outcome"], first["outcome"]["step"]) == ("interrupted", 3)
    assert next(e["resumed_from"] for e in second["phase"] if "resumed_from" in e) == 3
    same(second["step"], straight["step"][3:], "loss grad_norm tokens", 1e-6)
    ours, theirs = (weights(room, n, CELLS["pre"]) for n in (f"{before}-then-{after}", "one-pre"))
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", release_but(OPTIMIZER_CELLS, "muon"))
def test_the_state_of_every_optimizer_is_read_from_shards(room: Path, name: str) -> None:
    second, straight = result_of(room, f"fsdp-then-one-{name}"), result_of(room, f"one-{name}")
    assert next(e["resumed_from"] for e in second["phase"] if "resumed_from" in e) == 3
    ours, theirs = (weights(room, n, CELLS[name]) for n in (f"fsdp-then-one-{name}", f"one-{name}"))
    tolerance = {"adafactor": 1e-5, "muon": 5e-4}[name]
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=tolerance)
    same(second["step"], straight["step"][3:], "loss grad_norm tokens", tolerance)


def test_processes_agree_on_the_rows_that_fit_the_smallest(room: Path) -> None:
    short, roomy = result_of(room, "short-ddp"), result_of(room, "ddp-pre")
    assert [event["message"] for event in short["warning"] if "rows at once" in event["message"]] == [
        "2 rows at once do not fit the device's memory; continuing with 1"
    ]
    same(short["step"], roomy["step"], "loss grad_norm tokens", 1e-6)


@pytest.mark.parametrize("name", release_but(SMALL, "paths"))
def test_gradients_sent_in_many_messages_have_the_same_sums(room: Path, name: str) -> None:
    """Of two numbers, there is one sum; layers that an update skips are in no message."""
    small, large = result_of(room, f"small-{name}"), result_of(room, f"ddp-{name}")
    same(small["step"], large["step"], "loss grad_norm", 0.0)
    assert [event["values"] for event in small["layers"]] == [event["values"] for event in large["layers"]]


@pytest.mark.release
@pytest.mark.parametrize(("way", "name"), WIDE)
def test_sharded_weights_are_padded_at_use(room: Path, way: str, name: str) -> None:
    one, two = result_of(room, f"one-{name}"), result_of(room, f"wide-{way}-{name}")
    (event,) = [e for e in two["phase"] if e["name"] == "training"]
    assert (event["recompute"], event["compiled"]) == (way in ("recomputed", "both"), way in ("compiled", "both"))
    tolerance = {"bf16": 2e-2}.get(name, 1e-6)
    same(two["step"], one["step"], "loss grad_norm tokens", tolerance)
    ours, theirs = (weights(room, f"{who}-{name}", CELLS[name]) for who in (f"wide-{way}", "one"))
    torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)


def test_shards_are_written_by_all(room: Path) -> None:
    for way in LAYOUTS:
        folder = newest_first([room / f"{way}-pre"])[0]
        sizes = sorted(path.stat().st_size for path in folder.glob("*.safetensors"))
        assert len(sizes) == 2
        assert sizes[1] < 1.5 * sizes[0], "each process writes about half"
    assert len(list(newest_first([room / "one-pre"])[0].glob("*.safetensors"))) == 1
    assert len(newest_first([room / "fsdp-pre"])) == 2


@pytest.mark.long
def test_of_equal_shards_one_is_written(room: Path) -> None:
    folder = newest_first([room / "hsdp-pre"])[0]
    sizes = sorted(path.stat().st_size for path in folder.glob("*.safetensors"))
    assert len(sizes) == 4
    assert sizes[3] < 2 * sizes[0], "each process writes about a quarter"
    (whole,) = newest_first([room / "one-pre"])[0].glob("*.safetensors")
    assert sum(sizes) < whole.stat().st_size + 4 * 8192, "and nothing twice"


@pytest.mark.long
def test_the_copies_of_nodes_have_the_same_bits_and_sum_gradients_once_in_an_update(room: Path) -> None:
    each = result_of(room, "copies")
    assert [one["weights"] for one in each[:2]] == [one["weights"] for one in each[2:]]
    assert each[0]["weights"] != each[1]["weights"]
    assert {(one["micro_batches"], one["sums"]) for one in each} == {(2, 5)}, "of four layers and of the rest"


def test_only_the_first_process_emits_events(room: Path) -> None:
    (event,) = [e for e in result_of(room, "fsdp-pre")["phase"] if e["name"] == "training"]
    assert (event["processes"], event["strategy"], event["recompute"], event["micro_batch"]) == (2, "fsdp", True, 2)
    assert [e["step"] for e in result_of(room, "ddp-pre")["step"]] == [1, 2, 3, 4, 5]


def test_processes_that_would_choose_other_kernels_do_as_the_first(room: Path) -> None:
    first, second = result_of(room, "chosen_kernels")
    assert first == second
    assert first["used"] == {"triton": True, "ragged": True, "wider": False}
    chosen = {name: first["rounding"][name] for name in ("torch", "compiled", "triton", "ragged", "wider")}
    assert chosen == {"torch": "2.10.0", "compiled": False, **first["used"]}


def test_processes_skip_the_same_updates(room: Path) -> None:
    first, second = result_of(room, "overflow_in_one")
    assert first == second
    assert (first["skipped"], first["scales"]) == ([True, False], [2.0**16, 2.0**15, 2.0**15])


def test_norms_and_the_first_fault_of_a_sharded_network_are_those_of_the_whole(room: Path) -> None:
    for one in result_of(room, "sharded_series"):
        assert one["sharded"] == {name: pytest.approx(series, rel=1e-5) for name, series in one["whole"].items()}
        assert one["fault"] == "model.embed_tokens.weight"


@pytest.mark.skipif(torch.cuda.is_available(), reason="the trials are forks, which cannot use a GPU")
def test_killed_at_any_moment_a_run_ends_in_the_same_bits(room: Path) -> None:
    report = result_of(room, "killed")
    assert report["killed"].count(9) >= KILLS - 1, "the last one may have been done already"
    assert report["end"] == 0
    assert report["resumed_at"] > KILLED["optim"]["steps"] // 2
    last = room / f"killed-{KILLS}"
    ours, theirs = (
        load_file(newest_first([folder])[0] / "00000.safetensors") for folder in (last, room / "never-killed")
    )
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert list(last.glob(".writing-*")) == []


CPU = torch.device("cpu")
WORLD = World(0, 2, 0)  # as if there were another process; the group below has one


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", f"file://{tmp_path}/meeting", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture
def sent(group: None, monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """The tensors that are sent, in order."""
    messages: list[Tensor] = []
    usual = dist.all_reduce

    def recorded(tensor: Tensor, *arguments: Any, **more: Any) -> Any:
        messages.append(tensor.clone())
        return usual(tensor, *arguments, **more)

    monkeypatch.setattr(dist, "all_reduce", recorded)
    monkeypatch.setattr(parallel, "_BUCKET_BYTES", 4 * 9)
    return messages


def chain() -> nn.Sequential:
    return nn.Sequential(*(nn.Linear(3, 3, bias=False) for _ in range(6)))


def test_messages_are_sent_as_the_backward_pass_completes_them(sent: list[Tensor]) -> None:
    network = chain()
    gradients = GradientSum(list(network.parameters()))
    seen: list[int] = []
    network[2].register_full_backward_hook(lambda *_: seen.append(len(sent)))
    with gradients.during_backward():
        network(torch.ones(2, 3, requires_grad=True)).sum().backward()
    assert seen == [4], "those of the last four layers, before the gradients of the first two"
    gradients.finish()
    assert [m.tolist() for m in sent] == [p.grad.flatten().tolist() for p in reversed(list(network.parameters()))]


def test_only_the_backward_pass_that_is_marked_sends(sent: list[Tensor]) -> None:
    network = chain()
    gradients = GradientSum(list(network.parameters()))
    network(torch.ones(2, 3)).sum().backward()
    assert not sent
    with gradients.during_backward():
        network(torch.ones(2, 3)).sum().backward()
    assert len(sent) == 6
    gradients.finish()
    network(torch.ones(2, 3)).sum().backward()
    assert len(sent) == 6


def test_a_process_that_failed_sends_what_the_others_expect(sent: list[Tensor]) -> None:
    network = chain()
    gradients = GradientSum(list(network.parameters()))

    network[1].weight.register_hook(Mock(side_effect=torch.OutOfMemoryError("CUDA out of memory")))
    with pytest.raises(torch.OutOfMemoryError), gradients.during_backward():
        network(torch.ones(2, 3)).sum().backward()
    assert len(sent) == 4
    network.zero_grad(set_to_none=True)
    gradients.finish()
    assert [m.numel() for m in sent] == [9] * 6
    assert all(p.grad is None for p in network.parameters())


def test_what_has_no_gradient_is_in_no_message(group: None) -> None:
    network = Llama(parse_model({"size": {"hidden": 8, "ffn": 8, "heads": 2, "layers": 2, "vocab": 8}, "gate": "gpas"}))
    layout = ParallelLayout(WORLD, "ddp")
    every = sum(p.numel() for p in network.parameters())

    def numbers() -> int:
        return sum(p.numel() for bucket in layout.gradient_sum(network, None)._buckets for p in bucket)

    assert numbers() == every
    network.model.layers[0].requires_grad_(False)
    assert numbers() == every - sum(p.numel() for p in network.model.layers[0].parameters())


@pytest.mark.keeps_open("gloo keeps its connections until the process ends")
def test_bf16_gathers_the_matrices_of_layers_in_bfloat16(group: None) -> None:
    model = parse_model({"size": {"hidden": 8, "ffn": 8, "heads": 2, "layers": 2, "vocab": 8}, "gate": "gpas"})
    precision = Precision("bf16", CPU)
    network = ParallelLayout(World(), "fsdp").build(model, 1, precision)
    seen: dict[str, torch.dtype] = {}
    for name, module in network.named_modules():
        if isinstance(module, nn.Linear | nn.Embedding | RMSNorm):
            module.register_forward_pre_hook(lambda m, _, name=name: seen.update({name: m.weight.dtype}))
    tokens = torch.zeros(2, 4, dtype=torch.int64)
    summed_loss(network, DeviceRows(tokens, tokens, None), precision).backward()
    narrow = {name for name, dtype in seen.items() if dtype == torch.bfloat16}
    assert narrow == {name for name in seen if name.endswith("_proj") and "down" not in name}
    assert all(p.dtype == torch.float32 == p.grad.dtype for p in network.parameters() if p.grad is not None)
    network.unshard()
    assert {p.dtype for layer in network.model.layers for n, p in layer.named_parameters() if "norm" in n} == {
        torch.float32
    }

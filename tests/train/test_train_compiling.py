"""Layers compile without a graph break, for every scheme and every position of the gate."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from gate_placements import two_layers
from marks import release_but
from saving import save
from together import run, text

from gpas_cli.data.loader import IGNORED
from gpas_cli.model import layers, packing
from gpas_cli.model.llama import Llama, build
from gpas_cli.model.stream import stream_statistics
from gpas_cli.spec.gate import _SITES
from gpas_cli.spec.norm import SCHEMES
from gpas_cli.spec.parse_cell import cell_from, parse_model
from gpas_cli.spec.run import Resources
from gpas_cli.train import checkpoint, compiling, parallel
from gpas_cli.train.bench import synthetic_loop
from gpas_cli.train.compiling import _KERNELS, _keep_kernels_private, compile_layers, worth_compiling
from gpas_cli.train.loop import Loop
from gpas_cli.train.loss import DeviceRows, summed_loss
from gpas_cli.train.parallel import ALONE, ParallelLayout
from gpas_cli.train.precision import Precision

# raised and handled inside torch.compile itself
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute", "ignore:.torch.jit.script")

SIZE = {"hidden": 16, "ffn": 24, "heads": 2, "layers": 2, "vocab": 50}
FP32 = Precision("fp32", torch.device("cpu"))
TOKENS = np.random.default_rng(1).integers(0, 50, (4, 9))


def network(norm: str, site: str = "home", **family: object) -> Llama:
    return build(
        parse_model({"size": SIZE, "norm": two_layers(norm), "gate": {"site": site, "init": 0.2}, "family": family})
    )


def rows(*lengths: int) -> DeviceRows:
    tokens = TOKENS[: len(lengths)]
    targets = np.where(np.arange(9) < np.array(lengths)[:, None], tokens, IGNORED)
    return DeviceRows.of(tokens, targets, FP32.device)


# Every scheme, and every slot of the gate once.
PLACES = [*((norm, "home") for norm in SCHEMES), *(("sandwich", site) for site in _SITES[2:]), ("post", "after-norm")]


# Mix-LN has layers of two kinds, Post-LN and Pre-LN.
@pytest.mark.parametrize(("norm", "site"), release_but(PLACES, ("mix", "home")))
def test_no_scheme_and_no_site_breaks_the_graph(norm: str, site: str, counter: Any) -> None:
    made = network(norm, site)
    compile_layers(made, counter)
    summed_loss(made, rows(9, 9, 9, 9), FP32).backward()
    # Mix-LN and value residual have layers of two kinds; the final norm has a graph of its own, and so has the
    # norm of embeddings.
    assert counter.frame_count == (3 if norm in ("mix", "peri", "value-residual") else 2)


@pytest.mark.long
def test_norms_of_queries_and_keys_do_not_break_the_graph(counter: Any) -> None:
    made = network("pre", qk_norm="head")
    compile_layers(made, counter)
    summed_loss(made, rows(9, 9, 9, 9), FP32).backward()
    summed_loss(made, rows(9, 5, 4, 2), FP32).backward()
    assert counter.frame_count == 4


PADDED = [(9, 5, 4, 2), (9, 3, 1, 1), (7, 7, 2, 1), (9, 9, 8, 9), (2, 2, 2, 2)]
FULL = [(9, 9, 9, 9), (9, 9), (9, 9, 9), (9, 9, 9, 9), (9, 9)]


def graphs_of(made: Llama, batches: list[tuple[int, ...]], *, gradients: bool = True) -> list[list[str]]:
    """Compile anew, as a resumed run does, and return the code of the new graphs of each batch, shapes included."""
    torch._dynamo.reset()
    codes: list[str] = []

    def backend(graph: torch.fx.GraphModule, inputs: object) -> object:
        codes.append(graph.print_readable(print_output=False))
        return graph.forward

    compile_layers(made, backend)
    found = []
    for lengths in batches:
        with torch.set_grad_enabled(gradients):
            loss = summed_loss(made, rows(*lengths), FP32)
        if gradients:
            loss.backward()
        found.append(codes.copy())
        codes.clear()
    return found


@pytest.mark.long
@pytest.mark.parametrize(
    ("norm", "family", "batches", "gradients", "graphs"),
    [
        pytest.param("pre", {}, PADDED, True, 2, marks=pytest.mark.release),  # of the layers, and of the final norm
        pytest.param("pre", {}, FULL, True, 2, marks=pytest.mark.release),
        ("mix", {}, PADDED, True, 3),  # of layers of two kinds
        # Of what is added to the embedding.
        pytest.param("pre", {"positions": "learned", "context": 16}, PADDED, False, 3, marks=pytest.mark.release),
        ("pre", {"positions": "learned", "context": 16}, FULL, False, 3),
    ],
    ids=["padded", "full", "two kinds", "evaluation", "evaluation of full rows"],
)
def test_every_update_has_the_same_graphs_also_after_a_resume(
    norm: str, family: dict[str, object], batches: list[tuple[int, ...]], gradients: bool, graphs: int
) -> None:
    whole = graphs_of(network(norm, **family), batches, gradients=gradients)
    assert [len(codes) for codes in whole] == [graphs] + [0] * (len(batches) - 1)
    resumed = graphs_of(network(norm, **family), batches[2:], gradients=gradients)
    assert resumed == [whole[0]] + [[]] * (len(batches) - 3)


@pytest.fixture
def restored_tag() -> Iterator[None]:
    with torch.compiler.config.patch(cache_key_tag=""):
        yield


@pytest.mark.long
@pytest.mark.usefixtures("restored_tag")
def test_a_resumed_run_compiles_for_the_first_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Inductor chooses kernels by the sizes of the batch that a graph is compiled for, also where they are dynamic."""
    text(tmp_path)
    sizes: list[list[list[int]]] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[object]) -> object:
        tensors = [value for value in inputs if isinstance(value, torch.Tensor)]
        sizes.append([[n.node.hint if isinstance(n, torch.SymInt) else n for n in tensor.shape] for tensor in tensors])
        return graph.forward

    monkeypatch.setattr(parallel, "compile_layers", lambda made: compile_layers(made, backend))
    data = {"source": "files", "path": "*.txt", "tokenizer": "bpe", "layout": "pad", "length": 16, "eval_tokens": 99}
    # With this seed the first update has padded rows: without any, the graph for them is compiled for a later batch.
    cell = {"size": {**SIZE, "vocab": 280}, "gate": "gpas", "data": data, "seed": 2}
    cell["optim"] = {"lr": 1e-3, "warmup": 1, "steps": 5, "batch": 6}
    found = {}
    losses = {}
    # The run that is resumed need not be compiled, since this backend computes what layers do without it.
    runs = (("whole", "on", [], 99), ("half", "off", [], 3), ("resumed", "on", ["half"], 99))
    for name, compiled, earlier, updates in runs:
        torch._dynamo.reset()
        events = run(tmp_path, [name, cell, {"compile": compiled, "micro_batch": 4}, earlier, updates], ALONE)
        losses[name] = {event["step"]: event["loss"] for event in events["step"]}
        found[name] = sizes.copy()
        sizes.clear()
    assert cell_from(cell).stages[0].key in torch.compiler.config.cache_key_tag
    assert found["resumed"] == found["whole"], "the graphs of updates and those of evaluations"
    assert losses["whole"] == losses["half"] | losses["resumed"]


@pytest.mark.release
def test_graphs_do_not_depend_on_the_batches_before() -> None:
    """Padded, full and single rows have a graph each, whichever is first."""
    kinds = [(9, 5, 4, 2), (9, 9, 9, 9), (9,)]
    forward, backward = (graphs_of(network("pre"), [*order, *PADDED, *FULL]) for order in (kinds, kinds[::-1]))
    assert forward[3:] == backward[3:] == [[]] * 10
    # The final norm of a single row has the graph of packed rows, hence the sets.
    assert {code for codes in forward for code in codes} == {code for codes in backward for code in codes}


@pytest.mark.long
def test_padded_products_do_not_break_the_graph(monkeypatch: pytest.MonkeyPatch, counter: Any) -> None:
    plain = summed_loss(network("pre"), rows(*PADDED[0]), FP32)
    monkeypatch.setattr(layers, "prefers_aligned", lambda x: True)
    made = network("pre")
    compile_layers(made, counter)
    for lengths in PADDED:
        summed_loss(made, rows(*lengths), FP32).backward()
    torch.testing.assert_close(summed_loss(made, rows(*PADDED[0]), FP32), plain)
    assert counter.frame_count == 2


@pytest.mark.long
def test_attention_both_ways_compiles_once_for_each_kind_of_mask(counter: Any) -> None:
    """Full rows, padded rows, and rows of inputs and targets; none of them breaks the graph. What surrounds the layers
    (embedding, final norm, head) knows only full and padded rows."""
    made, plain = (build(parse_model({"size": SIZE, "family": "bert"})) for _ in range(2))
    compile_layers(made, counter)
    for lengths, prefix in (((9, 9), (9, 9)), ((9, 4), (9, 4)), ((9, 4), (5, 2)), ((8, 3), (8, 3))):
        targets = np.where(np.arange(9) < np.array(lengths)[:, None], TOKENS[:2], IGNORED)
        part = DeviceRows.of(TOKENS[:2], targets, FP32.device, np.array(prefix))
        ours, theirs = (summed_loss(network, part, FP32) for network in (made, plain))
        ours.backward()
        torch.testing.assert_close(ours, theirs)
    assert counter.frame_count == 3 + 3 * 2


@pytest.mark.long
@pytest.mark.parametrize("recompute", release_but([False, True], True))
def test_probes_and_recomputation_work_around_compiled_layers(recompute: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    torch._dynamo.reset()
    # aot_eager captures the graph without code generation, which needs a compiler and a minute.
    monkeypatch.setattr(parallel, "compile_layers", lambda made: compile_layers(made, "aot_eager"))
    model = parse_model({"size": SIZE, "norm": "lns", "gate": "gpas"})
    plain, compiled = (ParallelLayout(recompute=recompute, compiled=c).build(model, 42, FP32) for c in (False, True))
    found = []
    for made in (plain, compiled):
        with stream_statistics(made) as seen:
            summed_loss(made, rows(9, 5, 2, 1), FP32).backward()
        found.append([v.sum().item() for stream in seen for v in stream.values()])
    assert found[0] == pytest.approx(found[1], rel=1e-6)
    for name, parameter in plain.named_parameters():
        torch.testing.assert_close(compiled.get_parameter(name).grad, parameter.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.release
def test_a_compiled_training_that_is_resumed_computes_as_one_that_never_stopped(tmp_path: Path) -> None:
    # Shapes of padded batches differ: the first one after a resume is not the first one of the training.
    optim = {"lr": 1e-2, "warmup": 1, "steps": 4, "batch": 4}
    data = {"tokenizer": "bpe", "layout": "pad", "length": 24}
    made = cell_from(
        {"size": {**SIZE, "vocab": 300}, "gate": "gpas", "precision": "fp32", "optim": optim, "data": data}
    )

    def start() -> Loop:
        torch._dynamo.reset()
        # The last micro-batch of each update has one row, which has graphs of its own.
        return synthetic_loop(made, Resources(compile="on", micro_batch=3), padded=True)

    whole = start()
    for step in range(4):
        if step == 2:
            saved = save(tmp_path, made.stages[0].key, whole.network, whole.optimizer, whole.position)
        whole.update()
    part = start()
    part.position = checkpoint.load(saved, made.stages[0].key, part.network, part.optimizer)
    part.compile_for_first_update()
    part.update()
    part.update()
    expected = whole.network.state_dict()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in part.network.state_dict().items())


def test_processors_compile_for_trainings_of_hours(monkeypatch: pytest.MonkeyPatch) -> None:
    possible = {"here": True}
    monkeypatch.setattr(compiling, "_can_compile", lambda device: possible["here"])
    assert not worth_compiling(FP32.device, 1e14)
    assert worth_compiling(FP32.device, 1e16)
    assert worth_compiling(torch.device("cuda"), 1.0)
    possible["here"] = False
    assert not worth_compiling(FP32.device, 1e16)
    assert not worth_compiling(torch.device("cuda"), 1e16)


class IdleCasts(torch.overrides.TorchFunctionMode):
    """Collects what casts that change nothing return, with its memory, which nothing else can have then."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[torch.Tensor] = []

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        if function is torch.Tensor.to and result is args[0]:
            self.found.append(result)
        return result

    def returned(self, y: torch.Tensor) -> bool:
        """Return whether y has the memory of such a result."""
        return any(y.data_ptr() == result.data_ptr() for result in self.found)


@pytest.mark.parametrize("weights", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("inputs", [torch.float32, torch.bfloat16])
def test_no_function_of_a_compiled_layer_ends_with_an_idle_cast(inputs: torch.dtype, weights: torch.dtype) -> None:
    """Torch 2.11 would compile its gradients as zeros, without an error."""
    x = torch.randn(1, 6, 8, dtype=inputs)
    weight = torch.ones(8, dtype=weights)
    down = torch.ones(4, 8, dtype=inputs)
    index = torch.arange(6)
    functions: list[Callable[[SimpleNamespace], torch.Tensor]] = [
        lambda ctx: layers._Normed.forward(ctx, x, weight, 1e-6),
        lambda ctx: layers._GatedDown.forward(ctx, x, x, down, None),
        lambda ctx: packing._Spread.forward(ctx, x[0], index, index),
        lambda ctx: packing._Join.forward(ctx, x[0], index, index, index[:, None] >= 0),
    ]
    for forward in functions:
        with IdleCasts() as casts:
            y = forward(SimpleNamespace(save_for_backward=lambda *tensors: None))
        assert not casts.returned(y)
    with IdleCasts() as casts:
        y = (x + 1).to(x.dtype)
    assert casts.returned(y)


@pytest.mark.release
def test_layers_are_not_compiled_where_torch_compiles_other_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    precisions = [Precision(name, FP32.device) for name in compiling.TOLERANCES]
    assert all(compiling._error(one) <= compiling.TOLERANCES[one.name] for one in precisions)
    backward = layers._Normed.backward

    def zeros(ctx: Any, d_y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        return (*(0 * one for one in backward(ctx, d_y)[:2]), None)

    monkeypatch.setattr(
        layers._Normed,
        "backward",
        staticmethod(lambda ctx, d_y: (zeros if torch.compiler.is_compiling() else backward)(ctx, d_y)),
    )
    assert all(compiling._error(one) > 0.5 for one in precisions)
    compiling._can_compile.cache_clear()
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    monkeypatch.setattr(compiling, "_error", lambda precision: float(precision.name == "bf16"))
    with pytest.warns(UserWarning, match="compiles gradients that are off by 1 in bf16"):
        assert not worth_compiling(FP32.device, 1e16)
    compiling._can_compile.cache_clear()


@pytest.mark.long
def test_a_failing_compilation_is_a_warning_with_the_reason(tmp_path: Path) -> None:
    program = (
        "import torch\n"
        "from gpas_cli.train.compiling import worth_compiling\n"
        "print(worth_compiling(torch.device('cpu'), 1e16))"
    )
    environment = {**os.environ, "CXX": "no-such-compiler", "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert done.stdout == "False\n"
    assert "layers are not compiled, which makes training slower" in done.stderr
    assert "no-such-compiler" in done.stderr


@pytest.mark.parametrize("taken", ["", "writable", "link"])
def test_compiled_kernels_are_kept_in_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: str) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    usual = tmp_path / f"gpas-kernels-{os.geteuid()}"
    if taken == "writable":
        usual.mkdir()
        usual.chmod(0o777)
    elif taken == "link":
        usual.symlink_to(tmp_path)
    monkeypatch.setenv(_KERNELS, "/chosen")
    _keep_kernels_private()
    assert os.environ[_KERNELS] == "/chosen"
    monkeypatch.delenv(_KERNELS)
    _keep_kernels_private()
    folder = Path(os.environ[_KERNELS])
    assert (folder == usual) is (taken == "")
    assert folder.stat().st_mode & 0o777 == 0o700

"""Gates: their activations, their gradients and what they save; paths through the network, with skipped layers and
factors; networks beside those of the reference."""

import json
import math
import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from canonical_names import canonical_parameters
from gate_activations import ALL_ACTIVATIONS
from gate_placements import FEW, spread, two_layers
from golden_inputs import forward_case, probe
from golden_networks import GOLDEN, close, filled
from moved_networks import moved_network
from torch import Tensor, nn

from gpas_cli.model import layers as gate_module
from gpas_cli.model.layers import GpasGate, torch_activation
from gpas_cli.model.llama import Llama
from gpas_cli.model.stream import observed_inputs
from gpas_cli.spec.depth import ActiveLayers
from gpas_cli.spec.gate import ACTIVATIONS, Gate, activation
from gpas_cli.spec.norm import SCHEMES

SIZE = {"hidden": 16, "ffn": 24, "heads": 2, "layers": 2, "vocab": 50}
TOKENS = torch.randint(0, 50, (3, 9), generator=torch.Generator().manual_seed(3))


def network(norm: str, **gate: object) -> Llama:
    return moved_network({"size": SIZE, "norm": two_layers(norm), "gate": {"init": [0.3, -0.2], **gate}})


def gradients(made: Llama, batches: int = 1) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the gradients of all gates and those of all other parameters, accumulated over micro-batches."""
    made.zero_grad()
    for shift in range(1, 1 + batches):
        F.cross_entropy(made(TOKENS).flatten(0, 1), TOKENS.roll(shift, 1).flatten()).backward()
    gates = torch.cat([gate.alpha.grad for gate in made.gates()])
    return gates, {name: p.grad for name, p in made.named_parameters() if not name.endswith("alpha")}


def by_formula(made: Llama, monkeypatch: pytest.MonkeyPatch, batches: int = 1) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the same from autograd, which differentiates the formula."""
    with monkeypatch.context() as patched:
        formula = SimpleNamespace(apply=lambda u, share, _: u - share * u.detach())
        patched.setattr(gate_module, "_Gated", formula)
        return gradients(made, batches)


def error(ours: Tensor, exact: Tensor, scale: float) -> float:
    return float((ours - exact).norm()) / scale


@pytest.mark.parametrize(("norm", "site", "stop_gradient", "share"), spread((True, False), ("layer", "sublayer")))
def test_the_gradients_are_those_of_the_formula(
    norm: str, site: str, stop_gradient: bool, share: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To rounding: in float64, and in float32 with an error like that of autograd."""
    made = network(norm, site=site, stop_gradient=stop_gradient, share=share)
    exact, others = by_formula(made, monkeypatch)
    ours, our_others = gradients(made)
    # A gate whose own norm follows (post, after-sublayer) changes nothing: its gradient is 0 up to rounding.
    torch.testing.assert_close(ours, exact, rtol=1e-11, atol=1e-14)
    torch.testing.assert_close(our_others, others, rtol=1e-10, atol=1e-13)
    narrow = made.float()
    theirs = by_formula(narrow, monkeypatch)[0]
    scale = max(float(exact.norm()), 1e-3)
    assert error(gradients(narrow)[0], exact, scale) <= 8 * error(theirs, exact, scale) + 1e-6


@pytest.mark.parametrize(("norm", "site"), FEW)
def test_a_stream_in_bfloat16(norm: str, site: str) -> None:
    """Every layer and the final norm read bfloat16, and the gradients are those of float64 up to its rounding."""
    made = network(norm, site=site)
    exact, _ = gradients(made)
    narrow = made.float()
    narrow.round_stream(torch.bfloat16)
    read = set()
    modules = [*narrow.model.layers, narrow.model.norm]
    with observed_inputs(modules, lambda _, x: read.add(x.dtype)), torch.autocast("cpu", torch.bfloat16):
        found, others = gradients(narrow)
    assert read == {torch.bfloat16}
    assert {gradient.dtype for gradient in (found, *others.values())} == {torch.float32}
    assert error(found, exact, max(float(exact.norm()), 1e-2)) < 0.4  # without norms, rounding adds up


@pytest.mark.parametrize("activation", ALL_ACTIVATIONS)
def test_every_activation(activation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = network("pre", activation=activation)
    ours, exact = gradients(made, batches=2)[0], by_formula(made, monkeypatch, batches=2)[0]
    torch.testing.assert_close(ours, exact, rtol=1e-11, atol=1e-14)


@pytest.mark.parametrize("saves_input", [True, False])
@pytest.mark.parametrize("alpha", [1.0, 1.0 - 2.0**-24, 1.0 + 2.0**-23, -3.0])
def test_a_gate_that_keeps_nothing_of_its_input_has_the_exact_gradient(alpha: float, saves_input: bool) -> None:
    gate = GpasGate(Gate(activation="identity"), 0.0)
    torch.nn.init.constant_(gate.alpha, alpha)
    x = torch.randn(5, 7, generator=torch.Generator().manual_seed(1)).requires_grad_()
    y = gate(x, saves_input=saves_input)
    torch.testing.assert_close(y.double(), (1 - gate.alpha.double()) * x.double(), rtol=1e-6, atol=1e-15)
    d_y = torch.randn(5, 7, generator=torch.Generator().manual_seed(2))
    y.backward(d_y)
    assert torch.equal(x.grad, d_y)
    expected = -(d_y.double() * x.detach().double()).sum()
    torch.testing.assert_close(gate.alpha.grad.double()[0], expected, rtol=1e-6, atol=0)


def saved_bytes(spec: dict[str, object]) -> int:
    """Return the bytes of the tensors that a forward pass in float32 saves, parameters left out."""
    made = moved_network({"size": SIZE, **spec}).float()
    parameters = {p.untyped_storage().data_ptr() for p in made.parameters()}
    saved: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept.append(tensor)  # so that no other tensor takes its place
        if storage.data_ptr() not in parameters:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    kept: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        made(TOKENS)
    return sum(saved.values())


@pytest.mark.parametrize("norm", SCHEMES)
def test_gates_save_no_activation_that_the_network_does_not_save(norm: str) -> None:
    """At the paper's position a gate saves some numbers besides; at the end of a branch one activation."""
    without = saved_bytes({"norm": two_layers(norm)})
    gates = 2 * SIZE["layers"]  # type: ignore[operator]
    activation = TOKENS.numel() * SIZE["hidden"] * 4  # type: ignore[operator]
    assert saved_bytes({"norm": two_layers(norm), "gate": "gpas"}) <= without + 32 * gates
    branch = saved_bytes({"norm": two_layers(norm), "gate": {"site": "after-module"}})
    assert branch <= without + gates * (activation + 32)


def test_fixed_and_frozen_gates_have_no_gradient() -> None:
    made = network("pre", learnable=False)
    made(TOKENS).sum().backward()
    assert all(gate.alpha.grad is None for gate in made.gates())
    frozen = network("pre")
    for gate in frozen.gates():
        gate.alpha.requires_grad_(False)
    frozen(TOKENS).sum().backward()
    assert all(gate.alpha.grad is None for gate in frozen.gates())


@pytest.mark.parametrize("act", [*ALL_ACTIVATIONS, *ACTIVATIONS.values()])
def test_values_and_gradients_are_those_of_the_numbers(act: str) -> None:
    points = [0.25 * step for step in range(-12, 13)]  # 0 and ties included
    alphas = torch.tensor(points, dtype=torch.float64, requires_grad=True)
    values = torch_activation(act)(alphas)
    values.sum().backward()
    known = [activation(act, a) for a in points]
    assert values.tolist() == pytest.approx([value for value, _ in known], rel=1e-13, abs=1e-15)
    assert alphas.grad.tolist() == pytest.approx([slope for _, slope in known], rel=1e-13, abs=1e-15)


@pytest.mark.parametrize("act", ALL_ACTIVATIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_shape_and_dtype_are_kept(act: str, dtype: torch.dtype) -> None:
    found = torch_activation(act)(torch.tensor([0.3], dtype=dtype))
    assert (found.shape, found.dtype) == ((1,), dtype)


FORWARD = sorted(
    path.stem for path in GOLDEN.glob("*.json") if re.match(r"(?!train_|init_stats|lr_schedule)", path.stem)
)


def language_loss(network: Llama, ids: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    tokens = torch.from_numpy(ids)
    logits = network(tokens)
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten(), ignore_index=0), logits


@pytest.mark.parametrize(
    ("name", "case", "dtype", "tolerance"),
    [
        *((name, "padded", torch.float64, 1e-9) for name in FORWARD),
        ("pre_gpas", "plain", torch.float64, 1e-9),
        *((name, "padded", torch.float32, 1e-4) for name in FORWARD if not re.search("_embed|_act|_pos", name)),
    ],
)
def test_forward_and_gradients(name: str, case: str, dtype: torch.dtype, tolerance: float) -> None:
    golden = json.loads((GOLDEN / f"{name}.json").read_text())["cases"][case]
    network = filled(name, dtype)
    hidden = []
    for layer in network.model.layers:
        layer.register_forward_pre_hook(lambda _, args: hidden.append(args[0].detach().double()))
    network.model.norm.register_forward_hook(lambda _, __, out: hidden.append(out.detach().double()))
    loss, logits = language_loss(network, forward_case(case))
    loss.backward()
    flat = logits.detach().double().numpy()
    close(loss.item(), golden["loss"], tolerance)
    close(np.linalg.norm(flat), golden["logits"]["l2"], tolerance)
    close([flat.sum(), probe(flat)], [golden["logits"]["sum"], golden["logits"]["probe"]], 10 * tolerance)
    close([h.norm().item() for h in hidden], golden["hidden_l2"], tolerance)
    close([probe(h) for h in hidden], golden["hidden_probe"], 10 * tolerance)
    compare_gradients(network, golden, tolerance)


def compare_gradients(network: Llama, golden: dict, tolerance: float) -> None:
    gradients = {name: p.grad.double().numpy() for name, p in canonical_parameters(network).items()}
    assert set(golden["grads"]) - set(gradients) <= {name for name in golden["grads"] if name.endswith(".gate")}
    for name, gradient in gradients.items():
        if name in golden["grads"]:
            # A gate's gradient is a sum over all activations; here the absolute values of its terms add up to 3 to 5.
            scale = 1e-2 if name.endswith(".gate") else 1e-3
            close(np.linalg.norm(gradient), golden["grads"][name]["l2"], tolerance, scale)
            close(probe(gradient), golden["grads"][name]["probe"], 10 * tolerance, scale)
    gates = [gradient.item() for name, gradient in gradients.items() if name.endswith(".gate") and "mlp" not in name]
    if gates:
        close(gates, golden["gate_grads"], 10 * tolerance)
    close(np.sqrt(sum((g**2).sum() for g in gradients.values())), golden["total_grad_l2"], tolerance)


# An eps that is far below the smallest mean square of these streams, so that gate gradients are exact up to rounding.
DEEP = {"hidden": 16, "ffn": 24, "heads": 2, "layers": 5, "vocab": 50, "eps": 1e-15}
SKIPPING = ActiveLayers((1, 3, 5), (1.0, 1.0, 1.0))
SCALED = ActiveLayers((1, 3, 4), (math.sqrt(2), 1.0, math.sqrt(2)))


def deep(norm: str) -> Llama:
    return moved_network({"size": DEEP, "norm": norm, "gate": {"init": [0.3, -0.2, 0.15, 0.4, 0.1]}})


def backward(made: Llama, active: ActiveLayers | None) -> Tensor:
    """Return the loss, after adding its gradients."""
    logits = made(TOKENS, active=active)
    loss = F.cross_entropy(logits.flatten(0, 1), TOKENS.roll(1, 1).flatten())
    loss.backward()
    return loss.detach()


@pytest.mark.parametrize("norm", SCHEMES)
def test_a_path_equals_the_network_without_the_other_layers(norm: str) -> None:
    """Loss and gradients, to the bit; what is skipped has no gradient at all."""
    made = deep(norm)
    loss = backward(made, SKIPPING)
    skipped = {name for name, p in made.named_parameters() if p.grad is None}
    assert skipped == {
        name for name, _ in made.named_parameters() if name.startswith(("model.layers.1.", "model.layers.3."))
    }
    short = deep(norm)
    short.model.layers = nn.ModuleList(short.model.layers[layer - 1] for layer in SKIPPING.layers)
    assert torch.equal(backward(short, None), loss)
    pair = (sorted(network.named_parameters()) for network in (made, short))
    ours, theirs = ([p.grad for _, p in named if p.grad is not None] for named in pair)
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("norm", SCHEMES)
def test_factors_scale_what_a_layer_adds(norm: str) -> None:
    made = deep(norm)
    x = made.model.embed_stages(made.model.embed_tokens(TOKENS))
    positions = made.model.positions(x)
    for layer, factor in zip(SCALED.layers, SCALED.factors, strict=True):
        x = x + factor * (made.model.layers[layer - 1](x, positions) - x)
    expected = F.linear(made.model.norm(x), made.lm_head.weight)
    torch.testing.assert_close(made(TOKENS, active=SCALED), expected, rtol=1e-10, atol=1e-12)


def test_all_layers_with_the_factor_1_are_the_network_to_the_bit_and_no_layer_is_the_embedding() -> None:
    made = deep("pre")
    everything = ActiveLayers(tuple(range(1, 6)), (1.0,) * 5)
    assert torch.equal(made(TOKENS, active=everything), made(TOKENS))
    nothing = made(TOKENS, active=ActiveLayers((), ()))
    assert torch.equal(nothing, F.linear(made.model.norm(made.model.embed_tokens(TOKENS)), made.lm_head.weight))

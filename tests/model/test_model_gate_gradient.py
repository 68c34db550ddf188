"""The gates' gradients from the weights', compared with autograd for every scheme, site and sharing, in float64."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from gate_activations import ALL_ACTIVATIONS
from moved_networks import moved_network
from torch.utils._python_dispatch import TorchDispatchMode

from gpas_cli.errors import InvalidExperiments
from gpas_cli.model import gate_gradient
from gpas_cli.model.gate_gradient import GateGradients, NotDetermined
from gpas_cli.model.llama import Llama, build
from gpas_cli.spec.gate import SITES
from gpas_cli.spec.norm import SCHEMES
from gpas_cli.spec.parse_cell import parse_model

# An eps that is far below the smallest mean square of these streams: the identity is exact up to their ratio.
SIZE = {"hidden": 16, "ffn": 24, "heads": 2, "layers": 4, "vocab": 50, "eps": 1e-15}
TOKENS = torch.randint(0, 50, (3, 9), generator=torch.Generator().manual_seed(3))
STARTS = [0.3, -0.2, 0.15, 0.4]


def network(norm: str, family: object = "llama", **gate: object) -> Llama:
    return moved_network({"size": SIZE, "norm": norm, "family": family, "gate": {"init": STARTS, **gate}})


def gradients(made: Llama, batches: int = 2) -> None:
    """Return the gradients accumulated over two micro-batches."""
    for seed in range(batches):
        targets = TOKENS.roll(seed + 1, 1)
        F.cross_entropy(made(TOKENS).flatten(0, 1), targets.flatten()).backward()


def both(made: Llama) -> tuple[torch.Tensor, torch.Tensor]:
    """alpha.grad of all gates from autograd, and from the weights' gradients."""
    gradients(made)
    oracle = torch.cat([gate.alpha.grad for gate in made.gates()])
    made.zero_grad()
    recursion = GateGradients(made)
    gradients(made)
    assert all(gate.alpha.grad is None for gate in made.gates())
    recursion.fill()
    return torch.cat([gate.alpha.grad for gate in made.gates()]), oracle


def determined(norm: str, **gate: object) -> bool:
    try:
        GateGradients(network(norm, **gate))
    except NotDetermined:
        return False
    return True


@pytest.mark.parametrize("stop_gradient", [True, False])
@pytest.mark.parametrize("site", SITES)
@pytest.mark.parametrize("norm", SCHEMES)
def test_gate_gradients_equal_autograds_if_the_weights_determine_them(
    norm: str, site: str, stop_gradient: bool
) -> None:
    for share in ("layer", "sublayer"):
        try:
            made = network(norm, site=site, stop_gradient=stop_gradient, share=share)
        except InvalidExperiments:
            pytest.skip("refused: this gate could change nothing")
        try:
            ours, oracle = both(made)
        except NotDetermined:
            continue
        # A gate whose own norm follows (post, after-sublayer) changes nothing: both gradients are 0 up to rounding.
        torch.testing.assert_close(ours, oracle, rtol=1e-9, atol=1e-13)


def test_undetermined_gradient_slots() -> None:
    """On the stream that enters a post-type sub-layer, on a skip path below a bottom-to-top connection."""
    made = {(norm, site) for norm, site in itertools.product(SCHEMES, SITES) if not _refused(norm, site)}
    without = {pair for pair in made if not determined(pair[0], site=pair[1])}
    entry = {(norm, "before-sublayer") for norm in ("post", "deepnorm", "mix", "b2t")}
    skip = {("b2t", "home"), ("b2t", "before-sublayer-shortcut")}
    assert without == entry | skip


def _refused(norm: str, site: str) -> bool:
    try:
        network(norm, site=site)
    except InvalidExperiments:
        return True
    return False


@pytest.mark.parametrize("stop_gradient", [True, False])
@pytest.mark.parametrize("site", SITES)
@pytest.mark.parametrize("norm", SCHEMES)
def test_the_system_of_equations_gives_the_same(
    norm: str, site: str, stop_gradient: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on GPUs, where the recursion is solved as one triangular system."""
    for share in ("layer", "sublayer"):
        found = []
        for on_host in (True, False):
            monkeypatch.setattr(gate_gradient, "_on_host", lambda _, on_host=on_host: on_host)
            try:
                found.append(both(network(norm, site=site, stop_gradient=stop_gradient, share=share))[0])
            except InvalidExperiments:
                pytest.skip("refused: this gate could change nothing")
            except NotDetermined:
                break
        else:
            torch.testing.assert_close(found[1], found[0], rtol=1e-12, atol=1e-15)


class Counted(TorchDispatchMode):
    """Counts operations that compute."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not function.is_view and function is not torch.ops.aten.detach.default:
            self.names.append(str(function))
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("stop_gradient", [True, False])
@pytest.mark.parametrize("family", ["llama", "gpt"])
def test_on_a_gpu_the_number_of_operations_does_not_depend_on_the_depth(
    family: str, stop_gradient: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate_gradient, "_on_host", lambda _: False)
    found = []
    for layers in (4, 8):
        size = {**SIZE, "layers": layers}
        gate = {"stop_gradient": stop_gradient, "init": 0.1}
        made = build(parse_model({"size": size, "norm": "sandwich", "family": family, "gate": gate}))
        recursion = GateGradients(made)
        gradients(made)
        recursion.fill()  # the constants of the system are moved to the device once
        with Counted() as counted:
            recursion.fill()
        found.append(counted.names)
    assert found[0] == found[1]
    assert len(found[0]) < 30


@pytest.mark.parametrize("activation", ALL_ACTIVATIONS)
def test_every_activation(activation: str) -> None:
    torch.testing.assert_close(*both(network("pre", activation=activation)), rtol=1e-9, atol=0)


@pytest.mark.parametrize("norm", ["pre", "post", "sandwich"])
@pytest.mark.parametrize(
    "family", ["gpt", {"like": "llama", "norm": "layernorm"}, {"qk_norm": "head"}, {"like": "gpt", "qk_norm": "width"}]
)
def test_biases_and_layernorm_are_part_of_it(norm: str, family: object) -> None:
    torch.testing.assert_close(*both(network(norm, family)), rtol=1e-9, atol=1e-12)


def test_fixed_gates_and_frozen_matrices() -> None:
    with pytest.raises(NotDetermined):
        GateGradients(network("pre", learnable=False))
    frozen = network("pre")
    frozen.model.layers[1].mlp.down_proj.weight.requires_grad_(False)
    with pytest.raises(NotDetermined):
        GateGradients(frozen)
    assert all(gate.in_graph for gate in frozen.gates())


def test_the_forward_pass_and_every_other_gradient_are_the_same() -> None:
    for norm, stop in itertools.product(("pre", "deepnorm"), (True, False)):
        made = network(norm, stop_gradient=stop)
        before = made(TOKENS)
        gradients(made)
        expected = {name: p.grad for name, p in made.named_parameters() if not name.endswith("alpha")}
        made.zero_grad()
        GateGradients(made)
        torch.testing.assert_close(made(TOKENS), before, rtol=1e-13, atol=1e-13)
        gradients(made)
        for name, gradient in expected.items():
            torch.testing.assert_close(made.get_parameter(name).grad, gradient, rtol=1e-10, atol=1e-13)

"""Blocks removed from networks of transformers and of this program: the same as hooks written here, and refusals."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
import torch
from exporting import needs_transformers
from torch import Tensor, nn

from gpas_cli.errors import GpasError
from gpas_cli.extensions.layers import blocks as blocks_module
from gpas_cli.extensions.layers.blocks import Removed, find_blocks, own_blocks
from gpas_cli.model.llama import build
from gpas_cli.model.stream import observed_inputs
from gpas_cli.spec.norm import SCHEMES
from gpas_cli.spec.parse_cell import parse_model

LAYERS = 4
SHAPE = {"num_hidden_layers": LAYERS, "hidden_size": 16, "num_attention_heads": 2, "vocab_size": 90}
KINDS = ("llama", "gpt2", "qwen2", "gpt_neox", "bert")
PRE_LN = ("llama", "gpt2", "qwen2", "gpt_neox")
DISTILBERT = {"dim": 16, "n_layers": LAYERS, "n_heads": 2, "hidden_dim": 24}  # its names for the shape
TOKENS = torch.arange(3 * 11).view(3, 11) % 90


def made(kind: str, **more: Any) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM

    torch.manual_seed(1)
    config = AutoConfig.for_model(
        kind, **SHAPE, intermediate_size=24, num_key_value_heads=2, is_decoder=True, max_position_embeddings=32, **more
    )
    head = AutoModelForMaskedLM if kind == "distilbert" else AutoModelForCausalLM
    network = head.from_config(config).eval()
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.dim() == 2:
                parameter.mul_(8)  # so that every layer matters
    return network


def logits_of(network: Any) -> Callable[[], Tensor]:
    @torch.no_grad()
    def logits() -> Tensor:
        found: Tensor = network(input_ids=TOKENS).logits
        return found

    return logits


def list_of(network: Any) -> nn.ModuleList:
    return max(
        (found for found in network.modules() if isinstance(found, nn.ModuleList)),
        key=lambda found: sum(parameter.numel() for parameter in found.parameters()),
    )


@contextmanager
def hooked(modules: list[nn.Module], answer: Callable[[Any, Any], Any]) -> Iterator[None]:
    """Replace the output of each module by `answer(input, output)`, with hooks of torch."""

    def hook(_module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
        return answer(args[0] if args else kwargs["hidden_states"], output)

    with ExitStack() as stack:
        for module in modules:
            stack.enter_context(module.register_forward_hook(hook, with_kwargs=True))
        yield


def unchanged(x: Any, output: Any) -> Any:
    return (x, *output[1:]) if isinstance(output, tuple) else x


def nothing(_x: Any, output: Any) -> Any:
    return (torch.zeros_like(output[0]), *output[1:]) if isinstance(output, tuple) else torch.zeros_like(output)


@needs_transformers
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("kept", [0.25, 0.0])
def test_a_removal_is_that_of_hooks_without_trace(kind: str, kept: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also without memory for the streams that the next removal would start from."""
    monkeypatch.setattr(blocks_module, "_KEPT_SHARE", kept)
    network = made(kind)
    logits = logits_of(network)
    whole = logits()
    found = find_blocks(network, kind, logits)
    for first, count in [(layer, 1) for layer in range(1, LAYERS + 1)] + [(3, 2), (1, 3)]:
        with found.without(Removed(first, count), "text"):
            ours = logits()
        with hooked(list(list_of(network))[first - 1 : first - 1 + count], unchanged):
            expected = logits()
        assert torch.equal(ours, expected), (first, count)
        assert not torch.equal(ours, whole)
    assert torch.equal(logits(), whole)
    assert not [name for layer in found.layers for name in vars(layer) if name == "forward"]


@needs_transformers
@pytest.mark.parametrize("kind", PRE_LN)
def test_a_sublayer_is_removed_alone(kind: str) -> None:
    network = made(kind)
    logits = logits_of(network)
    found = find_blocks(network, kind, logits)
    assert found.fault == ""
    for layer in range(1, LAYERS + 1):
        block = list_of(network)[layer - 1]
        for part, names in (("attention", ("self_attn", "attn", "attention")), ("feed_forward", ("mlp",))):
            module = next(getattr(block, name) for name in names if hasattr(block, name))
            with found.without(Removed(layer, part=part), part):
                ours = logits()
            with hooked([module], nothing):
                assert torch.equal(ours, logits())


@needs_transformers
def test_layers_before_a_removal_are_not_computed_again() -> None:
    """The cost of removing each of L layers: about L / 2 networks, not L."""
    network = made("llama")
    logits = logits_of(network)
    found = find_blocks(network, "llama", logits)
    computed: list[int] = []
    for layer in found.layers:
        layer.mlp.register_forward_hook(lambda *_: computed.append(1))
    for number in range(1, LAYERS + 1):
        with found.without(Removed(number), "text"):
            logits()
    # Layer 1: the three after it, and itself for the next one; and so on.
    assert len(computed) == sum(LAYERS - layer + (layer < LAYERS) for layer in range(1, LAYERS + 1))


@needs_transformers
def test_the_stream_is_observed_where_it_enters_and_leaves() -> None:
    network = made("gpt2")
    logits = logits_of(network)
    found = find_blocks(network, "gpt2", logits)
    seen: list[Tensor] = []
    with found.observed(lambda _, x: seen.append(x)):
        logits()
    with torch.no_grad():
        states = network(input_ids=TOKENS, output_hidden_states=True).hidden_states
    assert len(seen) == LAYERS + 1
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(seen[:-1], states[:-1], strict=True))
    assert torch.equal(network.transformer.ln_f(seen[-1]), states[-1])


@needs_transformers
@pytest.mark.parametrize("kind", ["bert", "distilbert"])
def test_a_sublayer_is_removed_with_the_norm_after_its_sum(kind: str) -> None:
    """As in our own Post-LN: the sub-layer passes the stream that it reads."""
    network = made(kind, **DISTILBERT)
    logits = logits_of(network)
    found = find_blocks(network, kind, logits)
    assert found.fault == ""
    for layer in range(1, LAYERS + 1):
        block = list_of(network)[layer - 1]
        with found.without(Removed(layer, part="attention"), "attention"):
            ours = logits()
        if kind == "bert":
            by_hand = hooked([block.attention], unchanged)
        else:
            by_hand = hooked_to_input(block.sa_layer_norm, entering=block)
        with by_hand:
            assert torch.equal(ours, logits())
        with found.without(Removed(layer, part="feed_forward"), "feed_forward"):
            ours = logits()
        first, last = (
            (block.attention.output.LayerNorm, block.output)
            if kind == "bert"
            else (block.sa_layer_norm, block.output_layer_norm)
        )
        with hooked_to_input(last, leaving=first):
            assert torch.equal(ours, logits())


@contextmanager
def hooked_to_input(
    module: nn.Module, entering: nn.Module | None = None, leaving: nn.Module | None = None
) -> Iterator[None]:
    """Replace the output of a module by the stream that entered, or that left, another one before it."""
    kept: list[Tensor] = []

    def enter(_module: nn.Module, args: Any, kwargs: Any) -> None:
        kept.append(args[0] if args else kwargs["hidden_states"])

    with ExitStack() as stack:
        stack.enter_context(module.register_forward_hook(lambda *_: kept[-1]))
        if entering is not None:
            stack.enter_context(entering.register_forward_pre_hook(enter, with_kwargs=True))
        if leaving is not None:
            stack.enter_context(leaving.register_forward_hook(lambda _m, _x, y: kept.append(y)))
        yield


class _ScaledSum(nn.Module):
    """N(2 x + f(x)): the norm reads something else than the sum of stream and sub-layer."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.ffn, self.norm = nn.Linear(4, 4), nn.Linear(4, 4), nn.LayerNorm(4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(2 * x + self.attention(x))
        found: Tensor = self.norm(2 * x + self.ffn(x))
        return found


def test_other_sums_than_that_of_stream_and_sublayer_forbid_the_removal_of_sublayers() -> None:
    torch.manual_seed(0)
    layers = nn.ModuleList([_ScaledSum() for _ in range(3)])

    def probe() -> Tensor:
        x = torch.randn(1, 5, 4, generator=torch.Generator().manual_seed(1))
        for layer in layers:
            x = layer(x)
        return x

    found = find_blocks(nn.Sequential(layers), "theirs", probe)
    assert found.fault == "without both, a layer is not the identity, and no norm reads exactly x + f(x)"


class _Network(nn.Module):
    """Linear layers that are applied by a function."""

    def __init__(self, layers: int, run: Callable[[Any, Tensor], Tensor]):
        super().__init__()
        self.run = run
        if layers:
            self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(layers)])

    def forward(self) -> Tensor:
        return self.run(getattr(self, "layers", ()), torch.ones(1, 2, 4))


def skipping(layers: Any, x: Tensor) -> Tensor:
    """Apply layers that also read what is not in the stream."""
    first = x
    for layer in layers:
        x = layer(x) + first
    return x


@pytest.mark.parametrize(
    ("network", "reason"),
    [
        # one layer three times, as in ALBERT
        (_Network(1, lambda layers, x: layers[0](layers[0](layers[0](x)))), "applied 3 times: layers are shared"),
        (_Network(3, skipping), "layer 2 does not read what layer 1 returns"),
        (_Network(0, lambda _, x: x), "has no list of layers"),
    ],
)
def test_a_network_without_residual_blocks_is_refused(network: nn.Module, reason: str) -> None:
    with pytest.raises(GpasError, match=reason):
        find_blocks(network, "theirs", network)


@needs_transformers
@pytest.mark.parametrize("scheme", [scheme for scheme in SCHEMES if scheme != "value-residual"])
@pytest.mark.parametrize("part", ["attention", "feed_forward"])
def test_a_sublayer_of_our_networks_passes_the_stream_unchanged(scheme: str, part: str) -> None:
    size = {"hidden": 16, "ffn": 24, "heads": 2, "layers": LAYERS, "vocab": 90}
    network = build(parse_model({"size": size, "norm": scheme, "gate": "gpas"}), seed=2)
    found = own_blocks(network)
    streams: list[Tensor] = []
    block = network.model.blocks()[1]
    with torch.no_grad(), found.without(Removed(2, part=part)):
        with observed_inputs(network.model.layers[1:3], lambda _, x: streams.append(x)):
            network(TOKENS)
        entering, leaving = streams
        if part == "attention":
            expected = block._feed_forward.apply(entering, block.mlp, entering if block.bottom else None)
        else:
            positions = network.model.positions(entering)
            expected = block._attention.apply(entering, lambda h: block.self_attn(h, positions))
        assert torch.equal(leaving, expected)

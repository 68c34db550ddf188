"""The residual blocks of a network, and the network without some of them.

A removed block returns its input: the residual stream passes it unchanged. A sub-layer that is removed alone adds
nothing to the stream. The parameters stay where they are, and nothing is copied or loaded again.

Blocks are removed one after the other, so the stream that enters block l + 1 is kept while the network is evaluated
without block l, and the next evaluation starts from it. Removing each of L blocks costs about L / 2 evaluations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import psutil
import torch
from torch import Tensor, nn

from gpas_cli.errors import GpasError
from gpas_cli.evaluate.foreign import ForeignNetwork
from gpas_cli.extensions.layers.stage import SUBLAYERS
from gpas_cli.model.llama import Llama
from gpas_cli.structure import Frozen

_KEPT_SHARE = 0.25  # of the free memory, for the streams that enter a block
_ATTENTION_NAMES = ("self_attn", "attn", "attention", "self_attention")
_FFN_NAMES = ("mlp", "feed_forward", "ffn", "block_sparse_moe", "fc2")

Forward = Callable[..., Any]
_Call = tuple[nn.Module, tuple[Any, ...], Tensor]  # of a module: its inputs and its result


class Removed(Frozen):
    """What is left out: `count` blocks from block `first` = 1, 2, ... on, or their sub-layers `part` alone. Nothing if
    `first` is 0. `how` says why these blocks: "last" and "closest" are groups of several sizes."""

    first: int = 0
    count: int = 1
    part: str = ""
    how: str = ""

    @property
    def series(self) -> str:
        """What its series by layer is called after the name of the quantity: "", attention, feed_forward, last, ..."""
        return self.part or self.how

    @property
    def label(self) -> str:
        """Its name in events, "" for a whole block or nothing: "attention", "last 4"."""
        return f"{self.how} {self.count}" if self.how else self.part


WHOLE = Removed()


class _Sublayer(Frozen):
    """A sub-layer: `module` returns what is added to the stream. Without it, a method of each owner in `left_out` is
    replaced: (owner, name of the method, the function of `_replaced` in its place)."""

    module: nn.Module
    left_out: Sequence[tuple[Any, str, Forward]]

    @contextmanager
    def without(self) -> Iterator[None]:
        """Leave out the sub-layer in the forward passes inside the context."""
        with ExitStack() as stack:
            for owner, name, made in self.left_out:
                stack.enter_context(_replaced(owner, name, made))
            yield


@dataclass(eq=False)
class Blocks:
    """The residual blocks of a network, first to last. A block returns the stream, or a tuple of `outputs` objects that
    begins with it. attentions: the attention of each block, empty if none was found."""

    layers: Sequence[nn.Module]
    sublayers: dict[str, list[_Sublayer]]  # by part of SUBLAYERS those of each block
    outputs: int = 0
    joined: str = ""  # why no block can be removed at all
    fault: str = ""  # why sub-layers cannot be removed alone, "" if they can
    _kept: Sequence[Tensor | None] = ()  # by forward pass the stream that enters block `_entered`
    _entered: int = 0
    _evaluation: str = ""

    def __post_init__(self) -> None:
        self.attentions = [one.module for one in self.sublayers.get(SUBLAYERS[0], ())]

    def __len__(self) -> int:
        return len(self.layers)

    @contextmanager
    def observed(self, observe: Callable[[int, Tensor], None]) -> Iterator[None]:
        """Call `observe` with i and the stream that enters block i + 1, and with L and the one that leaves the last."""

        def watched(place: int, forward: Forward, *args: Any, **kwargs: Any) -> Any:
            observe(place, _entering(args, kwargs).detach())
            found = forward(*args, **kwargs)
            if place == len(self.layers) - 1:
                observe(place + 1, _stream(found).detach())
            return found

        with ExitStack() as stack:
            for place, layer in enumerate(self.layers):
                stack.enter_context(_replaced(layer, "forward", partial(watched, place)))
            yield

    @contextmanager
    def outputs_observed(self, observe: Callable[[str, int, Tensor], None]) -> Iterator[None]:
        """Call `observe` with the part, i and what that sub-layer of block i + 1 returns, (1, tokens, hidden), before
        any norm, gate or factor of its branch. Not at all if there is a `fault`."""
        with ExitStack() as stack:
            for part, sublayers in self.sublayers.items() if not self.fault else ():
                for place, one in enumerate(sublayers):

                    def hook(_module: nn.Module, _x: object, y: Any, part: str = part, place: int = place) -> None:
                        observe(part, place, _stream(y).detach().flatten(0, -2)[None])

                    stack.callback(one.module.register_forward_hook(hook).remove)
            yield

    @contextmanager
    def without(self, removed: Removed, evaluation: str = "") -> Iterator[None]:
        """Leave out `removed` in the forward passes inside the context.

        `evaluation` names these passes: if they are the same as those of the last context of that name, without the
        block before, they start from the streams that it kept. "" keeps none. Raises GpasError if blocks are `joined`.
        """
        if removed.first and self.joined:
            raise GpasError(self.joined)
        if not removed.first:
            yield
            return
        before, first = range(removed.first - 1), removed.first - 1
        ready = evaluation and (self._evaluation, self._entered) == (evaluation, removed.first)
        passes = iter(self._kept if ready else ())
        following: list[Tensor | None] = []
        free = _free_bytes(self.layers[first]) if evaluation and removed.first < len(self.layers) else 0
        entering: list[Tensor | None] = [None]  # of this pass

        def skipping(forward: Forward, *args: Any, **kwargs: Any) -> Any:
            return forward(*args, **kwargs) if entering[0] is None else self._identity(forward, *args, **kwargs)

        def beginning(forward: Forward, *args: Any, **kwargs: Any) -> Any:
            nonlocal free
            x = entering[0] if entering[0] is not None else _entering(args, kwargs)
            assert x.shape == _entering(args, kwargs).shape, "the forward passes of the evaluation have changed"
            args, kwargs = ((x, *args[1:]), kwargs) if args else (args, {**kwargs, "hidden_states": x})
            needed = x.numel() * x.element_size()
            if needed <= free:
                free -= needed
                following.append(_stream(forward(*args, **kwargs)))
            else:
                following.append(None)
            if not removed.part:
                return self._identity(forward, x)
            with self.sublayers[removed.part][first].without():
                return forward(*args, **kwargs)

        def start(forward: Forward, *args: Any, **kwargs: Any) -> Any:
            entering[0] = next(passes, None)
            return forward(*args, **kwargs)

        with ExitStack() as stack:
            for place in before:
                stack.enter_context(_replaced(self.layers[place], "forward", skipping))
            stack.enter_context(_replaced(self.layers[first], "forward", beginning))
            for layer in self.layers[first + 1 : first + removed.count]:
                stack.enter_context(_replaced(layer, "forward", self._identity))
            stack.enter_context(_replaced(self.layers[0], "forward", start))
            yield
        self._kept, self._entered, self._evaluation = following, removed.first + 1, evaluation

    def _identity(self, _forward: Forward, *args: Any, **kwargs: Any) -> Any:
        """Return what a block returns that leaves the stream unchanged."""
        x = _entering(args, kwargs)
        return (x, *[None] * (self.outputs - 1)) if self.outputs else x


def _entering(args: Sequence[Any], kwargs: dict[str, Any]) -> Tensor:
    found: Tensor = args[0] if args else kwargs["hidden_states"]
    return found


def _stream(output: Any) -> Tensor:
    found: Tensor = output[0] if isinstance(output, tuple) else output
    return found


def _free_bytes(layer: nn.Module) -> int:
    """Return how many bytes of streams may be kept on the device of a layer."""
    device = next(layer.parameters()).device
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else psutil.virtual_memory().available
    return int(_KEPT_SHARE * free)


@contextmanager
def _replaced(owner: Any, name: str, run: Forward) -> Iterator[None]:
    """Put `run`, which gets the present method and its arguments, in place of a method of one object."""
    before = vars(owner).get(name)
    object.__setattr__(owner, name, partial(run, getattr(owner, name)))
    try:
        yield
    finally:
        if before is None:
            object.__delattr__(owner, name)
        else:
            object.__setattr__(owner, name, before)


def own_blocks(network: Llama) -> Blocks:
    """Return the blocks of a network that was trained here."""
    layers = network.model.blocks()
    found = {
        "attention": [_Sublayer(layer.self_attn, [(layer._attention, "apply", _unchanged)]) for layer in layers],
        "feed_forward": [_Sublayer(layer.mlp, [(layer._feed_forward, "apply", _unchanged)]) for layer in layers],
    }
    return Blocks(layers, found, joined=network.spec.joined_layers)


def blocks_of(network: ForeignNetwork) -> Blocks:
    """Return the blocks of a network that was not trained here. Raises GpasError if its layers are none."""
    return find_blocks(network.inner, network.source, network.probe)


@torch.no_grad()
def find_blocks(network: nn.Module, source: str, probe: Callable[[], Tensor]) -> Blocks:
    """Return the blocks of a network of transformers. `probe` returns the result of one forward pass.

    They are the list of modules with the most parameters. A forward pass must apply each of them once, in order, to
    the stream that the one before returned, and must return exactly the same if it starts in the middle, from the
    stream that was kept. Raises GpasError with the reason if that is not so.
    """
    lists = [list(found) for found in network.modules() if isinstance(found, nn.ModuleList) and len(found)]
    if not lists:
        raise GpasError(f"{source} has no list of layers")
    layers = max(lists, key=lambda found: sum(own.numel() for layer in found for own in layer.parameters()))
    entered: list[tuple[int, Tensor]] = []
    returned: list[Any] = []

    def recorded(place: int, forward: Forward, *args: Any, **kwargs: Any) -> Any:
        entered.append((place, _entering(args, kwargs)))
        returned.append(forward(*args, **kwargs))
        return returned[-1]

    with ExitStack() as stack:
        for place, layer in enumerate(layers):
            stack.enter_context(_replaced(layer, "forward", partial(recorded, place)))
        try:
            expected = probe()
        except (KeyError, AttributeError) as error:
            raise GpasError(f"{source}: its layers are not called with the residual stream: {error!r}") from error
    order = [place for place, _ in entered]
    if order != list(range(len(layers))):
        times = max(map(order.count, order), default=0)
        why = f"a layer is applied {times} times: layers are shared" if times > 1 else "they are not applied in order"
        raise GpasError(f"{source}: its {len(layers)} layers cannot be removed: {why}")
    for (place, x), output in zip(entered[1:], returned, strict=False):
        if not (isinstance(_stream(output), Tensor) and torch.equal(x, _stream(output))):
            raise GpasError(f"{source}: layer {place + 1} does not read what layer {place} returns")
    outputs = len(returned[0]) if isinstance(returned[0], tuple) else 0
    found = Blocks(layers, _sublayers(layers), outputs)
    _check_start(found, source, probe, expected)
    found.fault = _sublayer_fault(found, entered, probe)
    if found.fault and (before_norms := _before_norms(found, probe)):
        found.sublayers = before_norms
        found.fault = _sublayer_fault(found, entered, probe)
    return found


def _check_start(found: Blocks, source: str, probe: Callable[[], Tensor], expected: Tensor) -> None:
    """Raise GpasError unless a pass that starts from a kept stream gives the same bits as a whole one."""
    if len(found) < 2:
        return
    with found.without(Removed(1), "check"):
        probe()
    with found.without(Removed(2), "check"):
        short = probe()
    with found.without(Removed(2)):
        whole = probe()
    if not torch.equal(short, whole) or not torch.equal(probe(), expected):
        raise GpasError(f"{source}: its layers carry more than the residual stream, so they cannot be removed")


def _sublayers(layers: Sequence[nn.Module]) -> dict[str, list[_Sublayer]]:
    """Return attention and feed-forward network of each layer; nothing if a layer has none with a usual name."""
    found: dict[str, list[_Sublayer]] = {}
    for part, names in zip(SUBLAYERS, (_ATTENTION_NAMES, _FFN_NAMES), strict=True):
        named = [next((own for n in names if (own := getattr(layer, n, None)) is not None), None) for layer in layers]
        modules = [module for module in named if isinstance(module, nn.Module)]
        if len(modules) == len(layers):
            found[part] = [_Sublayer(module, [(module, "forward", _zeros)]) for module in modules]
    return found


@torch.no_grad()
def _before_norms(blocks: Blocks, probe: Callable[[], Tensor]) -> dict[str, list[_Sublayer]]:
    """Return the sub-layers of blocks z = N(x + f(x)), y = N(z + g(z)), as in Post-LN, with the attention in f; nothing
    if a block is none of these. Each norm is left out with its sub-layer."""
    calls: list[list[_Call]] = [[] for _ in blocks.layers]
    streams: list[Tensor] = []
    with ExitStack() as stack:
        for layer, own in zip(blocks.layers, calls, strict=True):
            for module in layer.modules():

                def keep(module: nn.Module, inputs: tuple[Any, ...], output: Any, own: list[_Call] = own) -> None:
                    if isinstance(result := _stream(output), Tensor):
                        own.append((module, inputs, result))

                stack.callback(module.register_forward_hook(keep).remove)
        stack.enter_context(blocks.observed(lambda _, x: streams.append(x)))
        probe()
    found: dict[str, list[_Sublayer]] = {part: [] for part in SUBLAYERS}
    for own, x, y, attention in zip(calls, streams, streams[1:], blocks.attentions, strict=False):
        sums = _sums(own, x)
        whole = len(sums) == len(SUBLAYERS) and torch.equal(sums[-1][1], y)
        if not whole or sums[0][0].module not in set(attention.modules()):
            return {}
        for part, (sublayer, _) in zip(SUBLAYERS, sums, strict=True):
            found[part].append(sublayer)
    return found if blocks.attentions else {}


def _sums(calls: Sequence[_Call], x: Tensor) -> list[tuple[_Sublayer, Tensor]]:
    """Return the sub-layers whose result, added to the stream x, is exactly what a norm reads, each with the result of
    that norm: the stream from there on."""
    found: list[tuple[_Sublayer, Tensor]] = []
    for place, (norm, inputs, output) in enumerate(calls):
        if "Norm" not in type(norm).__name__ or not inputs:
            continue
        read, total = inputs[0].flatten(0, -2), x.flatten(0, -2)
        for module, _, term in calls[:place]:
            added = term.flatten(0, -2)
            if added.shape == total.shape and torch.equal(added + total, read):
                x = output
                left_out: list[tuple[Any, str, Forward]] = [(module, "forward", _zeros), (norm, "forward", _unchanged)]
                found.append((_Sublayer(module, left_out), x))
                break
    return found


def _unchanged(_forward: Forward, x: Tensor, *_: Any) -> Tensor:
    return x


def _zeros(forward: Forward, *args: Any, **kwargs: Any) -> Any:
    found = forward(*args, **kwargs)
    return (torch.zeros_like(found[0]), *found[1:]) if isinstance(found, tuple) else torch.zeros_like(found)


def _sublayer_fault(found: Blocks, entered: Sequence[tuple[int, Tensor]], probe: Callable[[], Tensor]) -> str:
    """Return why attention and feed-forward networks cannot be removed alone, "" if they can.

    Without both, a block must be the identity.
    """
    if set(found.sublayers) != set(SUBLAYERS):
        return "no attention or feed-forward network with a usual name was found in its layers"
    outputs: list[Tensor] = []

    def recorded(forward: Forward, *args: Any, **kwargs: Any) -> Any:
        returned = forward(*args, **kwargs)
        outputs.append(_stream(returned))
        return returned

    with ExitStack() as stack:
        for part in SUBLAYERS:
            stack.enter_context(found.sublayers[part][0].without())
        stack.enter_context(_replaced(found.layers[0], "forward", recorded))
        probe()
    same = torch.equal(outputs[0], entered[0][1])
    return "" if same else "without both, a layer is not the identity, and no norm reads exactly x + f(x)"

"""The parts of a layer beside attention: norms, matrix products, feed-forward networks (SwiGLU, Shazeer 2020, or two
matrices) and the GPAS gate with its activations.

GPUs multiply matrices fastest if every row is aligned. So on a GPU, the width of a feed-forward network is padded with
zeros to a multiple of _ALIGNED_WIDTH. Zero rows and columns add nothing: silu, gelu and relu of 0 are 0. Weights are
padded when they are used, which is fused with the cast of a compiled layer under autocast; the parameters, their names
and their gradients stay as they are. The head's matrix gets rows of zeros in the same way, for vocabularies such as
GPT-2's of 50,257. On a CPU none of this is worthwhile, so nothing changes.

The maps of one input, such as q, k and v, stay products of their own: with joined weights an update of 71M took 5 %
longer on an H200, because the backward pass has to join their gradients, and 10 % more memory.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpas_cli.spec.gate import ACTIVATIONS, CHOICES, FUNCTIONS, Gate, syntax_tree
from gpas_cli.spec.model import FFNS, Family, Size
from gpas_cli.spec.norm import Factor, Norm

# A row of bfloat16 is then a multiple of 128 bytes. The fastest products need 16; the 1B of the papers has 5,461.
_ALIGNED_WIDTH = 64
FFN_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
}
_TENSOR_OPERATORS: dict[type[ast.operator], Callable[[Tensor, Tensor], Tensor]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}
# In place of 1 - act(alpha) = 0: below the rounding of float64, and a power of two, so that u = y / kept is exact.
_LEAST_KEPT = 2.0**-60


class RMSNorm(nn.Module):
    """scale * weight * x / sqrt(mean(x^2) + eps), statistics in float32 or wider (Zhang and Sennrich 2019).

    `weight` has shape (hidden,) and is initialised to `start`; `scale` is the constant multiplier 1/sqrt(l) of LNS.
    """

    def __init__(self, hidden: int, eps: float, start: float = 1.0, scale: float = 1.0):
        super().__init__()
        self.eps, self.start, self.scale = eps, start, scale
        self.weight = nn.Parameter(torch.empty(hidden))

    def forward(self, x: Tensor) -> Tensor:
        """x: (..., hidden) -> same shape and dtype."""
        weight = self.weight if self.scale == 1 else self.weight * self.scale
        return _Normed.apply(x, weight, self.eps)  # type: ignore[no-any-return, no-untyped-call]


class _Normed(torch.autograd.Function):
    """weight * x / rms(x). Of the activations only x is saved: on a CPU, torch's RMSNorm saves three times as much, and
    it rounds bfloat16 elsewhere than the reference."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        wide = _wide(x)
        inverse = _inverse_rms(wide, eps)
        ctx.save_for_backward(x, weight, inverse)
        ctx.eps = eps
        # As in the reference, the cast precedes the weight: a bfloat16 weight multiplies a bfloat16 tensor.
        y = (wide * inverse).to(weight.dtype) * weight
        # A cast that changes nothing must not come last: compiled by torch 2.11, all gradients would be zero.
        return y if y.dtype == x.dtype else y.to(x.dtype)

    @staticmethod
    def backward(ctx: Any, d_y: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight, inverse = ctx.saved_tensors
        wide, d_y = _wide(x), d_y.to(weight.dtype)
        if torch.is_grad_enabled():  # the gradient is differentiated, too
            inverse = _inverse_rms(wide, ctx.eps)
        normed = wide * inverse
        d_weight = (d_y * normed.to(weight.dtype)).flatten(0, -2).sum(0)
        d_normed = (d_y * weight).to(wide.dtype)
        mean = (d_normed * normed).mean(-1, keepdim=True)
        return (torch.addcmul(d_normed, normed, mean, value=-1) * inverse).to(x.dtype), d_weight, None


def _inverse_rms(x: Tensor, eps: float) -> Tensor:
    return torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)


def _wide(x: Tensor) -> Tensor:
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


class LayerNorm(nn.Module):
    """scale * (weight * (x - mean(x)) / sqrt(var(x) + eps) + bias) (Ba et al. 2016).

    `weight` and `bias` have shape (hidden,) and are initialised to `start` and 0; `scale` is as in RMSNorm.
    """

    def __init__(self, hidden: int, eps: float = 1e-5, start: float = 1.0, scale: float = 1.0):
        super().__init__()
        self.eps, self.start, self.scale = eps, start, scale
        self.weight = nn.Parameter(torch.empty(hidden))
        self.bias = nn.Parameter(torch.empty(hidden))

    def forward(self, x: Tensor) -> Tensor:
        """x: (..., hidden) -> same shape and dtype."""
        normed = F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps).to(x.dtype)
        return normed if self.scale == 1 else normed * self.scale


class DyT(nn.Module):
    """scale * (weight * tanh(slope * x) + bias), in place of a norm (Zhu et al. 2025, "Transformers without
    Normalization", equation 1). Unlike a norm, it is not invariant to the scale of x.

    `weight` and `bias` have shape (hidden,) and are initialised to `start` and 0; `slope` has shape (1,) and is
    initialised to `slope_start`, the paper's default. The paper starts that of its LLaMA networks by their width.
    """

    slope_start = 0.5

    def __init__(self, hidden: int, eps: float = 0.0, start: float = 1.0, scale: float = 1.0):
        super().__init__()
        self.start, self.scale = start, scale
        self.weight = nn.Parameter(torch.empty(hidden))
        self.bias = nn.Parameter(torch.empty(hidden))
        self.slope = nn.Parameter(torch.empty(1))

    def forward(self, x: Tensor) -> Tensor:
        """x: (..., hidden) -> same shape and dtype."""
        y = (torch.tanh(x * self.slope) * self.weight + self.bias).to(x.dtype)
        return y if self.scale == 1 else y * self.scale


# Name of a family's norm -> module.
_NORM_MODULES: dict[str, type[RMSNorm] | type[LayerNorm] | type[DyT]] = {
    "rmsnorm": RMSNorm,
    "layernorm": LayerNorm,
    "dyt": DyT,
}


def norm_slot(norm: Norm | None, hidden: int, eps: float, kind: str = "rmsnorm") -> nn.Module:
    """Return the module of a norm slot, of `kind` in _NORM_MODULES; the identity if the slot is absent."""
    return _NORM_MODULES[kind](hidden, eps, norm.init, norm.scale) if norm else nn.Identity()


class LearnedFactor(nn.Module):
    """scale * weight * x: one number (1,), or one for each feature (hidden,), initialised to `start`."""

    def __init__(self, spec: Factor, hidden: int):
        super().__init__()
        self.start, self.scale = spec.init, spec.scale
        self.weight = nn.Parameter(torch.empty(hidden if spec.wide else 1))

    def forward(self, x: Tensor) -> Tensor:
        """x: (..., hidden) -> same shape, in the wider of its dtype and the weight's."""
        return x * (self.weight if self.scale == 1 else self.weight * self.scale)


def learned_or_fixed(spec: float | Factor, hidden: int) -> float | LearnedFactor:
    """Return the module of a learned factor, a constant as it is."""
    return LearnedFactor(spec, hidden) if isinstance(spec, Factor) else spec


def times(factor: float | LearnedFactor, x: Tensor) -> Tensor:
    """Return factor * x; any shape."""
    return factor(x) if isinstance(factor, LearnedFactor) else x if factor == 1 else factor * x


def prefers_aligned(x: Tensor) -> bool:
    """Return whether the device of x multiplies matrices faster if their rows are aligned."""
    return x.is_cuda


def aligned_output(x: Tensor, linear: nn.Linear) -> Tensor:
    """Return linear(x), (..., width), with zeros up to a multiple of _ALIGNED_WIDTH where that is faster."""
    width = _aligned(linear.out_features)
    if width == linear.out_features or not prefers_aligned(x):
        return linear(x)  # type: ignore[no-any-return]
    bias = linear.bias
    return F.linear(x, _padded(linear.weight, width), None if bias is None else _padded(bias, width))


def _aligned(width: int) -> int:
    return -(-width // _ALIGNED_WIDTH) * _ALIGNED_WIDTH


def _with_inputs(weight: Tensor, width: int) -> Tensor:
    """Return `weight`, (out, in), with zero columns for the inputs from `in` to `width`: (out, width)."""
    extra = width - weight.shape[1]
    return F.pad(weight, (0, extra)) if extra else weight


def aligned_rows(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """Return `weight`, (out, in), in `dtype`; where that makes the products of its outputs faster, with rows of zeros
    up to a multiple of _ALIGNED_WIDTH."""
    rows = _aligned(len(weight))
    if rows == len(weight) or dtype.itemsize > 2 or not prefers_aligned(weight):
        return weight.to(dtype)
    padded = weight.new_zeros(rows, weight.shape[1], dtype=dtype)
    padded[: len(weight)] = weight
    return padded


def _padded(tensor: Tensor, rows: int) -> Tensor:
    return F.pad(tensor, (0,) * (2 * tensor.dim() - 1) + (rows - len(tensor),))


class _MLP(nn.Module):
    """down( silu(gate x) * (up x) )."""

    def __init__(self, size: Size, family: Family):
        super().__init__()
        self.gate_proj = nn.Linear(size.hidden, size.ffn, bias=family.bias)
        self.up_proj = nn.Linear(size.hidden, size.ffn, bias=family.bias)
        self.down_proj = nn.Linear(size.ffn, size.hidden, bias=family.bias)

    def forward(self, x: Tensor) -> Tensor:
        """x: (batch, time, hidden) -> same shape."""
        gate, up = aligned_output(x, self.gate_proj), aligned_output(x, self.up_proj)
        down = _with_inputs(self.down_proj.weight, gate.shape[-1])
        return _GatedDown.apply(gate, up, down, self.down_proj.bias)  # type: ignore[no-any-return, no-untyped-call]


class _GatedDown(torch.autograd.Function):
    """down( silu(gate) * up ). The backward pass recomputes silu(gate) and the product, which would otherwise be a
    quarter of the activations that a layer saves. gate, up: (..., ffn); weight: (hidden, ffn)."""

    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(gate, up, weight)
        return F.linear(F.silu(gate) * up, weight, bias)

    @staticmethod
    def backward(ctx: Any, d_y: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        gate, up, weight = ctx.saved_tensors
        opened = F.silu(gate)
        rows = d_y.flatten(0, -2)
        product = (opened * up).flatten(0, -2)
        # Autocast is off inside autograd functions, so a float32 weight is cast to bfloat16 explicitly.
        d_product = d_y @ weight.to(d_y.dtype)
        d_gate = _silu_backward(d_product * up, gate)
        d_bias = rows.sum(0).to(weight.dtype) if ctx.needs_input_grad[3] else None
        return d_gate, d_product * opened, (rows.t() @ product).to(weight.dtype), d_bias


def _silu_backward(d_y: Tensor, x: Tensor) -> Tensor:
    """Return the gradient of silu at x. PyTorch's kernel is not differentiable, so second derivatives use a formula."""
    if not torch.is_grad_enabled():
        return torch.ops.aten.silu_backward(d_y, x)  # type: ignore[no-any-return]
    share = torch.sigmoid(x)
    return d_y * share * (1 + x * (1 - share))


class _PlainMLP(nn.Module):
    """down( act(up x) ): W_2 and W_1 of Spike No More, equation 3."""

    def __init__(self, size: Size, family: Family):
        super().__init__()
        self.activation = FFN_ACTIVATIONS[family.ffn]
        self.up_proj = nn.Linear(size.hidden, size.ffn, bias=family.bias)
        self.down_proj = nn.Linear(size.ffn, size.hidden, bias=family.bias)

    def forward(self, x: Tensor) -> Tensor:
        """x: (batch, time, hidden) -> same shape."""
        up = aligned_output(x, self.up_proj)
        if up.shape[-1] == self.down_proj.in_features:
            return self.down_proj(self.activation(up))  # type: ignore[no-any-return]
        return F.linear(self.activation(up), _with_inputs(self.down_proj.weight, up.shape[-1]), self.down_proj.bias)


assert {"swiglu", *FFN_ACTIVATIONS} == set(FFNS)


def feed_forward(size: Size, family: Family) -> _MLP | _PlainMLP:
    """Return the feed-forward network of one layer."""
    return _MLP(size, family) if family.ffn == "swiglu" else _PlainMLP(size, family)


_NAMED: dict[str, Callable[[Tensor], Tensor]] = {
    "identity": lambda a: a,
    "relu": F.relu,
    "leaky-relu": F.leaky_relu,
    "tanh": torch.tanh,
    "silu": F.silu,
    "silu-beta-8": lambda a: a * torch.sigmoid(8 * a),
}
assert _NAMED.keys() == ACTIVATIONS.keys()

_FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    "abs": torch.abs,
    "atan": torch.atan,
    "cos": torch.cos,
    "erf": torch.erf,
    "exp": torch.exp,
    "log": torch.log,
    # Of two equal arguments, the second gets the gradient, unlike with torch.maximum.
    "max": lambda a, b: torch.where(a > b, a, b),
    "min": lambda a, b: torch.where(a < b, a, b),
    "relu": F.relu,
    "sigmoid": torch.sigmoid,
    "sin": torch.sin,
    "softplus": lambda a: torch.logaddexp(a, torch.zeros_like(a)),
    "sqrt": torch.sqrt,
    "tanh": torch.tanh,
}
assert _FUNCTIONS.keys() == FUNCTIONS.keys() | CHOICES.keys()


def torch_activation(text: str) -> Callable[[Tensor], Tensor]:
    """Return the activation of a name in ACTIVATIONS or of a formula, applied element by element."""
    return _NAMED[text] if text in _NAMED else _function(syntax_tree(text))


def _function(node: ast.AST) -> Callable[[Tensor], Tensor]:
    match node:
        case ast.Constant(value=float(number)):
            return lambda alpha: torch.full_like(alpha, number)
        case ast.UnaryOp(operand=inner):
            negated = _function(inner)
            return lambda alpha: -negated(alpha)
        case ast.BinOp(left=left, op=kind, right=right):
            operate, first, second = _TENSOR_OPERATORS[type(kind)], _function(left), _function(right)
            return lambda alpha: operate(first(alpha), second(alpha))
        case ast.Call(func=ast.Name(id=name), args=args):
            apply, parts = _FUNCTIONS[name], [_function(part) for part in args]
            return lambda alpha: apply(*[part(alpha) for part in parts])
    return lambda alpha: alpha


class GpasGate(nn.Module):
    """Scale the input by 1 - act(alpha) in the forward pass; with stop-gradient, the backward pass is the identity.

    alpha has shape (1,), because FSDP refuses 0-dimensional parameters. A fixed gate's alpha is a buffer.
    `rounded`: the dtype of the output, None for the wider of the input's and alpha's.
    """

    alpha: Tensor

    def __init__(self, spec: Gate, start: float):
        super().__init__()
        self.start = start
        self.stop_gradient = spec.stop_gradient
        self.rounded: torch.dtype | None = None
        self.activation = torch_activation(spec.activation)
        if spec.learnable:
            self.alpha = nn.Parameter(torch.empty(1))
        else:
            self.register_buffer("alpha", torch.empty(1))

    def value(self) -> Tensor:
        """Return act(alpha), the share of the stream that is subtracted, shape (1,)."""
        return self.activation(self.alpha)

    def forward(self, x: Tensor, *, saves_input: bool = False) -> Tensor:
        """x of any shape -> same shape.

        `saves_input`: the backward pass reads the gate's input, else its output. It takes no memory if the network
        saves it anyway: the output where a norm or a linear map follows the gate, the input on the skip path.

        In bfloat16, subtracting a share below 2^-9 would change nothing, so outputs of autocast are widened first.
        Where alpha is bfloat16 as well, everything is rounded as in the reference.
        """
        share = self.value()
        wide = torch.promote_types(x.dtype, share.dtype)
        if self.stop_gradient and wide != torch.bfloat16:
            dtype = self.rounded or wide
            return _Gated.apply(x.to(dtype), share, saves_input)  # type: ignore[no-any-return, no-untyped-call]
        x = x.to(wide)
        return x - share * (x.detach() if self.stop_gradient else x)


class _Gated(torch.autograd.Function):
    """y = (1 - share) u with dL/du = dL/dy and dL/dshare = -<dL/dy, u>, where u = y / (1 - share). y has the
    dtype of u, the product and its sum the dtype of share."""

    @staticmethod
    def forward(ctx: Any, u: Tensor, share: Tensor, saves_input: bool) -> Tensor:
        ctx.dtype = share.dtype
        kept = torch.where(share == 1, _LEAST_KEPT, 1 - share)
        y = u * kept
        y = y if y.dtype == u.dtype else y.to(u.dtype)
        ctx.save_for_backward(u, None) if saves_input else ctx.save_for_backward(y, kept)
        return y

    @staticmethod
    def backward(ctx: Any, d_y: Tensor) -> tuple[Tensor, Tensor | None, None]:
        saved, kept = ctx.saved_tensors
        if not ctx.needs_input_grad[1]:
            return d_y, None, None
        product = (d_y.to(ctx.dtype) * saved.detach()).sum().neg()[None]
        return d_y, product if kept is None else product / kept.detach(), None

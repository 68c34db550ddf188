"""The activations of the gate as functions of tensors. `gpas_cli.spec.gate` computes the same on numbers."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from gpas_cli.spec.gate import ACTIVATIONS, CHOICES, FUNCTIONS, syntax_tree

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

_OPERATORS: dict[type[ast.operator], Callable[[Tensor, Tensor], Tensor]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}


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
            operate, first, second = _OPERATORS[type(kind)], _function(left), _function(right)
            return lambda alpha: operate(first(alpha), second(alpha))
        case ast.Call(func=ast.Name(id=name), args=args):
            apply, parts = _FUNCTIONS[name], [_function(part) for part in args]
            return lambda alpha: apply(*[part(alpha) for part in parts])
    return lambda alpha: alpha

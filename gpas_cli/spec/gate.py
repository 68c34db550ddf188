"""The GPAS gate G(x) = x - act(alpha) * sg(x) (GPAS, equation 4), its position in a sub-layer and its activation.

An activation is named, or a formula such as `alpha / (1 + abs(alpha))`, which has `alpha`, numbers, + - * / **,
parentheses and the functions of FUNCTIONS and CHOICES. This module parses it and computes its value and slope as
numbers; `gpas_cli.model.layers` computes it on tensors. A formula is data: it is never executed as Python.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache

from gpas_cli.errors import nearest
from gpas_cli.spec.norm import Wiring
from gpas_cli.spec.parse import setting
from gpas_cli.structure import Frozen

_ALPHA = "alpha"
_MAX_LENGTH = 200  # characters of a formula, which bound the depth of its tree
_SAMPLES = [0.37 * step for step in range(-54, 55)]  # where a formula is compared with the named activations

ACTIVATIONS: dict[str, str] = {
    "identity": "alpha",
    "relu": "relu(alpha)",
    "leaky-relu": "max(alpha, 0.01 * alpha)",
    "tanh": "tanh(alpha)",
    "silu": "alpha * sigmoid(alpha)",
    "silu-beta-8": "alpha * sigmoid(8 * alpha)",
}
_OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Pow)
_SITES = ("home", "after-sublayer", "before-sublayer", "before-sublayer-shortcut", "after-norm", "after-module")


def _sigmoid(a: float) -> float:
    return 1 / (1 + math.exp(-a)) if a >= 0 else math.exp(a) / (1 + math.exp(a))


# name -> (function, its derivative)
FUNCTIONS: dict[str, tuple[Callable[[float], float], Callable[[float], float]]] = {
    "abs": (abs, lambda a: float((a > 0) - (a < 0))),
    "atan": (math.atan, lambda a: 1 / (1 + a * a)),
    "cos": (math.cos, lambda a: -math.sin(a)),
    "erf": (math.erf, lambda a: 2 / math.sqrt(math.pi) * math.exp(-a * a)),
    "exp": (math.exp, math.exp),
    "log": (math.log, lambda a: 1 / a),
    "relu": (lambda a: max(a, 0.0), lambda a: float(a > 0)),
    "sigmoid": (_sigmoid, lambda a: _sigmoid(a) * _sigmoid(-a)),
    "sin": (math.sin, math.cos),
    "softplus": (lambda a: max(a, 0.0) + math.log1p(math.exp(-abs(a))), _sigmoid),
    "sqrt": (math.sqrt, lambda a: 0.5 / math.sqrt(a)),
    "tanh": (math.tanh, lambda a: 1 - math.tanh(a) ** 2),
}
# Functions of two arguments that return one of them: the first if this holds, otherwise the second.
CHOICES: dict[str, Callable[[float, float], bool]] = {"max": lambda a, b: a > b, "min": lambda a, b: a < b}


def activation(text: str, alpha: float) -> tuple[float, float]:
    """Return act(alpha) of a name in ACTIVATIONS or of a formula, and the derivative as autograd computes it; NaN where
    they are not defined."""
    try:
        return _evaluated(syntax_tree(ACTIVATIONS.get(text, text)), alpha)
    except (ValueError, OverflowError, ZeroDivisionError):
        return math.nan, math.nan


@cache
def syntax_tree(formula: str) -> ast.expr:
    """Return the tree of a formula without faults, with numbers as floats."""
    tree = ast.parse(formula.strip(), mode="eval").body
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant):
            node.value = float(node.value)  # type: ignore[arg-type]
    return tree


def _evaluated(node: ast.AST, alpha: float) -> tuple[float, float]:
    """Return the value and the derivative of a tree at alpha."""
    match node:
        case ast.Constant(value=float(number)):
            return number, 0.0
        case ast.UnaryOp(operand=inner):
            value, slope = _evaluated(inner, alpha)
            return -value, -slope
        case ast.BinOp(left=left, op=operator, right=right):
            return _combined(operator, *_evaluated(left, alpha), *_evaluated(right, alpha))
        case ast.Call(func=ast.Name(id=name), args=[one]):
            value, slope = _evaluated(one, alpha)
            function, derivative = FUNCTIONS[name]
            return function(value), derivative(value) * slope
        case ast.Call(func=ast.Name(id=name), args=[one, other]):
            first, second = _evaluated(one, alpha), _evaluated(other, alpha)
            return first if CHOICES[name](first[0], second[0]) else second
    return alpha, 1.0


def _combined(operator: ast.operator, a: float, slope_a: float, b: float, slope_b: float) -> tuple[float, float]:
    match operator:
        case ast.Add():
            return a + b, slope_a + slope_b
        case ast.Sub():
            return a - b, slope_a - slope_b
        case ast.Mult():
            return a * b, slope_a * b + a * slope_b
        case ast.Div():
            return a / b, (slope_a - a / b * slope_b) / b
    return math.pow(a, b), b * math.pow(a, b - 1) * slope_a  # the exponent is a number


def canonical(text: str) -> str:
    """Return the canonical spelling of an activation without faults: spaces and redundant parentheses do not count."""
    if text in ACTIVATIONS:
        return text
    tree = ast.parse(text.strip(), mode="eval")
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and float(node.value).is_integer():  # type: ignore[arg-type]
            node.value = int(node.value)  # type: ignore[arg-type]
    return ast.unparse(tree)


def _activation_fault(text: str) -> str:
    """Return what is wrong with the name or formula of an activation, or ""."""
    if text in ACTIVATIONS:
        return ""
    if text.replace("-", "").replace("_", "").isalnum() and _ALPHA not in text:
        return f"unknown value '{text}'; {nearest(text, (*ACTIVATIONS, 'a formula of alpha'))}"
    if len(text) > _MAX_LENGTH:
        return f"a formula has at most {_MAX_LENGTH} characters, this one {len(text)}"
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except SyntaxError as error:
        return f"'{text}' is not a formula: {error.msg}"
    if fault := next(_faults(tree), ""):
        return fault
    if not _contains_alpha(tree):
        return f"the formula '{text}' does not contain {_ALPHA}"
    same = next((name for name in ACTIVATIONS if _equal(name, text)), "")
    return f"the formula '{text}' is {same}; write activation: {same}" if same else ""


def _equal(one: str, other: str) -> bool:
    pairs = ((activation(one, a)[0], activation(other, a)[0]) for a in _SAMPLES)
    return all(math.isclose(*pair, rel_tol=1e-12, abs_tol=1e-12) for pair in pairs)


def _contains_alpha(tree: ast.expr) -> bool:
    return any(isinstance(node, ast.Name) and node.id == _ALPHA for node in ast.walk(tree))


def _faults(node: ast.expr) -> Iterator[str]:
    match node:
        case ast.Name(id=name):
            if name != _ALPHA:
                yield f"unknown name '{name}' in a formula; write {_ALPHA}, numbers and functions such as tanh(alpha)"
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool) and abs(number) <= 1e100:
            pass
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            yield from _faults(inner)
        case ast.BinOp(left=left, op=operator, right=right) if isinstance(operator, _OPERATORS):
            if isinstance(operator, ast.Pow) and _contains_alpha(right):
                yield f"the exponent {ast.unparse(right)} is not a number; write exp(...)"
            yield from (*_faults(left), *_faults(right))
        case ast.BinOp(op=ast.BitXor()):
            yield f"a formula cannot have '^'; write {ast.unparse(node).replace('^', '**')}"
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]):
            yield from _call_faults(name, len(args))
            yield from (fault for part in args for fault in _faults(part))
        case _:
            yield f"a formula cannot have '{ast.unparse(node)}'"


def _call_faults(name: str, arguments: int) -> Iterator[str]:
    if name not in (*FUNCTIONS, *CHOICES):
        yield f"unknown function '{name}' in a formula; {nearest(name, (*FUNCTIONS, *CHOICES))}"
    elif arguments != (1 if name in FUNCTIONS else 2):
        yield f"{name} takes {'one argument' if name in FUNCTIONS else 'two arguments'}, not {arguments}"


class Gate(Frozen, kw_only=True):
    """One GPAS gate per layer, or per sub-layer.

    `activation`: a name, or a formula of alpha such as `alpha / (1 + abs(alpha))`.
    `site`: `home` is the paper's position (after the residual sum; on the skip path of post-norm layers); the others
    are the positions of Table 4, where `before-sublayer-shortcut` is a second reading of "before".
    `init`: the initial alpha, one number or one per layer.
    `from_trained`: start at the trained alphas of the same cell with a learnable gate of the same activation, site,
    stop-gradient, sharing and `init` (the predefined gates of Table 5).
    """

    activation: str = setting("silu", choices=tuple(ACTIVATIONS), check=_activation_fault)
    site: str = setting("home", choices=_SITES)
    stop_gradient: bool = setting(True)
    learnable: bool = setting(True)
    init: float | tuple[float, ...] = setting(0.0, low=-100, high=100)
    share: str = setting("layer", choices=("layer", "sublayer"))
    from_trained: bool = setting(False)

    def starts(self, layers: int) -> tuple[float, ...]:
        """Return the initial alpha of each layer, shape (layers,)."""
        return self.init if isinstance(self.init, tuple) else (self.init,) * layers

    def teacher(self) -> Gate:
        """Return the learnable gate whose trained values this one starts from."""
        return replace(self, learnable=True, from_trained=False)


def slot(wiring: Wiring, site: str) -> str:
    """Return the slot of the residual formula that `site` refers to in a layer with this wiring."""
    if site == "home":
        return wiring.home
    if site == "after-norm":
        return "in" if wiring.in_norm else "out" if wiring.out_norm else "sum"
    slots = {
        "after-sublayer": "sum",
        "before-sublayer": "entry",
        "before-sublayer-shortcut": "skip",
        "after-module": "branch",
    }
    return slots[site]

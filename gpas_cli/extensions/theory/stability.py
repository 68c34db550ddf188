"""The stability of linear networks when a layer is dropped, by simulation (RaPTr, section 4.2 and appendix G.1).

    F_l      the network of the first l layers      y^(l)      its output for the input x, |x| = 1
    F_-l     F without layer l                      Psi_l      |F_-l(x) - F(x)|, definition 4.1

Layers of each kind of network, with W_l of shape (d, d):

    with residual connection and norm     y^(l) = y^(l-1) + W_l y^(l-1) / |y^(l-1)|
    without residual connection           y^(l) = W_l y^(l-1) / |y^(l-1)|
    without norm                          y^(l) = y^(l-1) + W_l y^(l-1)

Theorem 4.2 bounds the rise of the loss from one stage to the next by a multiple of the gap (1/L) sum_l Psi_l / |F|. The
paper states how norm, Psi and gap grow; here they are measured, and the exponents fitted:

    Lemma 4.3   W_l = G_l, entries of variance 1/d
    Lemma G.2   W_l = A for all l, |A|_2 = 1
    Figure 3    W_l = sqrt(tau) A + sqrt(1 - tau) G_l

The paper does not state A. Here A = B B^T / |B B^T|_2 with normal B, so that A has the eigenvalue 1, which the lemma
needs, and others below it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from gpas_cli.extensions.theory.results import Law, Printed
from gpas_cli.structure import Frozen

Array = NDArray[np.float64]

_SAMPLES = 100  # inputs, as in Figure 3
_TAUS = (0.0, 0.25, 0.5, 0.75, 1.0)
_FITTED = 4  # exponents over the depth are fitted to depths from L / FITTED to L
_DEPTHS = 12  # at which norms and gaps are measured


class _Kind(Frozen):
    """A kind of linear network: whether it has residual connections, and norms."""

    title: str
    residual: bool
    norm: bool

    @property
    def exponential(self) -> bool:
        """Whether norms grow by a factor with each layer, rather than with a power of the depth."""
        return not self.norm


BOTH = _Kind("residual connection and norm", residual=True, norm=True)
_NO_RESIDUAL = _Kind("no residual connection", residual=False, norm=True)
_NO_NORM = _Kind("no norm", residual=True, norm=False)


class Simulation(Frozen):
    """A simulated network: means over inputs."""

    kind: _Kind
    tau: float
    norms: tuple[tuple[int, float], ...]  # (depth, mean)
    psi: tuple[tuple[int, float], ...]  # (l, mean) at the last depth
    gaps: tuple[tuple[int, float], ...]  # (depth, mean)


class _Statement(Frozen):
    """A statement of the paper about one kind of network, with the printed exponents of norm, Psi and gap."""

    name: str
    kind: _Kind
    tau: float
    norm: Printed | None
    psi: Printed | None
    gap: Printed | None


def statements() -> list[_Statement]:
    """Return what the paper states: Lemma 4.3, Lemma G.2, and Figure 3 for each tau."""
    lemma = [
        _Statement("Lemma 4.3 (a)", BOTH, 0.0, _at_least(0.5), _at_most(0.5), _at_most(-0.5)),
        _Statement("Lemma 4.3 (b)", _NO_RESIDUAL, 0.0, _at_most(0), _at_least(0), _at_least(0)),
        _Statement("Lemma 4.3 (c)", _NO_NORM, 0.0, _at_most(0.5), _at_least(0.5), _at_least(0)),
        _Statement("Lemma G.2 (a)", BOTH, 1.0, _at_least(1), _at_most(0), _at_most(-1)),
        _Statement("Lemma G.2 (b)", _NO_RESIDUAL, 1.0, _at_most(0), None, _at_most(-1)),
        _Statement("Lemma G.2 (c)", _NO_NORM, 1.0, _at_most(1), _at_least(1), _at_least(0)),
    ]
    return [*lemma, *(_figure_3(tau) for tau in _TAUS)]


def _figure_3(tau: float) -> _Statement:
    """Return Figure 3 for one tau. Its exponents are printed for tau in (0, 1); at 0 and 1 the lemmas hold."""
    name = f"Figure 3, tau {tau:g}"
    if not 0 < tau < 1:
        return _Statement(name, BOTH, tau, None, None, None)
    return _Statement(name, BOTH, tau, _at_least(0.88), Printed(0.5, "about"), _at_most(-0.5))


def _at_least(value: float) -> Printed:
    return Printed(value, "at least")


def _at_most(value: float) -> Printed:
    return Printed(value, "at most")


def simulate(kind: _Kind, tau: float, *, layers: int, dimension: int = 100) -> Simulation:
    """Simulate networks of all depths up to `layers`, with one draw of the weights. `dimension`: d, as in Figure 3."""
    random = np.random.default_rng(0)
    inputs = random.standard_normal((_SAMPLES, dimension))
    inputs /= _length(inputs)
    weights = _weights(tau, dimension, random)
    depths = {int(depth) for depth in np.geomspace(max(2, layers // (2 * _FITTED)), layers, _DEPTHS).round()}
    norms: list[tuple[int, float]] = []
    gaps: list[tuple[int, float]] = []
    psi: Array = np.zeros(0)
    for depth, output, dropped in _outputs(kind, inputs, weights, layers):
        if depth in depths:
            size = _length(output)[..., 0]
            distances = _length(dropped - output)[..., 0]
            psi = distances.mean(1)
            norms.append((depth, float(size.mean())))
            gaps.append((depth, float((distances.mean(0) / size).mean())))
    by_layer = tuple((layer, float(value)) for layer, value in enumerate(psi, start=1))
    return Simulation(kind, tau, tuple(norms), by_layer, tuple(gaps))


def _weights(tau: float, dimension: int, random: np.random.Generator) -> Callable[[], Array]:
    """Return a function that draws the matrix of the next layer, shape (d, d)."""
    root = random.standard_normal((dimension, dimension))
    shared = root @ root.T
    shared /= np.linalg.norm(shared, 2)

    def draw() -> Array:
        own = random.standard_normal((dimension, dimension)) / np.sqrt(dimension)
        return np.asarray(np.sqrt(tau) * shared + np.sqrt(1 - tau) * own)

    return draw


def _outputs(
    kind: _Kind, inputs: Array, weights: Callable[[], Array], layers: int
) -> Iterator[tuple[int, Array, Array]]:
    """Yield depth, output (samples, d) and the outputs without each of the layers (depth, samples, d)."""
    samples, dimension = inputs.shape
    streams = np.empty((layers + 1, samples, dimension))  # of the whole network, then of those without a layer
    streams[0] = inputs
    for depth in range(1, layers + 1):
        weight = weights()
        streams[depth] = streams[0]
        for part in (streams[0], streams[1:depth]):
            rows = part.reshape(-1, dimension)
            branch = (rows / _length(rows) if kind.norm else rows) @ weight.T
            rows[...] = rows + branch if kind.residual else branch
        yield depth, streams[0], streams[1 : depth + 1]


def _length(vectors: Array) -> Array:
    """Return the lengths of vectors. (..., d) -> (..., 1)."""
    return np.asarray(np.sqrt(np.einsum("...i,...i->...", vectors, vectors))[..., None])


def laws(statement: _Statement, found: Simulation) -> tuple[Law, ...]:
    """Return the exponents of norm, Psi and gap, fitted to a simulation, beside what a statement says about them."""
    last = found.norms[-1][0]
    if found.kind.exponential:
        least = min(value for _, value in found.psi)
        norm = _per_layer(found.norms)
        psi = float(np.log2(least)) / (last - 1)
    else:
        norm = power(found.norms, last / _FITTED)
        psi = power([(last / layer, value) for layer, value in found.psi[:-1]])
    gap = power(found.gaps, last / _FITTED)
    return (Law("norm", norm, statement.norm), Law("psi", psi, statement.psi), Law("gap", gap, statement.gap))


def power(points: Sequence[tuple[float, float]], least: float = 0.0) -> float:
    """Return the exponent of the power law fitted to the points (x, y) with x >= `least`, in logarithms."""
    chosen = [(x, y) for x, y in points if x >= least]
    return _slope(np.log([x for x, _ in chosen]), np.log([y for _, y in chosen]))


def _per_layer(points: Sequence[tuple[float, float]]) -> float:
    """Return the slope of log2 y over the depth x, fitted to the later depths."""
    chosen = [(x, y) for x, y in points if x >= points[-1][0] / _FITTED]
    return _slope(np.array([x for x, _ in chosen]), np.log2([y for _, y in chosen]))


def _slope(x: Array, y: Array) -> float:
    return float(np.polyfit(x, y, 1)[0])

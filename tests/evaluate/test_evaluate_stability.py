"""The simulation of RaPTr's linear networks: definition 4.1 by hand, and the exponents of its lemmas."""

from __future__ import annotations

import numpy as np
import pytest

from gpas_cli.evaluate.stability import _NO_NORM, _NO_RESIDUAL, BOTH, laws, power, simulate, statements


def test_dropping_a_layer_is_the_network_without_it() -> None:
    found = simulate(_NO_NORM, 0.0, layers=3, dimension=5, samples=2, seed=3)
    random = np.random.default_rng(3)
    x = random.standard_normal((2, 5))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    random.standard_normal((5, 5))  # the shared matrix, which has no share here
    maps = [np.eye(5) + random.standard_normal((5, 5)) / np.sqrt(5) for _ in range(3)]
    whole = x @ (maps[2] @ maps[1] @ maps[0]).T
    without = x @ (maps[2] @ maps[0]).T
    assert found.psi[1][1] == pytest.approx(np.linalg.norm(without - whole, axis=1).mean())
    assert found.norms[-1][1] == pytest.approx(np.linalg.norm(whole, axis=1).mean())


def test_networks_that_share_their_layers_do_not_depend_on_which_one_is_dropped() -> None:
    found = simulate(BOTH, 1.0, layers=16, dimension=12, samples=8)
    values = [value for _, value in found.psi]
    assert max(values) == pytest.approx(min(values))


@pytest.mark.parametrize(
    ("name", "norm", "psi", "gap"),
    [
        ("Lemma 4.3 (a)", 0.5, 0.5, -0.45),
        ("Lemma 4.3 (b)", 0.0, 0.0, 0.0),
        ("Lemma 4.3 (c)", 0.5, 0.5, 0.0),
        ("Lemma G.2 (a)", 1.0, 0.0, -1.0),
        ("Lemma G.2 (c)", 1.0, 0.95, 0.0),
    ],
)
def test_fitted_exponents_are_near_those_of_the_lemmas(name: str, norm: float, psi: float, gap: float) -> None:
    statement = next(one for one in statements() if one.name == name)
    found = laws(statement, simulate(statement.kind, statement.tau, layers=40, samples=20))
    assert [law.fitted for law in found] == pytest.approx([norm, psi, gap], abs=0.15)


def test_without_a_residual_connection_the_gap_does_not_shrink_unless_layers_are_aligned() -> None:
    apart = simulate(_NO_RESIDUAL, 0.0, layers=32, dimension=40, samples=10)
    aligned = simulate(_NO_RESIDUAL, 1.0, layers=32, dimension=40, samples=10)
    assert power(apart.gaps, 8) > -0.2
    assert power(aligned.gaps, 8) < -0.8


def test_exponents_of_figure_3_are_printed_for_mixtures_of_both_matrices_only() -> None:
    """The paper states them for tau in (0, 1); at 0 its own Lemma 4.3 gives sqrt(L) for the norm."""
    printed = {one.name: (one.norm, one.psi, one.gap) for one in statements() if one.name.startswith("Figure 3")}
    assert printed["Figure 3, tau 0"] == printed["Figure 3, tau 1"] == (None, None, None)
    assert [str(one) for one in printed["Figure 3, tau 0.5"]] == ["≥ 0.88", "about 0.5", "≤ -0.5"]

"""Factors of parametrisations folded into the weights, and gates that do not fold."""

from dataclasses import replace
from itertools import cycle

import pytest
import torch
from learned_factors import open_factors
from test_model_parametrisation import COMPLETEP, TOKENS, size

from gpas_cli.errors import GpasError
from gpas_cli.extensions.export.fold import fold, logit_difference, plain_llama
from gpas_cli.model.llama import build
from gpas_cli.spec.model import FAMILIES
from gpas_cli.spec.norm import SCHEMES
from gpas_cli.spec.parametrisation import Parametrisation
from gpas_cli.spec.parse_cell import parse_model


@pytest.mark.parametrize(
    ("scheme", "family"),
    list(
        zip(
            [scheme for scheme in SCHEMES if scheme != "b2t"],
            cycle(name for name, own in FAMILIES.items() if not own.encoder),
            strict=False,
        )
    ),
)
def test_the_factors_fold_into_the_weights(scheme: str, family: str) -> None:
    how = {**COMPLETEP, "base_heads": 1, "base_layers": 2}
    shape = {**size(2), "eps": 1e-30}
    values = {"size": shape, "norm": scheme, "family": family, "init": {"std": 0.2}, "parametrisation": how}
    ours = open_factors(build(parse_model(values)).double())
    standard = replace(ours.spec, parametrisation=Parametrisation())
    assert logit_difference(ours, fold(ours, standard), TOKENS) < 1e-11
    same = build(standard).double()
    same.load_state_dict(ours.state_dict())
    assert not logit_difference(ours, same, TOKENS) < 1e-3  # the factors had an effect


def test_a_gate_that_stops_the_stream_does_not_fold() -> None:
    made = build(parse_model({"size": size(2), "norm": "pre", "gate": {"like": "gpas", "activation": "identity"}}))
    with torch.no_grad():
        made.model.layers[0].gate.alpha.fill_(1.0)
    with pytest.raises(GpasError, match="multiplies the residual stream by 0"):
        fold(made, plain_llama(made.spec))

"""Folding into plain LLaMA weights is exact, and the bundled file needs no other."""

from __future__ import annotations

import ast
import itertools
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from gate_activations import ALL_ACTIVATIONS

from gpas_cli.errors import GpasError
from gpas_cli.model.bundle import Bundle
from gpas_cli.model.fold import fold, logit_difference, obstacle
from gpas_cli.model.layers import GpasGate, RMSNorm
from gpas_cli.model.llama import Llama, build
from gpas_cli.spec.gate import _SITES
from gpas_cli.spec.model import EMBEDS
from gpas_cli.spec.norm import SCHEMES
from gpas_cli.spec.parse_cell import parse_model

TOKENS = torch.arange(34).reshape(2, 17)
LLAMA_LIKE = ("pre", {"scheme": "lns", "apply": "init"}, {"scheme": "lns", "apply": "scale"})


def trained(norm: object, gate: object = None, *, embed: object = None, eps: float = 1e-10) -> Llama:
    """Return a network with norms and gates changed from their initial values."""
    size = {"hidden": 16, "ffn": 24, "heads": 2, "layers": 4, "vocab": 37, "eps": eps}
    values = {"size": size, "norm": norm, "gate": gate, "init": {"std": 0.2}}
    network = build(parse_model(values if embed is None else {**values, "embed": embed}))
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for module in network.modules():
            if isinstance(module, RMSNorm):
                module.weight *= 1 + 0.3 * torch.randn(16, generator=generator)
            elif isinstance(module, GpasGate):
                module.alpha += 0.4 * torch.randn(1, generator=generator)
    return network


@pytest.mark.parametrize("norm", LLAMA_LIKE, ids=str)
def test_every_gate_and_embedding_folds_exactly_but_for_eps(norm: object) -> None:
    gates = [None, *({"site": s, "share": share} for s, share in itertools.product(_SITES, ("layer", "sublayer")))]
    gates += [{"activation": activation, "init": 0.1} for activation in ALL_ACTIVATIONS]
    gates.append({"learnable": False, "init": [0.3, -0.2, 0.1, 0.5]})
    for gate, embed in (*((gate, "plain") for gate in gates), *(("gpas", embed) for embed in EMBEDS)):
        network = trained(norm, gate, embed=embed)
        assert obstacle(network.spec) == ""
        folded = fold(network)
        assert folded.spec.gate is None
        assert logit_difference(network, folded, TOKENS) < 2e-5, (gate, embed)


@pytest.mark.parametrize("site", _SITES)
def test_a_gate_that_negates_the_stream_folds_too(site: str) -> None:
    network = trained("pre", {"site": site})
    with torch.no_grad():
        for alpha, value in zip((gate.alpha for gate in network.gates()), (2.0, 0.1, -0.5, 1.9), strict=True):
            alpha.fill_(value)
    assert logit_difference(network, fold(network), TOKENS) < 2e-5


def test_eps_is_the_error_of_folding() -> None:
    gate = {"init": [1.0, 1.0, 1.0, 1.0]}
    errors = [logit_difference(n, fold(n), TOKENS) for n in (trained("pre", gate, eps=e) for e in (1e-10, 1e-6, 1e-4))]
    assert errors[0] < 2e-5 < 1e-3 < errors[2]
    assert errors[1] < errors[2]


def test_a_stream_multiplied_by_0_does_not_fold() -> None:
    network = trained("pre", {"activation": "identity"})
    next(network.gates()).alpha.data.fill_(1.0)
    with pytest.raises(GpasError, match=r"multiplies the residual stream by 0.*--bundled"):
        fold(network)


@pytest.mark.parametrize("norm", SCHEMES)
def test_schemes_that_cannot_be_folded_are_named(norm: str) -> None:
    model = trained(norm).spec
    reason = obstacle(model)
    assert (reason == "") == (norm in ("pre", "lns"))
    assert reason == "" or SCHEMES[model.scheme].title in reason


def test_the_bundled_file_does_not_import_this_package() -> None:
    tree = ast.parse(Bundle("gpas_cli.model.remote").text())
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    tops = {name.split(".")[0] for name in imported} - set(sys.stdlib_module_names)
    assert tops == {"torch", "transformers"}
    defined = [node.name for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)]
    assert len(set(defined)) == len(defined)
    assert {"Llama", "GpasForCausalLM", "GpasGate", "Gate"} <= set(defined)


def test_the_bundled_file_names_nothing_undefined(tmp_path: Path) -> None:
    path = tmp_path / "modeling.py"
    path.write_text(Bundle("gpas_cli.model.remote").text())
    checked = [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "F", str(path)]
    done = subprocess.run(checked, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_an_import_inside_a_function_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "gpas_cli"
    (package / "model").mkdir(parents=True)
    (package / "model/root.py").write_text("def f():\n    from gpas_cli.spec.parse import plain\n    return plain\n")
    monkeypatch.setattr("gpas_cli.model.bundle._PACKAGE", package)
    with pytest.raises(ValueError, match=r"imports gpas_cli\.spec\.parse inside its body"):
        Bundle("gpas_cli.model.root")

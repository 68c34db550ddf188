"""`gpas theory bounds`, in a project of its own."""

from pathlib import Path

import pytest
import torch
import yaml
from attempts import make_attempt
from face import gpas
from saving import save

from gpas_cli.extensions.theory.initialisation import depth_theory, examine
from gpas_cli.extensions.theory.tables import depth_remarks, depth_results, depth_table, print_theory
from gpas_cli.grid.expand import expand
from gpas_cli.grid.load import load
from gpas_cli.model.llama import build
from gpas_cli.spec.gate import activation
from gpas_cli.spec.parse_cell import cell_from
from gpas_cli.train.checkpoint import Position
from gpas_cli.train.optim import make_adam

EXPERIMENTS = """
version: 1
default: small
grids:
  small:
    title: Small
    base:
      size: {hidden: 16, ffn: 24, heads: 2, layers: 2, vocab: 280}
      norm: pre
      data: {source: files, path: "*.txt", tokenizer: bpe, layout: pack, length: 12}
      optim: {lr: 1e-3, warmup: 1, steps: 4, batch: 2}
    axes:
      gate: [{name: opened, like: gpas, init: 0.3}]
"""


def keep_trained_gates(folder: Path, alpha: float) -> None:
    """Write a run directory with the final checkpoint of the one cell, with its gates at `alpha`."""
    cell = expand(load(folder / "experiments.yaml"), ["small"])[0].cell
    network = build(cell.model)
    with torch.no_grad():
        for gate in network.gates():
            gate.alpha.fill_(alpha)
    attempt = make_attempt(folder / "runs", cell.key, {})
    save(attempt.checkpoints, cell.key, network, make_adam(network, cell.optim), Position(step=4))


def test_bounds_as_json(tmp_path: Path) -> None:
    (tmp_path / "experiments.yaml").write_text(EXPERIMENTS)
    keep_trained_gates(tmp_path, 0.7)
    document = gpas(tmp_path, "theory", "bounds", "opened", "--json").json["cells"][0]["bounds"]
    assert [layer["layer"] for layer in document["layers"]] == [1, 2]
    for layer in document["layers"]:
        assert layer["attention"]["bound"] >= layer["attention"]["norm"] > 1
        assert layer["bound"] == layer["attention"]["bound"] * layer["feed_forward"]["bound"]
    assert [row["layer"] for row in document["preserved"]] == [1, 2, 3]
    assert all(row["error"] < 1e-9 for row in document["preserved"])
    assert document["gates"] == "as trained (step-00000004)"
    assert document["preserved"][0]["predicted"] == pytest.approx((1 - activation("silu").value(0.7)) ** 4, rel=1e-6)
    document = gpas(tmp_path, "theory", "depth", "opened", "--json").json
    assert document["depth"]["log10_joined"] > document["depth"]["log10_bound"] > 0
    assert document["stages"]["bound"] > document["stages"]["gap"]
    assert any("(30)" in remark for remark in document["remarks"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["experiments.yaml", "runs"]


@pytest.mark.parametrize(("gate", "said"), [(0.3, "0.469"), (0.0, "1 everywhere"), (None, "")])
def test_bounds_as_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str], gate: float | None, said: str) -> None:
    values = yaml.safe_load(EXPERIMENTS)["grids"]["small"]["base"]
    values["optim"]["lr"] = 1e-3  # in YAML 1.1 a word
    norm = "pre" if gate is not None else "post"
    cell = cell_from({**values, "norm": norm, "gate": None if gate is None else {"init": gate}})
    print_theory(examine(cell, tmp_path, tmp_path))
    text = capsys.readouterr().out
    assert all(word in text for word in ("(20)", "(44)", "||J||", "random tokens", "equation 7", said))
    assert ("appendix B" in text) == (gate is not None)
    assert ("not the paper's" in text) == (norm == "post")
    bound, stages = depth_theory(cell, tmp_path, tmp_path, lambda layer: None)
    text = "\n".join([*depth_table(bound, stages).headers, *depth_results(bound, stages), *depth_remarks(cell, bound)])
    assert "RaPTr, theorem 4.2" in text
    assert ("(36)" in text) == ("A lacks a sigma^2" in text) == (norm == "pre")
    assert ("not for Post-LN" in text) == (norm == "post")

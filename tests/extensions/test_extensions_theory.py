"""The theory of a whole cell: its text, its gates, its norms' growth, its stability, and its refusals.

The coordinate check: activations change alike over width in muP, over depth in CompleteP, and more and more else.

`gpas theory`: what it prints and refuses.
"""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from attempts import make_attempt
from cases import cases, file_text
from face import FOUR, Face, gpas, tiny
from saving import save

from gpas_cli.data.loader import Batches
from gpas_cli.errors import Exit, GpasError, InvalidExperiments
from gpas_cli.extensions.networks.trained_cell import TrainedCell
from gpas_cli.extensions.theory import command, initialisation
from gpas_cli.extensions.theory.growth import coordinates, growth, growths, length_law
from gpas_cli.extensions.theory.initialisation import depth_theory, examine, identity_bounds, own_text
from gpas_cli.extensions.theory.stability import _NO_NORM, _NO_RESIDUAL, BOTH, laws, power, simulate, statements
from gpas_cli.extensions.theory.tables import depth_remarks, depth_results, depth_table, print_theory
from gpas_cli.grid.expand import expand
from gpas_cli.grid.load import load
from gpas_cli.model.llama import build
from gpas_cli.spec.cell import Cell
from gpas_cli.spec.gate import activation
from gpas_cli.spec.norm import SCHEMES
from gpas_cli.spec.parse_cell import cell_from
from gpas_cli.train.checkpoint import Position
from gpas_cli.train.optim import make_adam
from gpas_cli.train.training import prepare_text


def cell(**values: object) -> Cell:
    size = {"hidden": 16, "ffn": 24, "heads": 2, "layers": 2, "vocab": 280}
    data = {"source": "files", "path": "*.txt", "tokenizer": "bpe", "layout": "pad", "length": 12, "eval_tokens": 500}
    optim = {"lr": 0.01, "warmup": 3, "steps": 8, "batch": 4}
    return cell_from({"size": size, "gate": "gpas", "data": data, "optim": optim, **values})


def with_gates(cell: Cell, folder: Path, alpha: float) -> Path:
    """Return the final checkpoint of a cell, with its gates at `alpha`."""
    network = build(cell.model)
    with torch.no_grad():
        for gate in network.gates():
            gate.alpha.fill_(alpha)
    return save(folder, cell.key, network, make_adam(network, cell.optim), Position(step=cell.optim.steps))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for number in range(60):
        (tmp_path / f"{number:02d}.txt").write_text(f"gate {number} norm\n" if number % 2 else "gate norm " * 30)
    return tmp_path


def test_random_tokens_replace_text_that_is_not_tokenised_and_nothing_is_written(root: Path) -> None:
    report = examine(cell(), root / "cache", root)
    assert "random tokens" in report.sample
    assert (report.length, len(report.layers), len(report.preserved)) == (11, 2, 3)
    assert not (root / "cache").exists()


@cases("extensions/cases.yaml")
def test_other_networks_have_no_bounds(bounds: str, values: dict[str, object], message: str, root: Path) -> None:
    with pytest.raises(GpasError, match=message):
        getattr(initialisation, bounds)(cell(**values), root / "cache", root)


def test_tokenised_text_is_used_without_its_padding(root: Path) -> None:
    prepare_text(cell(), root / "cache", root, notify=lambda _: None)
    for seed in range(4):
        text = own_text(cell(seed=seed), root / "cache", root)
        corpus = prepare_text(cell(), root / "cache", root, notify=lambda _: None)
        batch = Batches(corpus.train, 4, seed).at(0)
        length = int((batch.targets[0] >= 0).sum())
        assert text.tokens.tolist() == [batch.inputs[0, :length].tolist()]
        assert text.targets.tolist() == [batch.targets[0, :length].tolist()]
    assert "first row of the cell's first batch" in examine(cell(), root / "cache", root).sample


def test_text_of_another_cell_does_not_start_tokenising(root: Path) -> None:
    prepare_text(cell(), root / "cache", root, notify=lambda _: None)
    other = {"source": "files", "path": "*1.txt", "tokenizer": "bpe", "layout": "pad", "length": 12}
    assert own_text(cell(data=other), root / "cache", root) is None


def test_gates_come_from_the_first_readable_checkpoint(root: Path) -> None:
    path = with_gates(cell(), root / "kept", 0.7)
    broken = root / "step-00000009"
    broken.write_bytes(b"torn")
    report = examine(cell(), root / "cache", root, [broken, path])
    assert report.gates == "as trained (step-00000008)"
    assert report.preserved[0].predicted == pytest.approx((1 - 0.7 / (1 + 2.718281828459045**-0.7)) ** 4, rel=1e-6)
    assert report.preserved[0].error < 1e-12
    assert "none of 1" in examine(cell(), root / "cache", root, [broken]).gates
    assert examine(cell(gate=None), root / "cache", root, [path]).preserved == ()


def test_a_network_beyond_memory_is_refused_before_it_is_built(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(initialisation, "_BYTES_PER_PARAMETER", 10**15)
    with pytest.raises(GpasError, match="GB are free"):
        examine(cell(), root / "cache", root)


def test_each_layer_is_announced(root: Path) -> None:
    notices: list[str] = []
    assert examine(cell(), root / "cache", root, notify=notices.append).layers
    assert notices[-1].startswith(f"layer {cell().model.size.layers} of {cell().model.size.layers}")


def test_a_narrow_network_is_computed_in_one_thread(root: Path) -> None:
    """On a busy machine two threads wait for each other: 115 s instead of 4 s for the quickstart's network."""
    before = torch.get_num_threads()
    seen: list[int] = []
    torch.set_num_threads(3)
    try:
        examine(cell(), root / "cache", root, notify=lambda _: seen.append(torch.get_num_threads()))
        identity_bounds(cell(), root / "cache", root, notify=lambda _: seen.append(torch.get_num_threads()))
        assert set(seen) == {1}
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_layers_are_announced_with_an_estimate_of_the_remaining_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(initialisation.time, "monotonic", lambda: now)
    notices: list[str] = []
    for _ in initialisation.announced(3, notices.append):
        now += 4
    assert notices == ["layer 1 of 3", "layer 2 of 3, about 8 s left", "layer 3 of 3, about 4 s left"]


SIZE = {"hidden": 64, "ffn": 128, "heads": 4, "layers": 8, "vocab": 300}
RECIPE = {"lr": 1e-3, "warmup": 1, "steps": 2, "batch": 2}


def grown(std: float) -> Cell:
    data = {"source": "stdlib", "tokenizer": "bpe", "length": 64}
    return cell_from({"size": SIZE, "init": {"std": std}, "data": data, "optim": RECIPE})


def test_layers_of_the_proof_add_between_d_and_2d_and_scaled_paths_grow_like_the_whole_network() -> None:
    proof, whole, scaled, unscaled = growths(grown(0.08))
    assert 1 <= proof.slope <= 2  # lemma F.10
    assert proof.fit > 0.9
    assert scaled.slope == pytest.approx(whole.slope, rel=0.2)
    assert unscaled.slope < 0.7 * whole.slope
    assert len(whole.squares) == SIZE["layers"] + 1


def test_a_line_fits_a_line() -> None:
    found = growth("", [1.0, 3.0, 5.0])
    assert (found.slope, found.fit) == (pytest.approx(2.0), pytest.approx(1.0))


def test_variance_falls_with_the_length() -> None:
    found = length_law(grown(0.03), (16, 64, 256))
    assert found.exponent == pytest.approx(-1, abs=0.1)
    assert [point.measured / point.predicted for point in found.points] == pytest.approx([1.0] * 3, abs=0.15)


def test_dropping_a_layer_is_the_network_without_it() -> None:
    found = simulate(_NO_NORM, 0.0, layers=3, dimension=5)
    random = np.random.default_rng(0)
    x = random.standard_normal((100, 5))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    random.standard_normal((5, 5))  # the shared matrix, which has no share here
    maps = [np.eye(5) + random.standard_normal((5, 5)) / np.sqrt(5) for _ in range(3)]
    whole = x @ (maps[2] @ maps[1] @ maps[0]).T
    without = x @ (maps[2] @ maps[0]).T
    assert found.psi[1][1] == pytest.approx(np.linalg.norm(without - whole, axis=1).mean())
    assert found.norms[-1][1] == pytest.approx(np.linalg.norm(whole, axis=1).mean())


def test_networks_that_share_their_layers_do_not_depend_on_which_one_is_dropped() -> None:
    found = simulate(BOTH, 1.0, layers=16, dimension=12)
    values = [value for _, value in found.psi]
    assert max(values) == pytest.approx(min(values))


@cases("extensions/cases.yaml")
def test_fitted_exponents_are_near_those_of_the_lemmas(name: str, norm: float, psi: float, gap: float) -> None:
    statement = next(one for one in statements() if one.name == name)
    found = laws(statement, simulate(statement.kind, statement.tau, layers=32))
    assert [law.fitted for law in found] == pytest.approx([norm, psi, gap], abs=0.15)


def test_without_a_residual_connection_the_gap_does_not_shrink_unless_layers_are_aligned() -> None:
    apart = simulate(_NO_RESIDUAL, 0.0, layers=32, dimension=40)
    aligned = simulate(_NO_RESIDUAL, 1.0, layers=32, dimension=40)
    assert power(apart.gaps, 8) > -0.2
    assert power(aligned.gaps, 8) < -0.8


def test_exponents_of_figure_3_are_printed_for_mixtures_of_both_matrices_only() -> None:
    """The paper states them for tau in (0, 1); at 0 its own Lemma 4.3 gives sqrt(L) for the norm."""
    printed = {one.name: (one.norm, one.psi, one.gap) for one in statements() if one.name.startswith("Figure 3")}
    assert printed["Figure 3, tau 0"] == printed["Figure 3, tau 1"] == (None, None, None)
    assert [str(one) for one in printed["Figure 3, tau 0.5"]] == ["≥ 0.88", "about 0.5", "≤ -0.5"]


def coordinates_cell(**values: object) -> Cell:
    recipe = {"lr": 2e-3, "warmup": 1, "steps": 9, **values.pop("optim", {})}  # type: ignore[dict-item]
    return cell_from({"size": "quickstart", "data": "quickstart", "optim": recipe, **values})


IDENTITY = ("rezero", "skipinit")  # whose branches are 0 at first
NORMED = ("sandwich", "peri")  # whose branches end with a norm
CASES = [
    pytest.param(scheme, gate, marks=() if scheme == "post" else pytest.mark.release)
    for scheme, gate in [("pre", "none"), *((scheme, "gpas") for scheme in SCHEMES)]
]


@pytest.mark.parametrize("start", [None, TrainedCell(coordinates_cell(), "first/pre")], ids=["new", "started"])
def test_what_is_measured(start: TrainedCell | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """New networks of other shapes: also of a cell that starts from another one."""
    monkeypatch.setattr(
        "gpas_cli.extensions.theory.growth._changes",
        lambda coordinates_cell, *_: [coordinates_cell.model.size.hidden] * 4,
    )
    found = coordinates(replace(coordinates_cell(), start=start), tmp_path, tmp_path)
    assert {one.at for one in found} == {(32, 64, 128, 256), (4, 8, 16)}


@pytest.mark.parametrize(("scheme", "gate"), CASES)
def test_activations_change_alike(scheme: str, gate: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the narrowest and the widest: those between cost time and add little."""
    monkeypatch.setattr("gpas_cli.extensions.theory.growth._FACTORS", {"width": (1, 8), "depth": (1, 4)})
    found = coordinates(coordinates_cell(norm=scheme, gate=gate), tmp_path, tmp_path)
    exponents = {(one.over, one.parametrisation, one.place): one.exponent for one in found}
    assert abs(exponents["width", "mup", "4"]) < 0.15
    assert exponents["width", "standard", "4"] > 0.5 or scheme in (*IDENTITY, *NORMED)
    assert abs(exponents["depth", "completep", "4"]) < 0.2
    assert exponents["depth", "standard", "4"] > 0.35 or scheme in IDENTITY
    assert {one.flat for one in found if one.parametrisation != "standard"} == {True, None}
    # The logits' initial values shrink as 1/sqrt(width), and with them a part of their change.
    assert exponents["width", "standard", "logits"] > 0.7 > 0.1 > exponents["width", "mup", "logits"] > -0.3
    assert abs(exponents["depth", "completep", "logits"]) < 0.1


def test_a_recipe_without_the_rules_is_refused_before_any_training(tmp_path: Path) -> None:
    declared = coordinates_cell(optim={"optimizer": "adafactor"})
    with pytest.raises(InvalidExperiments, match="no rule for adafactor"):
        coordinates(declared, tmp_path, tmp_path, notify=pytest.fail)


EXPERIMENTS = file_text("experiments/theory.yaml")


def declared_base() -> dict[str, Any]:
    values: dict[str, Any] = yaml.safe_load(EXPERIMENTS)["grids"]["small"]["base"]
    values["optim"]["lr"] = 1e-3  # in YAML 1.1 a word
    return values


def keep_trained_gates(folder: Path, alpha: float) -> None:
    """Write a run directory with the final checkpoint of the one cell, with its gates at `alpha`."""
    cell = expand(load(folder / "experiments.yaml"), ["small"])[0].cell
    with_gates(cell, make_attempt(folder / "runs", cell.key, {}).checkpoints, alpha)


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
    assert document["preserved"][0]["predicted"] == pytest.approx((1 - activation("silu", 0.7)[0]) ** 4, rel=1e-6)
    document = gpas(tmp_path, "theory", "depth", "opened", "--json").json
    assert document["depth"]["log10_joined"] > document["depth"]["log10_bound"] > 0
    assert document["stages"]["bound"] > document["stages"]["gap"]
    assert any("(30)" in remark for remark in document["remarks"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["experiments.yaml", "runs"]


@pytest.mark.parametrize(("gate", "said"), [(0.3, "0.469"), (0.0, "1 everywhere"), (None, "")])
def test_bounds_as_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str], gate: float | None, said: str) -> None:
    norm = "pre" if gate is not None else "post"
    cell = cell_from({**declared_base(), "norm": norm, "gate": None if gate is None else {"init": gate}})
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


def test_laws_of_decoders_are_refused_for_a_cell_with_an_encoder(monkeypatch: pytest.MonkeyPatch) -> None:
    translation = {"family": "encoder-decoder", "objective": "translation"}
    base = declared_base() | {"data": {"source": "languages", "length": 64}}
    cell = cell_from({**base, **translation})
    monkeypatch.setattr(command, "find_cells", lambda names: [SimpleNamespace(cell=cell)])
    with pytest.raises(GpasError, match="only for decoders"):
        command.norms(cell="translating")


@pytest.mark.parametrize(("power", "code"), [(0, Exit.DONE), (1, Exit.FAILED)])
def test_a_stream_that_grows_with_the_width_in_mup_is_not_flat(
    power: int, code: Exit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = "gpas_cli.extensions.theory.growth._changes"
    monkeypatch.setattr(changes, lambda cell, *_: [float(cell.model.size.hidden**power)] * 4)
    face = Face(tmp_path / "project", tiny(FOUR))
    said = face("theory", "coordinates", "tiny/s1", expect=code).out
    assert ("not flat" in said) == bool(power)

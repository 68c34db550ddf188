"""`gpas export`: `transformers` loads the network from the folder; gates are folded where that is exact.

Gates folded into the weights of their own scheme: every scheme, position and family, in float64.
"""

import ast
import itertools
import json
import math
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from attempts import make_attempt
from disks import full
from end_to_end import Toy
from exporting import Room, needs_transformers
from gate_activations import SOFTSIGN
from gate_placements import PLACEMENTS, spread, two_layers
from goldens import golden_cases
from learned_factors import open_factors
from safetensors.torch import load_file

from gpas_cli.errors import GpasError
from gpas_cli.extensions.export.command import _checked
from gpas_cli.extensions.export.files import Bundle, write_folder
from gpas_cli.extensions.export.fold import fold, logit_difference, obstacle, plain_llama
from gpas_cli.extensions.networks import opening
from gpas_cli.grid.expand import expand
from gpas_cli.grid.load import load
from gpas_cli.model.layers import GpasGate, LayerNorm, LearnedFactor, RMSNorm
from gpas_cli.model.llama import Llama, build
from gpas_cli.spec.gate import _SITES
from gpas_cli.spec.model import EMBEDS, FAMILIES
from gpas_cli.spec.norm import SCHEMES
from gpas_cli.spec.parametrisation import Parametrisation
from gpas_cli.spec.parse_cell import parse_model
from gpas_cli.spec.run import Cadence
from gpas_cli.store.journal import Journal
from gpas_cli.train.training import Execution, RunPaths, prepare_text, train

GPAS = {f"{norm}{'-gpas' if gate else ''}": {"norm": norm, "gate": gate} for norm in SCHEMES for gate in (None, "gpas")}
FOLDED = ("pre", "lns", "layerscale", "scalars", "scaled-branches")
COMPLETEP = {"like": "completep", "base_hidden": 8, "base_heads": 2, "base_layers": 2}
OTHERS = golden_cases("networks")["exported"]
OF_PYTHON_3_11 = {"Never", "Self", "StrEnum", "assert_never", "assert_type", "dataclass_transform", "reveal_type"}


@needs_transformers
@pytest.mark.parametrize(
    "names", [["pre", "pre-gpas", "post-completep"], pytest.param([*GPAS, *OTHERS], marks=pytest.mark.release)]
)
def test_perplexity_through_transformers_is_ours(room: Room, names: list[str]) -> None:
    cells = {name: room.cell(**{**GPAS, **OTHERS}[name]) for name in names}
    forms = {name: room.export(cell, name).form for name, cell in cells.items()}
    cells["pre-own-code"] = cells["pre-gpas"]
    forms["pre-own-code"] = room.export(cells["pre-gpas"], "pre-own-code", bundled=True).form
    ours = {name: room.perplexity(cell) for name, cell in cells.items()}
    found = load_all(room.folder, ours["pre"][1], list(cells))
    corpus = prepare_text(cells["pre"], room.folder / "cache", room.folder, lambda _: None)
    for name, seen in found.items():
        assert seen["problems"] == [], name
        assert seen["perplexity"] == pytest.approx(ours[name][0], rel=1e-4), name
        plain = name.startswith(FOLDED) and name not in ("pre-own-code", "pre-qk-width", "pre-dyt")
        known = "Qwen3ForCausalLM" if name.startswith("lns-qk") else "LlamaForCausalLM"
        assert (forms[name], seen["class"]) == (("llama", known) if plain else ("bundled", "GpasForCausalLM"))
        config = json.loads((room.folder / "out" / name / "config.json").read_text())
        assert plain or (config["network"]["gate"] is None) == (name != "pre-own-code"), name
        assert seen["ids"] == corpus.tokenizer.encode("gate norm</s> stream")
        assert seen["special"] == (1, 0)
    # Different networks, so that loading one for another would have shown; ReZero and SkipInit differ in sharing alone.
    different = [name for name in GPAS if name in names and not name.startswith("skipinit")]
    assert len({round(ours[name][0], 3) for name in different}) == len(different)


def load_all(folder: Path, rows: list[list[int]], names: list[str]) -> dict[str, dict[str, Any]]:
    """Return what `transformers` finds in the folders while gpas_cli cannot be imported."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    ids = torch.tensor(rows)
    found = {}
    with pytest.MonkeyPatch.context() as hidden:
        for module in [name for name in sys.modules if name.split(".")[0] == "gpas_cli"]:
            hidden.setitem(sys.modules, module, None)
        for name in names:
            path = folder / "out" / name
            load = AutoModelForCausalLM.from_pretrained
            network, info = load(path, trust_remote_code=True, output_loading_info=True)
            with torch.no_grad():
                loss = network(input_ids=ids, labels=ids).loss.item()
            words = AutoTokenizer.from_pretrained(path, trust_remote_code=True)
            found[name] = {
                "class": type(network).__name__, "perplexity": math.exp(loss),
                "problems": [*info["missing_keys"], *info["unexpected_keys"], *info["mismatched_keys"]],
                "ids": words("gate norm</s> stream").input_ids, "special": (words.eos_token_id, words.pad_token_id),
            }  # fmt: skip
    return found


def test_an_error_above_the_bound_is_refused_and_nothing_is_written(room: Room) -> None:
    cell = room.cell(gate="gpas", seed=5)
    alphas = (1.25, 1.25, 1.25, 1.25)
    with pytest.raises(GpasError, match=r"changes the logits by .* more than --max-error 0\.001.*--bundled"):
        room.export(cell, "refused", alphas)
    assert not (room.folder / "out/refused").exists()
    assert room.export(cell, "allowed", alphas, max_error=2.0).measured.random_error > 1e-3
    assert room.export(cell, "exact", alphas, bundled=True).measured.random_error is None


def test_measurements_are_reported_and_recorded(room: Room) -> None:
    written = room.export(room.cell(gate="gpas", seed=6), "described")
    measured = written.measured
    assert 0 < measured.random_error < 1e-4
    assert 0 < measured.held_out_error < 1e-4
    assert measured.exported_perplexity == pytest.approx(measured.perplexity, rel=1e-5)
    assert measured.held_out_tokens >= 500
    kept = json.loads((room.folder / "out/described/gpas.json").read_text())
    assert kept["measured"]["random_error"] == measured.random_error
    assert kept["cell"]["gate"]["activation"] == "silu"
    with pytest.raises(GpasError, match="already exists and is not an empty folder"):
        room.export(room.cell(gate="gpas", seed=6), "described")


def test_gates_that_do_not_fold_stay_in_the_code_and_a_note_says_why(room: Room) -> None:
    folded = room.export(room.cell(norm="sandwich", gate="gpas", seed=9), "gateless")
    assert (folded.form, folded.folded, folded.notes) == ("bundled", True, ())
    assert 0 < folded.measured.random_error < 1e-4
    assert "without gates: they are folded" in (room.folder / "out/gateless/README.md").read_text()
    assert not any("alpha" in name for name in load_file(room.folder / "out/gateless/model.safetensors"))
    stopped = {"activation": "identity"}
    for name, gate, alphas, why in (
        ("zero", stopped, (0.5, 1.0, 0.0, 0.0), "a gate up to layer 2 multiplies the residual stream by 0"),
        ("eps", "gpas", (1.25, 1.25, 1.25, 1.25), "more than --max-error 0.001: .* the norms' eps"),
    ):
        kept = room.export(room.cell(norm="sandwich", gate=gate, seed=9), name, alphas)
        assert (kept.form, kept.folded, kept.measured.random_error) == ("bundled", False, None)
        assert re.fullmatch(f"the gates are kept in the code: .*{why}.*", kept.notes[0])
        assert any("alpha" in found for found in load_file(room.folder / f"out/{name}/model.safetensors"))


def test_a_full_disk_is_one_message_and_leaves_nothing(room: Room, small_disk: Path) -> None:
    network = build(room.cell(gate="gpas").model)
    with full(small_disk), pytest.raises(GpasError, match=r"folder cannot be written: .*No space left on device"):
        write_folder(small_disk / "folder", network.state_dict(), {})
    assert not list(small_disk.iterdir())


def test_each_step_is_announced_and_a_narrow_network_is_compared_in_one_thread(room: Room) -> None:
    steps: list[str] = []
    used: list[int] = []
    before = torch.get_num_threads()
    cell = room.cell(gate="gpas", seed=7)
    torch.set_num_threads(3)
    try:
        room.export(cell, "steps", notify=lambda step: (steps.append(step), used.append(torch.get_num_threads())))
    finally:
        torch.set_num_threads(before)
    assert [step.split()[0] for step in steps][-3:] == ["reading", "comparing", "writing"]
    assert used[-3:] == [3, 1, 3]


def test_bfloat16_weights_are_folded_in_float32_and_bundled_unchanged(room: Room) -> None:
    plain, own = (room.cell(norm=norm, gate="gpas", precision="pure_bf16") for norm in ("pre", "sandwich"))
    for cell, name in ((plain, "bf16-pre"), (own, "bf16-sandwich")):
        written = room.export(cell, name)
        assert (written.dtype, written.folded) == ("float32", True)
    kept = room.export(own, "bf16-kept", max_error=1e-12)  # tried in float32, then exported as it was
    assert room.export(own, "bf16-own", bundled=True).dtype == kept.dtype == "bfloat16"
    tensors, again = (load_file(room.folder / f"out/{name}/model.safetensors") for name in ("bf16-own", "bf16-kept"))
    assert {tensor.dtype for tensor in tensors.values()} == {torch.bfloat16}
    assert all(torch.equal(tensor, again[name]) for name, tensor in tensors.items())
    assert json.loads((room.folder / "out/bf16-own/config.json").read_text())["torch_dtype"] == "bfloat16"


def test_an_export_is_written_without_transformers(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    for name in ("pre", "sandwich"):
        room.export(room.cell(norm=name), f"alone-{name}")
        assert (room.folder / f"out/alone-{name}/model.safetensors").stat().st_mode & 0o777 == 0o644


def test_another_tokenizer_is_not_exported_as_the_cells(room: Room) -> None:
    written = room.export(room.cell(gate="gpas", seed=7), "other", tokenizer="0" * 64)
    assert "trained with tokenizer 000000000000" in written.notes[0]
    assert not (room.folder / "out/other/tokenizer.json").exists()
    assert (written.measured.held_out_error, written.measured.perplexity) == (None, None)
    assert written.measured.random_error is not None


def test_a_damaged_checkpoint_is_named_with_the_remedy(room: Room) -> None:
    cell = room.cell(gate="gpas", seed=8)
    trained = room.checkpoint(cell)
    shard = trained / "00000.safetensors"
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(bytes(content))
    with pytest.raises(GpasError, match=r"checksum.*delete it"):
        room.export(cell, "damaged", trained=trained)


def test_the_command_exports_the_checkpoint_of_a_run(tmp_path: Path) -> None:
    toy = Toy(tmp_path / "toy")
    refusal = toy("export", "pre-gpas-s1", "out", expect=2).err
    assert "small/pre-gpas-s1 has no checkpoint of its pretrain" in refusal
    assert "`gpas run grid small` trains it" in refusal
    assert not (toy.folder / "out").exists()
    experiments = load(toy.folder / "experiments.yaml")
    cell = next(entry.cell for entry in expand(experiments, ["small"]) if entry.name == "pre-gpas-s1")
    attempt = make_attempt(toy.runs, cell.key, {})
    paths = RunPaths(attempt.checkpoints, [], toy.folder / "cache", toy.folder)
    journal = Journal(attempt.journal_path)
    stop = iter([None] * 10 + ["interrupted"]).__next__
    train(cell, paths, journal.append, Execution(Cadence(checkpoint_every=10), stop))
    journal.close()
    text = toy("export", "pre-gpas-s1", "out").out
    readme = (toy.folder / "out/README.md").read_text()
    assert "Cell `small/pre-gpas-s1`" in readme
    assert "plain LLaMA" in text
    assert "after update 10 of 20" in text
    assert "training has not ended" in text
    assert ("loads it" if find_spec("transformers") else "not checked with transformers: ") in text
    report = toy("export", "pre-gpas-s1", "again", "--bundled", "--json").json
    assert (report["schema"], report["form"], report["step"]) == (1, "bundled", 10)
    assert {path.name for path in (toy.folder / "again").iterdir()} == {
        "README.md", "config.json", "generation_config.json", "gpas.json", "model.safetensors",
        "modeling_gpas.py", "tokenizer.json", "tokenizer_config.json",
    }  # fmt: skip


TOKENS = torch.arange(34).reshape(2, 17)
LLAMA_LIKE = ("pre", {"scheme": "lns", "apply": "init"}, {"scheme": "lns", "apply": "scale"})


def changed(layers: int, eps: float, factors: float = 0.0, **values: object) -> Llama:
    """Return a network in float64 with norms, factors, gates and biases unlike their initial values."""
    size = {"hidden": 16, "ffn": 24, "heads": 2, "layers": layers, "vocab": 37, "eps": eps}
    network = build(parse_model({"size": size, "init": {"std": 0.2}, **values})).double()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for module in network.modules():
            if isinstance(module, RMSNorm | LayerNorm):
                module.weight *= 1 + 0.3 * torch.randn(module.weight.shape, generator=generator)
            elif isinstance(module, LearnedFactor):
                module.weight += factors + 0.3 * torch.randn(module.weight.shape, generator=generator)
            elif isinstance(module, GpasGate):
                module.alpha += 0.4 * torch.randn(1, generator=generator)
            if isinstance(bias := getattr(module, "bias", None), torch.Tensor):
                bias += 0.3 * torch.randn(bias.shape, generator=generator)
    return network


def trained(norm: object, gate: object = None, eps: float = 1e-10, **embed: object) -> Llama:
    return changed(4, eps, norm=norm, gate=gate, **embed)


@pytest.mark.parametrize("norm", LLAMA_LIKE, ids=str)
def test_every_gate_and_embedding_folds_exactly_but_for_eps(norm: object) -> None:
    gates = [None, *({"site": s, "share": share} for s, share in itertools.product(_SITES, ("layer", "sublayer")))]
    gates += [{"activation": SOFTSIGN, "init": 0.1}, {"learnable": False, "init": [0.3, -0.2, 0.1, 0.5]}]
    for gate, embed in (*((gate, "plain") for gate in gates), *(("gpas", embed) for embed in EMBEDS)):
        network = trained(norm, gate, embed=embed)
        assert obstacle(network.spec) == ""
        folded = fold(network, plain_llama(network.spec))
        assert folded.spec.gate is None
        assert logit_difference(network, folded, TOKENS) < 2e-5, (gate, embed)


def test_eps_is_the_error_of_folding() -> None:
    gate = {"init": [1.0, 1.0, 1.0, 1.0]}
    networks = [trained("pre", gate, eps=eps) for eps in (1e-10, 1e-6, 1e-4)]
    errors = [logit_difference(network, fold(network, plain_llama(network.spec)), TOKENS) for network in networks]
    assert errors[0] < 2e-5 < 1e-3 < errors[2]
    assert errors[1] < errors[2]


def test_a_gate_does_not_fold_into_a_norm_that_keeps_scale() -> None:
    model = parse_model({"size": "quickstart", "gate": "gpas", "family": {"norm": "dyt"}})
    with pytest.raises(GpasError, match="dyt does not undo the scale"):
        fold(build(model), replace(model, gate=None))


@pytest.mark.parametrize("norm", SCHEMES)
def test_schemes_that_cannot_be_folded_are_named(norm: str) -> None:
    model = trained(norm).spec
    reason = obstacle(model)
    assert (reason == "") == (norm in FOLDED)
    assert reason == "" or SCHEMES[model.scheme].title in reason


def test_a_width_that_transformers_refuses_is_named() -> None:
    size = {"hidden": 30, "ffn": 24, "heads": 4, "layers": 2, "vocab": 300}
    assert obstacle(parse_model({"size": {**size, "head_dim": 8}})).startswith("its width is no multiple of its heads")
    assert obstacle(parse_model({"size": {**size, "hidden": 32, "head_dim": 10}})) == ""


def test_the_bundled_file_imports_neither_this_package_nor_what_python_3_10_lacks() -> None:
    tree = ast.parse(Bundle("gpas_cli.extensions.export.remote").text(), feature_version=(3, 10))
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    parts = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    imported |= {node.module or "" for node in parts}
    assert {one.name for node in parts for one in node.names} & OF_PYTHON_3_11 == set()
    tops = {name.split(".")[0] for name in imported} - set(sys.stdlib_module_names)
    assert tops == {"torch", "transformers"}
    defined = [node.name for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)]
    assert len(set(defined)) == len(defined)
    assert {"Llama", "GpasForCausalLM", "GpasGate", "Gate"} <= set(defined)


@pytest.mark.skipif(find_spec("ruff") is None, reason="needs ruff")
def test_the_bundled_file_names_nothing_undefined(tmp_path: Path) -> None:
    path = tmp_path / "modeling.py"
    path.write_text(Bundle("gpas_cli.extensions.export.remote").text())
    checked = [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "F", str(path)]
    done = subprocess.run(checked, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_an_import_inside_a_function_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "gpas_cli"
    (package / "model").mkdir(parents=True)
    (package / "model/root.py").write_text("def f():\n    from gpas_cli.spec.parse import plain\n    return plain\n")
    monkeypatch.setattr("gpas_cli.extensions.export.files._PACKAGE", package)
    with pytest.raises(ValueError, match=r"imports gpas_cli\.spec\.parse inside its body"):
        Bundle("gpas_cli.model.root")


ALPHAS = (0.3, -0.6, 1.7)  # factors of 0.7, 1.6 and -0.7
# The positions at which a factor of 0 folds: into the weight of a norm, or of the last matrix of the branch. At all
# others it removes the stream from a sum, which only a gate does.
ZERO_FOLDS = {
    **{scheme: {"after-norm", "after-module"} for scheme in SCHEMES},
    # Without norms before sub-layers, all others are on the stream.
    **{scheme: {"after-module"} for scheme in ("rezero", "skipinit", "hybridnorm")},
    "post": {"after-norm", "after-module", "after-sublayer"},
    "deepnorm": {"after-norm", "after-module", "after-sublayer"},
}


def gated(scheme: str, site: str, *, family: str = "llama", **gate: object) -> Llama:
    """Return a network whose eps does not matter, with gates at ALPHAS."""
    gate = {"site": site, "activation": "identity", "init": 0.2, **gate}
    network = changed(3, 1e-30, 0.5, norm=two_layers(scheme), gate=gate, family=family)
    for module, alpha in zip(network.gates(), itertools.cycle(ALPHAS), strict=False):
        module.alpha.data.fill_(alpha)
    return network


@contextmanager
def without_effect(network: Llama) -> Iterator[None]:
    """Set all gates to a factor of 1 inside the context."""
    before = [gate.alpha.clone() for gate in network.gates()]
    with torch.no_grad():
        for gate in network.gates():
            gate.alpha.zero_()
        yield
        for gate, alpha in zip(network.gates(), before, strict=True):
            gate.alpha.copy_(alpha)


DECODERS = [name for name, family in FAMILIES.items() if not family.encoder]


@pytest.mark.parametrize(
    ("scheme", "site", "family", "share", "learnable"),
    [one for one in spread(DECODERS, ("layer", "sublayer"), (True, False)) if one[0] != "b2t"],
)
def test_every_gate_folds_into_its_own_scheme(scheme: str, site: str, family: str, share: str, learnable: bool) -> None:
    network = gated(scheme, site, learnable=learnable, family=family, share=share)
    folded = fold(network, replace(network.spec, gate=None))
    assert (folded.spec.gate, folded.spec.scheme, list(folded.gates())) == (None, scheme, [])
    assert logit_difference(network, folded, TOKENS) < 1e-11
    # Leaving the gates out would have been another network, except where a norm removes any scale.
    with without_effect(network):
        changed = logit_difference(folded, network, TOKENS)
    assert changed > 1e-3 or (scheme, site) in (("post", "after-sublayer"), ("deepnorm", "after-sublayer"))


@pytest.mark.parametrize(("scheme", "site"), [one for one in PLACEMENTS if one[0] != "b2t"])
def test_a_factor_of_0_folds_only_where_it_leaves_the_stream_in_the_sum(scheme: str, site: str) -> None:
    # With biases, the stream grows again. With stop-gradient, a factor of 0 would be 2^-60.
    network = gated(scheme, site, stop_gradient=False, family="gpt")
    list(network.gates())[1].alpha.data.fill_(1.0)
    goal = replace(network.spec, gate=None)
    if site in ZERO_FOLDS[scheme]:
        assert logit_difference(network, fold(network, goal), TOKENS) < 1e-11
    else:
        # After the sublayer, the gate of layer 2 takes the stream from the sums of layer 2 or, behind them, of 3.
        with pytest.raises(GpasError, match=r"up to layer [23] multiplies the residual stream by 0"):
            fold(network, goal)


def test_gates_below_a_bottom_to_top_connection_do_not_fold() -> None:
    network = gated("b2t", "after-norm")
    with pytest.raises(GpasError, match="a layer's input, which none of them scales, is added to its end"):
        fold(network, replace(network.spec, gate=None))


@pytest.mark.parametrize(
    ("scheme", "family"), [*zip((one for one in SCHEMES if one != "b2t"), itertools.cycle(DECODERS), strict=False)]
)
def test_the_factors_fold_into_the_weights(scheme: str, family: str) -> None:
    how = {**COMPLETEP, "base_heads": 1}
    shape = {"hidden": 16, "ffn": 24, "heads": 2, "layers": 4, "vocab": 37, "eps": 1e-30}
    values = {"size": shape, "norm": scheme, "family": family, "init": {"std": 0.2}, "parametrisation": how}
    ours = open_factors(build(parse_model(values)).double())
    standard = replace(ours.spec, parametrisation=Parametrisation())
    assert logit_difference(ours, fold(ours, standard), TOKENS) < 1e-11
    same = build(standard).double()
    same.load_state_dict(ours.state_dict())
    assert not logit_difference(ours, same, TOKENS) < 1e-3  # the factors had an effect


def test_the_output_says_that_transformers_has_not_read_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "find_spec", lambda name: None)
    said = _checked(tmp_path)
    assert said.startswith("not checked with transformers: ")
    assert "not installed: pip install 'gpas-cli[export]'" in said
    monkeypatch.setattr(opening, "find_spec", lambda name: "found")
    assert _checked(tmp_path) == (
        f"not checked with transformers: {tmp_path} has no config.json: it is not a folder that transformers loads "
        "(`gpas export`)"
    )

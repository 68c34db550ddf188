"""The words of other tools and of plain English are answered with what to write here."""

import re
from pathlib import Path

import pytest
from grids import complaints, whole

import gpas_cli

# What somebody writes into the base or an axis of a grid, and how the message ends.
IN_BASE = {
    **dict.fromkeys(("lr: 1", "learning_rate: 1", "max_lr: 1"), "write optim.lr"),
    "optim: {learning_rate: 1e-3}": "did you mean 'lr'?",
    "wd: 0": "write optim.weight_decay",
    "optim: {wd: 0}": "did you mean 'weight_decay'?",
    **dict.fromkeys(("bs: 1", "batch_size: 1"), "write optim.batch"),
    **dict.fromkeys(("max_steps: 1", "iterations: 1"), "write optim.steps"),
    "optim: {max_steps: 1}": "did you mean 'steps'?",
    "optim: {max_grad_norm: 1}": "did you mean 'clip'?",
    "optim: {betas: [0.9, 0.95]}": "write beta1 and beta2, in optim",
    "epochs: 1": "there are no epochs: `repeat` of a mixture reads a text again",
    "tokens: 1e9": "write optim.steps, which times optim.batch times data.length are the tokens",
    "warmup_steps: 1": "write optim.warmup",
    "lr_scheduler: cosine": "write optim.schedule",
    "optimizer: adamw": "write optim.optimizer",
    "seq_len: 64": "write data.length",
    "tokenizer: gpt2": "write data.tokenizer",
    "dataset: c4": "did you mean 'data'?",
    **dict.fromkeys(("bf16: true", "dtype: float32"), "did you mean 'precision'?"),
    "model: 71m": "did you mean 'size'?",
    **{f"{word}: 8": "write size.hidden" for word in ("hidden_size", "d_model", "n_embd")},
    "n_layers: 8": "write size.layers",
    "activation: relu": "write gate.activation",
    "gate: {position: home}": "did you mean 'site'?",
    "gate: {activation: swish}": "did you mean 'silu'?",
    "gate: {activation: 'alpha ^ 2 + alpha'}": "a formula cannot have '^'; write alpha ** 2 + alpha",
    **dict.fromkeys(("gate: true", "gate: yes"), "did you mean 'gpas'?"),
    "gate: false": "did you mean 'none'?",
    **dict.fromkeys(("norm: prenorm", "norm: Pre-LN", "norm: pre_norm"), "did you mean 'pre'?"),
    "norm: rmsnorm": "write family.norm: norm says where norms stand, such as pre",
    "norm: {scheme: pre, post_fraction: 0.25}": "mix has; in a grid, `when` limits an axis to a scheme",
    "eval_every: 10": "write cadence: {eval_every: 100} beside base",
    "gpus: 8": "write resources: {gpus: 8} beside base",
    "gradient_accumulation_steps: 4": "write resources: {micro_batch: 8} beside base",
    "wandb: mine": "write watch: {wandb: PROJECT} beside base",
    "resources: {gpus: 8}": "write resources beside base",
}
AXES = {
    "seed: 3": "write [3], or {range: [1, 3]} for 3 values",
    **dict.fromkeys(("seed: 1-3", "seed: 1..3", "seed: 1 to 3"), "write {range: [1, 3]}"),
    "optim.lr: {logspace: [1e-4, 1e-2, 5]}": "did you mean 'log'?",
    "optim.lr: {linspace: [1e-4, 1e-2, 5]}": "did you mean 'linear'?",
    "optim.lr: {choices: [1e-4, 1e-2]}": "write the list alone",
}


@pytest.mark.parametrize("written", IN_BASE)
def test_a_guess_in_the_base(written: str) -> None:
    (message,) = complaints(whole(f"base: {{size: quickstart, data: quickstart, {written}}}"))
    assert message.endswith(IN_BASE[written])


@pytest.mark.parametrize("written", AXES)
def test_a_guess_at_an_axis(written: str) -> None:
    (message,) = complaints(whole(f"base: {{size: quickstart, data: quickstart}}\naxes: {{{written}}}"))
    assert message.endswith(AXES[written])


def test_a_file_as_data_is_declared_first() -> None:
    (message,) = complaints(whole("base: {size: quickstart, data: texts/a.txt}"))
    assert message.endswith("declare a text first: corpora: {mine: {source: files, path: texts/a.txt, tokenizer: bpe}}")


def test_the_settings_that_are_offered_exist() -> None:
    lines = (Path(gpas_cli.__file__).parent / "other_words.txt").read_text("utf-8").splitlines()
    offered = {found for line in lines for found in re.findall(r"\b([a-z]+\.[a-z_0-9]+)", line.partition(" = ")[0])}
    for section, name in (setting.split(".") for setting in offered - {"errors.nearest"}):
        own = "gate: {like: gpas}, " if section != "gate" else ""
        (message,) = complaints(whole(f"base: {{size: quickstart, data: quickstart, {own}{section}.{name}: {{}}}}"))
        assert f"{section}.{name}: " in message
        assert "unknown" not in message

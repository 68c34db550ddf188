"""Quantisation of the weights as a measurement: the validation perplexity with matrices rounded to integers.

    w_ij  ->  s_i round(w_ij / s_i),    s_i = max_j |w_ij| / (2^(bits-1) - 1)

Round to nearest, symmetric, one scale s_i for each output channel (a row of the matrix), as weights are quantised
without data in LLM.int8() (Dettmers et al. 2022) and in the baseline of GPTQ (Frantar et al. 2023). As there, the
matrices of attention and of the feed-forward networks are rounded; embeddings, head, norms, biases and gates are not,
and activations keep their precision. The integers are turned back into numbers for each product, so that this measures
what rounding costs, not what integers save.

A gate is one number, and rounding commutes with it: a matrix times c has the scales |c| s_i and, up to the sign, the
same integers. So the network as stored and the one with its gates folded into the weights, as `gpas export` does, lose
the same, and one measurement stands for both.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from gpas_cli.errors import GpasError
from gpas_cli.evaluate.foreign import ForeignNetwork
from gpas_cli.events import Emit, Outcome, Phase, Score, Step, Stop
from gpas_cli.extensions.layers.removal import Subject
from gpas_cli.extensions.layers.run import subject_of
from gpas_cli.extensions.quantised.stage import PERPLEXITY, RISE, UNQUANTISED, Quantised
from gpas_cli.state.outputs import recorded_events
from gpas_cli.train.evaluate import evaluate
from gpas_cli.worker.stages.context import StageContext

_HARNESS = "gpas_cli, weights rounded to nearest"
_DIGITS = 12  # of a fingerprint


def rounded(weight: Tensor, bits: int) -> Tensor:
    """Return `weight`, (out, in), with each row rounded to integer multiples of its scale, in the same dtype."""
    largest = 2 ** (bits - 1) - 1
    wide = weight.detach().float()
    scale = (wide.abs().amax(1) / largest).clamp(min=torch.finfo(torch.float32).tiny)  # a row of zeros has a scale, too
    points = torch.zeros_like(scale, dtype=torch.int32)
    return torch.fake_quantize_per_channel_affine(wide, scale, points, 0, -largest, largest).to(weight.dtype)


class _Rounded(nn.Module):
    """Round a matrix whenever it is used."""

    def __init__(self, bits: int):
        super().__init__()
        self.bits = bits

    def forward(self, weight: Tensor) -> Tensor:
        return rounded(weight, self.bits)


@contextmanager
def quantised(layers: Sequence[nn.Module], bits: int) -> Iterator[None]:
    """Round the matrices of attention and feed-forward networks to `bits` bits inside the context.

    Each is rounded when it is used, so that memory holds the network and one matrix more, and the parameters stay as
    they are. Raises GpasError for layers with matrices of another kind, such as GPT-2's.
    """
    inside = [module for layer in layers for module in layer.modules()]
    matrices = [module for module in inside if isinstance(module, nn.Linear)]
    every = sum(weight.dim() > 1 for layer in layers for weight in layer.parameters())
    if every != len(matrices):
        raise GpasError(
            f"{every - len(matrices)} of {every} matrices of its layers are not nn.Linear, and are not rounded"
        )
    try:
        for matrix in matrices:
            parametrize.register_parametrization(matrix, "weight", _Rounded(bits))
        yield
    finally:
        for matrix in matrices:
            if parametrize.is_parametrized(matrix):
                parametrize.remove_parametrizations(matrix, "weight", leave_parametrized=False)


def run(stage: StageContext) -> Outcome:
    """Measure the perplexity at each number of bits that no earlier attempt has measured of this network."""
    earlier = recorded_events(stage.runs, stage.attempt.key, Score)
    return measure_quantised(subject_of(stage), stage.parameters, stage.emit, stage.stop, earlier)


def measure_quantised(
    subject: Subject, section: Quantised, emit: Emit, stop: Stop, earlier: Iterable[Score]
) -> Outcome:
    """Measure the perplexity with unrounded weights and at each number of bits, and the rise of the loss.

    Scores of `earlier` attempts with the same network and text are not measured again.
    """
    began = time.perf_counter()
    network = subject.network
    if isinstance(network, ForeignNetwork) and not network.predicts:
        raise GpasError(f"{subject.name} has no head for the next token, and so no perplexity")
    text = " ".join(one[:_DIGITS] for one in subject.text.split())
    same = (PERPLEXITY, subject.name, text)
    known = {one.task: one.value for one in earlier if (one.metric, one.checkpoint, one.task_version) == same}
    emit(Phase("rounding weights"))
    for label, bits in section.widths.items():
        if label in known:
            continue
        if leave := stop():
            return Outcome(leave, len(known))
        with quantised(subject.blocks.layers, bits) if bits else nullcontext():
            found = evaluate(
                network, subject.batches, subject.precision, subject.bytes_per_token, micro_batch=subject.rows
            )
        known[label] = found["perplexity"]
        tokens = int(found["tokens"])
        emit(Score(label, PERPLEXITY, known[label], tokens, None, text, _HARNESS, checkpoint=subject.name))
        emit(Step(len(known), loss=found["loss"], steps=len(section.widths)))
    subject.record_verified(emit)
    rises = {label: math.log(known[label] / known[UNQUANTISED]) for label, bits in section.widths.items() if bits}
    metrics = {
        **{f"{PERPLEXITY}/{label}": known[label] for label in section.widths},
        **{f"{RISE}/{label}": rise for label, rise in rises.items()},
        "seconds": time.perf_counter() - began,
    }
    return Outcome("done", len(known), metrics=metrics)

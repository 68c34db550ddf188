"""The events of a journal: one frozen dataclass for each kind, with one reader and one writer.

A stage passes its events to an `Emit`; `store.journal` writes each as a line and reads them again.

    emit(Step(step=10, loss=4.5))                             writes {..., "kind": "step", "step": 10, "loss": 4.5}
    event_of({"kind": "step", "step": 10, "loss": 4.5})       returns Step(step=10, loss=4.5)

A field that is None is not written, and one that a line does not have is read as its default. Reading never fails: a
kind that this version does not know becomes `Unknown`, an event without a required field or with a field of the wrong
type `Malformed`, and fields that this version does not know are kept in `unread`.

To add a kind, add a dataclass and its entry in KINDS. docs/reference/journal.md is made of their docstrings and fields.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, fields
from typing import Any

from gpas_cli.errors import StoreError
from gpas_cli.structure import Number, Record, from_mapping

ENVELOPE = frozenset({"n", "t", "kind"})  # what a line has beside the fields of its event


class Event(Record):
    """Base class of the events. `unread` has the fields that this version does not know."""

    @property
    def kind(self) -> str:
        """The name of the event's class in journals."""
        return _NAMES[type(self)]


class Started(Event):
    """The job began, or began again in the same directory. `code`: the version of the code that it runs."""

    stage: str | None = None
    key: str | None = None
    host: str | None = None
    pid: int | None = None
    device: str | None = None
    threads: int | None = None
    precision: str | None = None
    processes: int | None = None
    parameters: int | None = None
    code: str | None = None
    git: Mapping[str, Any] | None = None
    environment: Mapping[str, Any] | None = None
    resumed_from: int | None = None  # written by early versions, which had no phase for it


class Phase(Event):
    """The job entered a new phase: tokenising, training, evaluating, ... The fields after `detail` say how a training
    computes; other phases do not have them.

    `resumed_from`: the update of the checkpoint that the training began with. `gemm`: the float32 matrix product;
    `gemm_origin`: what chose it.
    """

    name: str
    detail: str | None = None
    resumed_from: int | None = None
    processes: int | None = None
    strategy: str | None = None
    recompute: bool | None = None
    micro_batch: int | None = None
    compiled: bool | None = None
    gemm: str | None = None
    gemm_error: Number | None = None
    gemm_origin: str | None = None


class TextFacts(Event):
    """The text is known. Results are comparable only if the fingerprints are equal.

    `epochs`: how often the training reads each row. `cut`: the fraction of the training text's bytes that `layout: pad`
    cuts off. `validation_targets`: the validation tokens to predict. `shared_documents`: validation documents that are
    training text too. `left_out`: malformed records, by reason. `commit`: of the repository of the hub.
    """

    source: str | None = None
    fingerprint: str | None = None
    validation_fingerprint: str | None = None
    tokenizer: str | None = None
    train_tokens: int | None = None
    validation_tokens: int | None = None
    train_documents: int | None = None
    validation_documents: int | None = None
    epochs: Number | None = None
    cut: Number | None = None
    validation_targets: int | None = None
    first_batch: str | None = None
    shared_documents: int | None = None
    left_out: Mapping[str, int] | None = None
    commit: str | None = None


class Verified(Event):
    """Shards of a split were compared with their checksums. `shards`: name -> sha256."""

    split: str
    shards: Mapping[str, str]


class Step(Event):
    """The newest update, every `log_every` updates, or the progress of a job that does not train: `step` of `steps`.

    `tokens`: those predicted so far, without the padding of rows. `loss` in nats per token, `mean_loss` the mean of
    all updates since the last such event, as are the rates; `memory` in bytes. `loss_scale`: of the update, in
    precision fp16. `split`: the split that a tokenising job is reading. `warnings`: how many the journal holds so far.
    """

    step: int
    loss: Number | None = None
    mean_loss: Number | None = None
    lr: Number | None = None
    grad_norm: Number | None = None
    steps: int | None = None
    tokens: int | None = None
    tokens_per_second: Number | None = None
    seconds_per_step: Number | None = None
    flops_per_second: Number | None = None
    memory: Number | None = None
    mfu: Number | None = None
    loss_scale: Number | None = None
    split: str | None = None
    warnings: int | None = None


class Layers(Event):
    """Statistics by layer, every `stats_every` updates: name -> one number for each layer, null for a layer without it.

    Of a training: the gate act(alpha), alpha, activation variance, kurtosis, max-to-rms, max-to-median, effective rank,
    cosine and update of blocks, the share of attention on the first token, gradient and weight norms. The stage
    importance writes importance, angular distances, norms and stability. The stage layers also writes the
    distributions of sub-layer outputs, for each layer the shares of bins; with `step` 0 they are those at the start.
    """

    step: int
    values: Mapping[str, Sequence[Number | None]]


class Spike(Event):
    """A value far above the running median (`usual`) before it. `of`: loss or grad_norm."""

    step: int
    of: str
    value: Number
    usual: Number


class Skipped(Event):
    """An update in precision fp16 that left the weights unchanged: its gradients were not finite with this scale of the
    loss."""

    step: int
    loss_scale: Number


class Evaluation(Event):
    """The validation scores after update `step`: every `eval_every` updates, and at the end.

    `loss` weighs every token equally, `loss_batch_mean` is the mean of the batches' means, and `loss_reference` is what
    the published code of GPAS computes.

    `answer_loss`: of a finetuning, the loss on held-out examples in nats per token. The numbers of a masked language
    model and of a denoiser are over the tokens that they predict; such networks have no `loss` and no `perplexity`.
    """

    step: int
    loss: Number | None = None
    perplexity: Number | None = None
    bits_per_byte: Number | None = None
    tokens: Number | None = None
    loss_batch_mean: Number | None = None
    loss_reference: Number | None = None
    perplexity_reference: Number | None = None
    answer_loss: Number | None = None
    masked_loss: Number | None = None
    masked_perplexity: Number | None = None
    denoising_loss: Number | None = None
    denoising_perplexity: Number | None = None
    translation_loss: Number | None = None
    translation_perplexity: Number | None = None


class Removal(Event):
    """A measurement of layer importance: the network without layer `layer`, or the whole network if that is 0.

    removed: absent for the whole layer; else "attention" or "feed_forward", its sub-layer alone, or "last 4", "closest
    4": so many layers from `layer` on.
    loss: nats per token, absent if the network predicts no tokens. distances: for the whole network, the series of
    angular distances and norms; without a layer, the change of the output. checkpoint, text: what was measured on which
    text; measurements with others cannot be compared. rows: rows computed at once.
    """

    layer: int
    checkpoint: str
    text: str
    rows: int
    loss: Number | None = None
    distances: Mapping[str, Sequence[Number]] = field(default_factory=dict)
    removed: str | None = None


class RemovalScore(Event):
    """The accuracy at a task of the network without layer `layer`, or of the whole network if it is 0.

    value: a fraction, of `examples` questions. stderr: its standard error. harness: what scored it. checkpoint,
    removed: as in `Removal`.
    """

    layer: int
    task: str
    value: Number
    examples: int
    task_version: str
    harness: str
    checkpoint: str
    stderr: Number | None = None
    removed: str | None = None


class Scoring(Event):
    """The progress of a stage that scores tasks: `done` of `total` requests of task `place` (from 1) of `tasks`.

    `warnings`: how many the journal holds so far.
    """

    task: str
    place: int
    tasks: int
    done: int
    total: int
    warnings: int | None = None


class Score(Event):
    """One metric of a task or a text."""

    task: str
    metric: str
    """`acc`, `acc_norm`, `perplexity`, `word_perplexity`, ..., or `skipped`, the documents that were not scored."""
    value: Number
    """Accuracies are fractions."""
    examples: int
    """How many documents were scored."""
    stderr: Number | None = None
    """Its standard error, if known."""
    task_version: str = ""
    harness: str = ""
    """The program that scored them, its version and, of a text, how."""
    shots: int = 0
    """Solved examples in each prompt."""
    checkpoint: str = ""
    """The network that was scored; scores of others cannot be continued."""
    taken_from: str | None = None
    """KEY/NNN: the stage and the attempt that measured it, if this stage took it over."""


class Checkpoint(Event):
    """The state after `step` was saved in `seconds`, in the folder `path` of the checkpoints."""

    step: int
    path: str | None = None
    seconds: Number | None = None


class Profile(Event):
    """`updates` updates before `step` were profiled; `trace` and `operators` are the paths of the files."""

    step: int
    updates: int
    trace: str | None = None
    operators: str | None = None


class Warned(Event):
    """Something is wrong, and the run continues. `dropped`: how many events the journal lost."""

    message: str
    dropped: int | None = None


class Outcome(Event):
    """How an attempt ended: done, diverged, failed, cancelled or interrupted, at which update, and why. `node`: the one
    that could not run the job. `parameter`: the first one whose gradient was not finite. `warnings`: how many the
    journal holds.
    """

    outcome: str
    step: int = 0
    cause: str = ""
    metrics: Mapping[str, Number | None] = field(default_factory=dict)
    node: str | None = None
    parameter: str | None = None
    warnings: int | None = None


class Unknown(Event):
    """An event of a kind that this version does not know; its fields are in `unread`."""

    name: str

    @property
    def kind(self) -> str:
        return self.name


class Malformed(Event):
    """An event without the fields that its kind requires. `problem` says what is wrong; its fields are in `unread`."""

    name: str
    problem: str

    @property
    def kind(self) -> str:
        return self.name


KINDS: Mapping[str, type[Event]] = {
    "start": Started,
    "phase": Phase,
    "data": TextFacts,
    "verified": Verified,
    "step": Step,
    "layers": Layers,
    "spike": Spike,
    "skipped": Skipped,
    "evaluation": Evaluation,
    "removal": Removal,
    "removal_score": RemovalScore,
    "scoring": Scoring,
    "score": Score,
    "checkpoint": Checkpoint,
    "profile": Profile,
    "warning": Warned,
    "outcome": Outcome,
}
_NAMES = {cls: kind for kind, cls in KINDS.items()}
_WRITTEN = {cls: tuple(each.name for each in fields(cls) if each.name != "unread") for cls in KINDS.values()}

Emit = Callable[[Event], None]
"""Accepts one event. Does not raise an exception when the disk is full."""

Stop = Callable[[], str | None]
"""Called between updates. Returns None to continue, or the outcome to stop with: "interrupted" or "cancelled"."""


def silent(event: Event) -> None:
    """Discard the event: the `Emit` of all processes but the first."""


def event_of(values: Mapping[str, Any]) -> Event:
    """Return the event in `values`, the JSON object of a line: its kind, its fields, and the rest of the ENVELOPE."""
    kind = values["kind"]
    cls = KINDS.get(kind)
    if cls is None:
        return Unknown(kind, unread=_fields(values))
    try:
        return from_mapping(cls, values, kind, ignored=ENVELOPE)
    except StoreError as error:
        return Malformed(kind, f"event {error}", unread=_fields(values))


def fields_of(event: Event) -> dict[str, Any]:
    """Return the fields of an event that are written, with those that this version does not know."""
    names = _WRITTEN.get(type(event), ())
    return {name: value for name in names if (value := getattr(event, name)) is not None} | dict(event.unread)


def _fields(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in ENVELOPE}

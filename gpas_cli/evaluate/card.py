"""Write the model card of an exported network: a README.md for the Hugging Face hub. No torch."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import yaml

from gpas_cli import __version__
from gpas_cli.errors import GpasError
from gpas_cli.events import Evaluation, Score, TextFacts
from gpas_cli.spec.cell import Cell
from gpas_cli.spec.data import Data
from gpas_cli.spec.equation import description
from gpas_cli.spec.finetune import Finetune
from gpas_cli.spec.parse import flat, plain
from gpas_cli.words import count, one_line

_LICENSE = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+-]*")
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_LOSSES = {"output": "the answers", "all": "prompts and answers"}


@dataclass(frozen=True, kw_only=True)
class TrainingOrigin:
    """What is recorded about the weights: the cell's name, and the version of the code and the git commit of the last
    training. `evaluation`: after its last update. `scores`: at tasks and on texts."""

    name: str = ""
    code: str = ""
    commit: str = ""
    dirty: bool = False
    text: TextFacts = field(default_factory=TextFacts)  # the journalled facts about the text of the last training
    evaluation: Evaluation | None = None
    scores: tuple[Score, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The exported network compared with the cell's, both in float32.

    The errors are max |difference| / max |logit|; None without held-out text, or if the network is exported unchanged.
    A perplexity is None without held-out text, or if it is not finite.
    """

    random_error: float | None = None
    held_out_error: float | None = None
    held_out_tokens: int = 0
    perplexity: float | None = None
    exported_perplexity: float | None = None


@dataclass(frozen=True, kw_only=True)
class ExportReport:
    """What was written, of a network after `step` of `steps` updates."""

    form: Annotated[str, ("llama", "pegasus", "bundled")]
    reason: Annotated[str, "why in this form"]
    folded: Annotated[bool, "whether the gates are folded into the weights"] = False
    checkpoint: Path
    step: int
    steps: int
    parameters: int
    dtype: str
    measured: Comparison
    notes: tuple[str, ...]

    @property
    def auto_class(self) -> str:
        """The class of transformers that loads it."""
        return "AutoModelForSeq2SeqLM" if self.form == "pegasus" else "AutoModelForCausalLM"


def check_license(name: str) -> str:
    """Return `name` in the hub's spelling of licences, "" for none. Raises GpasError if it cannot be a licence id."""
    if name and not _LICENSE.fullmatch(name):
        raise GpasError(f"--license: '{name}' is not the id of a licence, such as apache-2.0, mit or cc-by-4.0")
    return name.lower()


def card(
    cell: Cell,
    origin: TrainingOrigin,
    written: ExportReport,
    folder: Path,
    *,
    tokenizer: bool,
    local_text: bool = False,
    license_id: str = "",
) -> str:
    """Return the text of README.md for the export of `cell` to `folder`.

    tokenizer: whether the folder has one. local_text: whether the cell's text is a file of this machine rather than a
    data set of the hub.
    """
    title = f"{cell.model.norm.title}{' + GPAS' if cell.model.gate else ''}, {written.parameters:,} parameters"
    code = written.form == "bundled"
    sections = {
        f"# {title}": _summary(cell, origin),
        "## Load": _load(folder, written, tokenizer=tokenizer),
        "## Network": _network(cell, written),
        **_trainings(cell, origin, written),
        "## Evaluation": _evaluation(origin, written.measured),
        "## Licence": _license(license_id),
    }
    head = yaml.safe_dump(
        _front_matter(cell, license_id, code=code, local_text=local_text), sort_keys=False, allow_unicode=True
    )
    return f"---\n{head}---\n\n" + "\n\n".join(f"{name}\n\n{text}" for name, text in sections.items()) + "\n"


def _front_matter(cell: Cell, license_id: str, *, code: bool, local_text: bool) -> dict[str, Any]:
    scheme = re.sub(r"[^a-z0-9]+", "-", cell.model.norm.title.lower()).strip("-")
    datasets = [] if local_text else list(dict.fromkeys(name for part in cell.data.parts for name in _datasets(part)))
    return {
        **({"license": license_id} if license_id else {}),
        "library_name": "transformers",
        "pipeline_tag": "translation" if cell.model.family.encoder else "text-generation",
        "tags": [scheme, *(["gpas"] if cell.model.gate else []), *(["custom_code"] if code else [])],
        **({"datasets": datasets} if datasets else {}),
    }


def _datasets(data: Data) -> list[str]:
    """Return the data sets on the hub that the text comes from."""
    if data.source == "c4":
        return ["allenai/c4"]
    if data.source == "hf-files":
        return [data.path.partition(":")[0]]
    on_hub = data.source == "hf" and _REPOSITORY.fullmatch(data.path) and not data.path.endswith((".json", ".csv"))
    return [data.path] if on_hub else []


def _summary(cell: Cell, origin: TrainingOrigin) -> str:
    name = f"Cell `{one_line(origin.name)}`, key" if origin.name else "Key"
    return (
        f"A language model trained with gpas_cli {__version__}. "
        f"{name} `{cell.trained.key}`; `gpas.json` has its complete configuration."
    )


def _load(folder: Path, written: ExportReport, *, tokenizer: bool) -> str:
    trust = ", trust_remote_code=True" if written.form == "bundled" else ""
    pegasus, kind = written.form == "pegasus", written.auto_class
    lines = [] if tokenizer else ["import torch"]
    lines += [f"from transformers import {kind}{', AutoTokenizer' * tokenizer}", ""]
    lines += [f"folder = {json.dumps(folder.name)}"]
    lines += [f"model = {kind}.from_pretrained(folder{trust})"]
    if tokenizer:
        # Without the argument, transformers asks whether to run the folder's code, which the tokenizer does not need.
        lines += [f"tokenizer = AutoTokenizer.from_pretrained(folder{trust})"]
        text = '"The\\n"' if pegasus else '"The"'
        lines += [f'inputs = tokenizer({text}, return_tensors="pt")' + "  # a text ends with a line end" * pegasus]
        lines += ["print(tokenizer.decode(model.generate(**inputs, max_new_tokens=20)[0]))"]
    else:
        lines += ["print(model.generate(torch.tensor([[5, 6, 7]]), max_new_tokens=20))"]
    needs = "transformers 4.45 or newer" + (", which runs the code in `modeling_gpas.py`" if trust else "")
    return f"Needs {needs}.\n\n```python\n" + "\n".join(lines) + "\n```"


def _network(cell: Cell, written: ExportReport) -> str:
    form = "plain LLaMA: scales, gates and embedding stages are folded into the weights"
    if written.form == "pegasus":
        form = "Pegasus: scales and gates are folded into the weights"
    if written.form == "bundled":
        form = f"its own code{', without gates: they are folded into the weights' if written.folded else ''}"
    legend = "f is attention, then the feed-forward network; N is a norm; sg stops the gradient."
    equations = "\n".join(description(cell.model))
    return f"As trained:\n\n```text\n{equations}\n```\n\n{legend} This folder contains it as {form}."


def _trainings(cell: Cell, origin: TrainingOrigin, written: ExportReport) -> dict[str, str]:
    """Return a section about pretraining and one about each later training. The last of them made the weights."""
    done = f"{written.step:,} of {written.steps:,}, "
    weights = _weights(cell, origin, written)
    later = [stage for stage in cell.later if stage.kind.trains]
    if not later:
        return {"## Training": _bullets({**_pretraining(cell, done), **weights})}
    found = {"## Pretraining": _pretraining(cell, f"{cell.optim.updates:,}, ")}
    for stage in later:
        own = stage.parameters
        if isinstance(own, Finetune):
            found["## Finetuning"] = _finetuning(own, cell, origin.text, done)
        else:
            found[f"## {stage.kind.name}"] = {name: one_line(str(value)) for name, value in flat(plain(own)).items()}
    found[next(reversed(found))] |= weights
    return {title: _bullets(section) for title, section in found.items()}


def _pretraining(cell: Cell, updates: str) -> dict[str, str]:
    data = cell.data
    optim = cell.optim
    source = f"{data.source}{f' `{one_line(data.path)}`' if data.path else ''}"
    if data.mixture:
        source = ", ".join(f"{100 * share.weight:g} % {one_line(share.name)}" for share in data.mixture)
    return {
        "updates": f"{updates}each of {optim.batch} rows of {data.length} tokens",
        "learning rate": f"{optim.lr:g}, schedule {optim.schedule}, {optim.warmup:,} updates of warm-up",
        "dropout": f"{cell.dropout:g}" if cell.dropout else "",
        "precision": cell.precision,
        "seed": str(cell.seed),
        "text": f"{source}, layout {data.layout}{', documents separate' if data.documents == 'separate' else ''}",
    }


def _finetuning(spec: Finetune, cell: Cell, text: TextFacts, updates: str) -> dict[str, str]:
    drawn = f"{spec.lisa_layers} of {count(cell.model.size.layers, 'layer')}, drawn every {spec.lisa_interval} updates"
    lisa = f"LISA: the embedding, the final norm, the head and {drawn}; the gates are fixed"
    amount = f", {text.train_documents:,} examples of {text.train_tokens or 0:,} tokens" if text.train_documents else ""
    return {
        "data": f"`{one_line(spec.data)}`{amount}",
        "prompt": f"template {spec.template}; the loss is that of {_LOSSES[spec.loss_on]}",
        "trained parameters": lisa if spec.method == "lisa" else "all but the gates",
        "updates": (
            f"{updates}each of {spec.batch} rows of {spec.length} tokens, layout {spec.layout}, "
            f"{count(spec.epochs, 'epoch')}"
        ),
        "learning rate": f"{spec.lr:g}, schedule {spec.schedule}, {spec.warmup:,} updates of warm-up",
        "optimizer": spec.optimizer,
        "dropout": f"{spec.dropout:g}" if spec.dropout else "",
        "precision": str(spec.precision),
        "seed": str(spec.seed),
    }


def _weights(cell: Cell, origin: TrainingOrigin, written: ExportReport) -> dict[str, str]:
    """Return the facts about the training that made the weights."""
    text = origin.text
    commit = f"`{origin.commit}`{' with local changes' if origin.dirty else ''}" if origin.commit else ""
    return {
        "precision": f"{cell.trained_precision}; these weights are {written.dtype}",
        "text fingerprint": f"`{text.fingerprint}`" if text.fingerprint else "",
        "validation fingerprint": f"`{text.validation_fingerprint}`" if text.validation_fingerprint else "",
        "tokenizer": f"`{text.tokenizer}`" if text.tokenizer else "",
        "code version": f"`{origin.code}`" if origin.code else "",
        "git commit": commit,
    }


def _evaluation(origin: TrainingOrigin, measured: Comparison) -> str:
    perplexity = measured.perplexity if measured.exported_perplexity is None else measured.exported_perplexity
    if perplexity is None:
        lines = ["Not evaluated at export: the held-out text was not available."]
    else:
        where = f"the first {measured.held_out_tokens:,} tokens of the held-out text"
        lines = [f"Perplexity {perplexity:.6g} on {where}, measured with these weights."]
    if origin.evaluation is not None and (text := _in_training(origin.evaluation)):
        lines.append(text)
    return "\n\n".join([*lines, *([_scores(origin.scores)] if origin.scores else [])])


def _in_training(found: Evaluation) -> str:
    numbers = [f"perplexity {found.perplexity:.6g} on the validation text"] if found.perplexity is not None else []
    if found.answer_loss is not None:
        numbers.append(f"a loss of {found.answer_loss:.4g} nats per token on held-out answers")
    return f"Measured in training, after update {found.step:,}: {' and '.join(numbers)}." if numbers else ""


def _scores(scores: Sequence[Score]) -> str:
    """Return a table of scores; accuracies are fractions."""
    head = ("task", "metric", "value", "standard error", "examples", "shots", "measured by")
    rows = [
        (
            one.task, one.metric, f"{one.value:.4g}", "" if one.stderr is None else f"{one.stderr:.2g}",
            f"{one.examples:,}", str(one.shots), one.harness,
        )
        for one in scores
    ]  # fmt: skip
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(one_line(word).replace('|', '/') for word in line)} |" for line in lines)


def _license(license_id: str) -> str:
    if license_id:
        return f"`{license_id}`"
    return "Not chosen. `gpas export --license ID` sets one; the licence of the text may also apply to the weights."


def _bullets(facts: Mapping[str, str]) -> str:
    return "\n".join(f"- {name}: {value}" for name, value in facts.items() if value)

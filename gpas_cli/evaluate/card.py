"""Write the model card of an exported network: a README.md for the Hugging Face hub. No torch."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from gpas_cli import __version__
from gpas_cli.errors import GpasError
from gpas_cli.events import TextFacts
from gpas_cli.printable import one_line
from gpas_cli.spec.cell import Cell
from gpas_cli.spec.data import Data
from gpas_cli.spec.equation import description

_LICENSE = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+-]*")
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")


@dataclass(frozen=True, kw_only=True)
class TrainingOrigin:
    """The cell's name, and the version of the code and the git commit that trained the network."""

    name: str = ""
    code: str = ""
    commit: str = ""
    dirty: bool = False
    text: TextFacts = field(default_factory=TextFacts)  # the journalled facts about the text


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Facts about the exported weights. `perplexity` is measured on `tokens` held-out tokens, None if the text was not
    available; `code`: whether the folder has a modeling_gpas.py; `local_text`: whether the cell's text is a file of
    this machine rather than a data set of the hub."""

    step: int
    steps: int
    parameters: int
    dtype: str
    code: bool
    tokenizer: bool
    perplexity: float | None
    tokens: int
    local_text: bool = False


def check_license(name: str) -> str:
    """Return `name` in the hub's spelling of licences, "" for none. Raises GpasError if it cannot be a licence id."""
    if name and not _LICENSE.fullmatch(name):
        raise GpasError(f"--license: '{name}' is not the id of a licence, such as apache-2.0, mit or cc-by-4.0")
    return name.lower()


def card(cell: Cell, origin: TrainingOrigin, facts: Facts, folder: Path, license_id: str = "") -> str:
    """Return the text of README.md for the export of `cell` to `folder`."""
    title = f"{cell.model.norm.title}{' + GPAS' if cell.model.gate else ''}, {facts.parameters:,} parameters"
    sections = {
        f"# {title}": _summary(cell, origin),
        "## Load": _load(folder, facts),
        "## Network": _network(cell, facts),
        "## Training": _bullets(_training(cell, origin, facts)),
        "## Evaluation": _evaluation(facts),
        "## Licence": _license(license_id),
    }
    head = yaml.safe_dump(_front_matter(cell, facts, license_id), sort_keys=False, allow_unicode=True)
    return f"---\n{head}---\n\n" + "\n\n".join(f"{name}\n\n{text}" for name, text in sections.items()) + "\n"


def _front_matter(cell: Cell, facts: Facts, license_id: str) -> dict[str, Any]:
    scheme = re.sub(r"[^a-z0-9]+", "-", cell.model.norm.title.lower()).strip("-")
    datasets = [] if facts.local_text else _datasets(cell.data)
    return {
        **({"license": license_id} if license_id else {}),
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": [scheme, *(["gpas"] if cell.model.gate else []), *(["custom_code"] if facts.code else [])],
        **({"datasets": datasets} if datasets else {}),
    }


def _datasets(data: Data) -> list[str]:
    """Return the data sets on the hub that the text comes from."""
    if data.source == "c4":
        return ["allenai/c4"]
    on_hub = data.source == "hf" and _REPOSITORY.fullmatch(data.path) and not data.path.endswith((".json", ".csv"))
    return [data.path] if on_hub else []


def _summary(cell: Cell, origin: TrainingOrigin) -> str:
    name = f"Cell `{one_line(origin.name)}`, key" if origin.name else "Key"
    return (
        f"A language model trained with gpas_cli {__version__}. "
        f"{name} `{cell.trained.key}`; `gpas.json` has its complete configuration."
    )


def _load(folder: Path, facts: Facts) -> str:
    trust = ", trust_remote_code=True" if facts.code else ""
    lines = [] if facts.tokenizer else ["import torch"]
    lines += [f"from transformers import AutoModelForCausalLM{', AutoTokenizer' * facts.tokenizer}", ""]
    lines += [f"folder = {json.dumps(folder.name)}"]
    lines += [f"model = AutoModelForCausalLM.from_pretrained(folder{trust})"]
    if facts.tokenizer:
        lines += ["tokenizer = AutoTokenizer.from_pretrained(folder)"]
        lines += ['inputs = tokenizer("The", return_tensors="pt")']
        lines += ["print(tokenizer.decode(model.generate(**inputs, max_new_tokens=20)[0]))"]
    else:
        lines += ["print(model.generate(torch.tensor([[5, 6, 7]]), max_new_tokens=20))"]
    needs = "transformers 4.45 or newer" + (", which runs the code in `modeling_gpas.py`" if facts.code else "")
    return f"Needs {needs}.\n\n```python\n" + "\n".join(lines) + "\n```"


def _network(cell: Cell, facts: Facts) -> str:
    form = (
        "its own code" if facts.code else "plain LLaMA: scales, gates and embedding stages are folded into the weights"
    )
    legend = "f is attention, then the feed-forward network; N is a norm; sg stops the gradient."
    equations = "\n".join(description(cell.model))
    return f"As trained:\n\n```text\n{equations}\n```\n\n{legend} This folder contains it as {form}."


def _training(cell: Cell, origin: TrainingOrigin, facts: Facts) -> dict[str, str]:
    data = cell.data
    optim = cell.optim
    text = origin.text
    commit = f"`{origin.commit}`{' with local changes' if origin.dirty else ''}" if origin.commit else ""
    source = f"{data.source}{f' `{one_line(data.path)}`' if data.path else ''}"
    return {
        "updates": f"{facts.step:,} of {facts.steps:,}, each of {optim.batch} rows of {data.length} tokens",
        "learning rate": f"{optim.lr:g}, schedule {optim.schedule}, {optim.warmup:,} updates of warm-up",
        "precision": f"{cell.precision}; these weights are {facts.dtype}",
        "seed": str(cell.seed),
        "text": f"{source}, layout {data.layout}",
        "text fingerprint": f"`{text.fingerprint}`" if text.fingerprint else "",
        "validation fingerprint": f"`{text.validation_fingerprint}`" if text.validation_fingerprint else "",
        "tokenizer": f"`{text.tokenizer}`" if text.tokenizer else "",
        "code version": f"`{origin.code}`" if origin.code else "",
        "git commit": commit,
    }


def _evaluation(facts: Facts) -> str:
    if facts.perplexity is None:
        return "Not evaluated: the held-out text was not available at export."
    where = f"the first {facts.tokens:,} tokens of the held-out text"
    return f"Perplexity {facts.perplexity:.6g} on {where}, measured with these weights."


def _license(license_id: str) -> str:
    if license_id:
        return f"`{license_id}`"
    return "Not chosen. `gpas export --license ID` sets one; the licence of the text may also apply to the weights."


def _bullets(facts: Mapping[str, str]) -> str:
    return "\n".join(f"- {name}: {value}" for name, value in facts.items() if value)

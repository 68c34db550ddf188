"""Export a cell's checkpoint as a folder for `transformers`, after measuring the error of folding."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from gpas_cli import __version__
from gpas_cli.checkpoints import short_name
from gpas_cli.data.loader import CAUSAL, Batch, validation_batches
from gpas_cli.data.prepare import Corpus
from gpas_cli.errors import DataError, GpasError
from gpas_cli.extensions.export.card import Comparison, ExportReport, TrainingOrigin, card
from gpas_cli.extensions.export.files import bundled_files, check_target, llama_files, write_folder
from gpas_cli.extensions.export.fold import LLAMA_PARTS, fold, logit_difference, obstacle, plain_llama
from gpas_cli.model.llama import Llama
from gpas_cli.spec.cell import Cell
from gpas_cli.spec.model import Family, Model
from gpas_cli.spec.parse import plain
from gpas_cli.train.assemble import load_trained, micro_batch_rows
from gpas_cli.train.checkpoint import DamagedCheckpoint, Position
from gpas_cli.train.device import suitable_threads
from gpas_cli.train.evaluate import evaluate
from gpas_cli.train.precision import Precision
from gpas_cli.train.training import prepare_text

_MAX_ERROR = 1e-3  # of logits, relative to the largest
_HELD_OUT_TOKENS = 4096
_RANDOM_ROWS = 4


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """The target folder, the largest error of folding, and whether to export the code even if folding is possible."""

    folder: Path
    max_error: float = _MAX_ERROR
    bundled: bool = False


def export(
    cell: Cell,
    trained: Path,
    options: ExportOptions,
    *,
    cache: Path,
    root: Path,
    tokenizer: str | None,
    notify: Callable[[str], None],
    origin: TrainingOrigin | None = None,
) -> ExportReport:
    """Export the network of `trained`, the checkpoint of the cell's last training stage, to `options.folder`.

    `tokenizer` is the identity of the tokenizer in training, if known; `origin` is for the model card. Writes nothing
    and raises GpasError if the checkpoint is damaged, the folder is not empty, or the error
    of folding exceeds `options.max_error`.
    """
    _check(cell, options)
    corpus, notes = _text(cell, cache, root, tokenizer, notify)
    notify(f"reading {short_name(trained)}")
    network, position = _load(cell, trained)
    reason = "--bundled was given" if options.bundled else obstacle(cell.model)
    with suitable_threads(cell.model.size):
        network, measured, kept = _exported(cell, network, corpus, options, reason, notify)
    if kept:
        notes.append(kept)
    written = ExportReport(
        form="bundled" if reason else "llama",
        reason=reason,
        folded=measured.random_error is not None,
        checkpoint=trained,
        step=position.step,
        steps=position.steps or cell.optim.updates,
        parameters=sum(parameter.numel() for parameter in network.parameters()),
        dtype=str(network.model.embed_tokens.weight.dtype).removeprefix("torch."),
        measured=measured,
        notes=tuple(notes),
    )
    tokens, tokenizer_files = _tokens(cell, corpus)
    readme = card(cell, origin or TrainingOrigin(), written, options.folder, tokenizer=bool(tokenizer_files))
    about = {"gpas.json": _origin(cell, written), "README.md": readme}
    own_files = (bundled_files if reason else llama_files)(network, tokens)
    notify(f"writing {options.folder}")
    write_folder(options.folder, network.state_dict(), {**own_files, **tokenizer_files, **about})
    return written


def _check(cell: Cell, options: ExportOptions) -> None:
    """Raise GpasError if the network cannot be exported as the options say, whatever its weights are."""
    check_target(options.folder)
    if not cell.objective.causal:
        raise GpasError(cell.objective.needs_next_token("export"))
    family = asdict(cell.model.family)
    usual = {**asdict(Family()), **{name: family[name] for name in ("norm", *LLAMA_PARTS)}}
    if others := [f"{name}: {value}" for name, value in family.items() if value != usual[name]]:
        raise GpasError(f"only the family llama, with any norms, can be exported; this one has {', '.join(others)}")
    why = "--bundled was given" if options.bundled else obstacle(cell.model)
    if cell.model.family.tied and why:
        raise GpasError(f"a network with a tied head is exported only as a plain one: {why}")


def _exported(
    cell: Cell, network: Llama, corpus: Corpus | None, options: ExportOptions, reason: str,
    notify: Callable[[str], None],
) -> tuple[Llama, Comparison, str]:  # fmt: skip
    """Return the network to write, how it compares with the cell's, and why its code has gates although folding was
    tried, "" if it has none. `reason`: why it is not exported as plain LLaMA, "" if it is."""
    dtype = network.model.embed_tokens.weight.dtype
    kept = ""
    try:
        if not reason:
            return *_folded(cell, network, plain_llama(cell.model), corpus, options.max_error, notify), ""
        if cell.model.gate is not None and not options.bundled:
            goal = replace(cell.model, gate=None)
            return *_folded(cell, network, goal, corpus, options.max_error, notify), ""
    except GpasError as error:
        if not reason:
            raise GpasError(f"{error}; --bundled exports the network exactly, with its own code") from error
        kept = f"the gates are kept in the code: {error}"
    network = network.to(dtype)  # back from float32, which changes no weight
    return network, _measure(cell, network, None, corpus, notify), kept


def _folded(
    cell: Cell, network: Llama, goal: Model, corpus: Corpus | None, max_error: float, notify: Callable[[str], None]
) -> tuple[Llama, Comparison]:
    """Return the network folded into one of `goal`, and the error of that. Raises GpasError if it is above `max_error`.

    bfloat16 weights are folded and compared in float32, so that rounding does not hide the error of folding: `network`
    is float32 afterwards.
    """
    folded = fold(network.float(), goal)
    measured = _measure(cell, network, folded, corpus, notify)
    worst = _largest(error for error in (0.0, measured.random_error, measured.held_out_error) if error is not None)
    # "not <=" rather than ">", so that NaN is refused too.
    if not worst <= max_error:
        raise GpasError(
            f"folding the gates into the weights changes the logits by {worst:.2g} of the largest one, more than "
            f"--max-error {max_error:g}: the gates scale the stream so much that the norms' eps matters"
        )
    return folded, measured


def _text(
    cell: Cell, cache: Path, root: Path, tokenizer: str | None, notify: Callable[[str], None]
) -> tuple[Corpus | None, list[str]]:
    """Return the text the cell was trained on, None if it is unavailable, and notes for the user."""
    try:
        corpus = prepare_text(cell, cache, root, notify=notify)
    except DataError as error:
        return None, [f"no held-out text, no tokenizer exported: {error}"]
    if tokenizer is not None and corpus.tokenizer.identity != tokenizer:
        # The ids of another tokenizer stand for other words.
        names = f"{tokenizer[:12]}, but the text on this machine has {corpus.tokenizer.identity[:12]}"
        return None, [f"no held-out text, no tokenizer exported: the cell was trained with tokenizer {names}"]
    return corpus, []


def _load(cell: Cell, trained: Path) -> tuple[Llama, Position]:
    """Return the trained network in the dtype of its training, and the progress of that training."""
    try:
        found = load_trained(cell, trained)
    except DamagedCheckpoint as error:
        raise GpasError(f"{error}; delete it to export an older one") from error
    return found.network, found.position


def _measure(
    cell: Cell, ours: Llama, exported: Llama | None, corpus: Corpus | None, notify: Callable[[str], None]
) -> Comparison:
    """Compare both networks on random ids and on the start of the held-out text; `exported` is None if unchanged."""
    if exported is not None:
        notify("comparing the exported network with the cell's, on random ids and held-out text")
    elif corpus is not None:
        notify("measuring the perplexity on held-out text")
    error = None if exported is None else _random_error(cell, ours, exported)
    if corpus is None:
        return Comparison(random_error=error)
    score = _score(cell, ours, corpus)
    exported_score = None if exported is None else _score(cell, exported, corpus)
    return Comparison(
        random_error=error,
        held_out_error=None if exported is None else _held_out_error(cell, ours, exported, corpus),
        held_out_tokens=int(score["tokens"]),
        perplexity=_finite(score["perplexity"]),
        exported_perplexity=_finite(exported_score["perplexity"]) if exported_score else None,
    )


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _random_error(cell: Cell, ours: Llama, exported: Llama) -> float:
    """Compare the networks on random ids."""
    device = ours.model.embed_tokens.weight.device
    length = cell.data.length - 1
    ids = torch.randint(cell.model.size.vocab, (_RANDOM_ROWS, length), generator=torch.Generator().manual_seed(0))
    return logit_difference(ours, exported, ids.to(device))


def _precision(network: Llama) -> Precision:
    weight = network.model.embed_tokens.weight
    return Precision("pure_bf16" if weight.dtype == torch.bfloat16 else "fp32", weight.device)


def _batches(cell: Cell, corpus: Corpus, rows: int) -> Iterator[Batch]:
    return validation_batches(corpus.validation, rows, min(_HELD_OUT_TOKENS, cell.data.eval_tokens), CAUSAL)


def _score(cell: Cell, network: Llama, corpus: Corpus) -> dict[str, float]:
    precision = _precision(network)
    rows = micro_batch_rows(cell, precision)
    return evaluate(network, _batches(cell, corpus, rows), precision, corpus.validation_bytes_per_token)


def _held_out_error(cell: Cell, ours: Llama, exported: Llama, corpus: Corpus) -> float:
    device = ours.model.embed_tokens.weight.device
    rows = micro_batch_rows(cell, _precision(ours))
    inputs = (torch.from_numpy(batch.inputs).to(device) for batch in _batches(cell, corpus, rows))
    return _largest([logit_difference(ours, exported, ids) for ids in inputs])


def _largest(errors: Iterable[float]) -> float:
    """Return the largest error, NaN if one is NaN."""
    return max(errors, key=lambda error: (error != error, error))


def _tokens(cell: Cell, corpus: Corpus | None) -> tuple[dict[str, int | None], dict[str, str]]:
    """Return the token ids and row length for config.json, and the tokenizer's files. Rows have no start token."""
    length = cell.data.length
    if corpus is None:
        ids = dict[str, int]()
        files = dict[str, str]()
    else:
        ids = corpus.tokenizer.special_ids()
        files = corpus.tokenizer.transformers_files(length)
    names = ("bos_token", "eos_token", "pad_token")
    return {"max_position_embeddings": length, **{f"{name}_id": ids.get(name) for name in names}}, files


def _origin(cell: Cell, written: ExportReport) -> str:
    """Return gpas.json: the origin of the network and the error of folding."""
    # Only the path below `runs`: the folder may be published.
    facts = {**asdict(written), "checkpoint": short_name(written.checkpoint)}
    whole = {"gpas_cli": __version__, "stage": cell.trained.key, **facts, "cell": cell.to_mapping()}
    return json.dumps(plain(whole), indent=2, allow_nan=False) + "\n"

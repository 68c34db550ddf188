"""Export a cell's checkpoint as a folder for `transformers`, after measuring the error of folding."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from dataclasses import asdict, replace
from pathlib import Path

import torch

from gpas_cli import __version__
from gpas_cli.checkpoints import short_name
from gpas_cli.data.loader import CAUSAL, validation_batches
from gpas_cli.data.prepare import Corpus
from gpas_cli.errors import DataError, GpasError
from gpas_cli.extensions.export.card import Comparison, ExportReport, TrainingOrigin, card
from gpas_cli.extensions.export.files import bundled_files, check_target, llama_files, write_folder
from gpas_cli.extensions.export.fold import LLAMA_PARTS, fold, logit_difference, obstacle, plain_llama
from gpas_cli.model.llama import Llama
from gpas_cli.spec.cell import Cell
from gpas_cli.spec.model import Family, Model
from gpas_cli.spec.parse import plain
from gpas_cli.structure import Frozen
from gpas_cli.train.assemble import load_trained, micro_batch_rows
from gpas_cli.train.checkpoint import DamagedCheckpoint
from gpas_cli.train.device import suitable_threads
from gpas_cli.train.evaluate import evaluate
from gpas_cli.train.precision import Precision
from gpas_cli.train.training import prepare_text

_MAX_ERROR = 1e-3  # of logits, relative to the largest
_HELD_OUT_TOKENS = 4096
_RANDOM_ROWS = 4


class Export(Frozen, kw_only=True):
    """How a cell's trained network is exported to `folder`."""

    cell: Cell
    folder: Path
    cache: Path  # of the project
    root: Path  # of the project
    origin: TrainingOrigin  # what is recorded about the training
    notify: Callable[[str], None]  # is called before what takes time
    max_error: float = _MAX_ERROR  # the largest error of folding
    bundled: bool = False  # whether to export the code even if folding is possible

    def write(self, trained: Path) -> ExportReport:
        """Export the network of `trained`, a checkpoint of the cell's last training stage.

        Writes nothing and raises GpasError if the checkpoint is damaged, the folder is not empty, or the error of
        folding exceeds `max_error`.
        """
        reason = self._check()
        corpus, notes = self._text()
        self.notify(f"reading {short_name(trained)}")
        try:
            found = load_trained(self.cell, trained)
        except DamagedCheckpoint as error:
            raise GpasError(f"{error}; delete it to export an older one") from error
        with suitable_threads(self.cell.model.size):
            network, measured, kept = self._exported(found.network, corpus, reason)
        written = ExportReport(
            form="bundled" if reason else "llama",
            reason=reason,
            folded=measured.random_error is not None,
            checkpoint=trained,
            step=found.position.step,
            steps=found.position.steps or self.cell.optim.updates,
            parameters=sum(parameter.numel() for parameter in network.parameters()),
            dtype=str(network.model.embed_tokens.weight.dtype).removeprefix("torch."),
            measured=measured,
            notes=(*notes, kept) if kept else tuple(notes),
        )
        tokens, tokenizer_files = self._tokens(corpus)
        readme = card(self.cell, self.origin, written, self.folder, tokenizer=bool(tokenizer_files))
        about = {"gpas.json": self._record(written), "README.md": readme}
        own_files = (bundled_files if reason else llama_files)(network, tokens)
        self.notify(f"writing {self.folder}")
        write_folder(self.folder, network.state_dict(), {**own_files, **tokenizer_files, **about})
        return written

    def _check(self) -> str:
        """Return why the network is exported with its code, "" if it becomes a plain LLaMA. Raises GpasError if it
        cannot be exported so, whatever its weights are."""
        check_target(self.folder)
        cell = self.cell
        if not cell.objective.causal:
            raise GpasError(cell.objective.needs_next_token("export"))
        family = asdict(cell.model.family)
        usual = {**asdict(Family()), **{name: family[name] for name in ("norm", *LLAMA_PARTS)}}
        if others := [f"{name}: {value}" for name, value in family.items() if value != usual[name]]:
            raise GpasError(f"only the family llama, with any norms, can be exported; this one has {', '.join(others)}")
        reason = "--bundled was given" if self.bundled else obstacle(cell.model)
        if cell.model.family.tied and reason:
            raise GpasError(f"a network with a tied head is exported only as a plain one: {reason}")
        return reason

    def _text(self) -> tuple[Corpus | None, list[str]]:
        """Return the text the cell was trained on, None if it is unavailable, and notes for the user."""
        try:
            corpus = prepare_text(self.cell, self.cache, self.root, notify=self.notify)
        except DataError as error:
            return None, [f"no held-out text, no tokenizer exported: {error}"]
        trained_with, own = self.origin.text.tokenizer, corpus.tokenizer.identity
        if trained_with not in (None, own):
            # The ids of another tokenizer stand for other words.
            names = f"{trained_with:.12}, but the text on this machine has {own:.12}"
            return None, [f"no held-out text, no tokenizer exported: the cell was trained with tokenizer {names}"]
        return corpus, []

    def _exported(self, network: Llama, corpus: Corpus | None, reason: str) -> tuple[Llama, Comparison, str]:
        """Return the network to write, how it compares with the cell's, and why its code has gates although folding was
        tried, "" if it has none. `reason`: why it is not exported as plain LLaMA, "" if it is."""
        model, dtype = self.cell.model, network.model.embed_tokens.weight.dtype
        kept = ""
        try:
            if not reason:
                return *self._folded(network, plain_llama(model), corpus), ""
            if model.gate is not None and not self.bundled:
                return *self._folded(network, replace(model, gate=None), corpus), ""
        except GpasError as error:
            if not reason:
                raise GpasError(f"{error}; --bundled exports the network exactly, with its own code") from error
            kept = f"the gates are kept in the code: {error}"
        network = network.to(dtype)  # back from float32, which changes no weight
        return network, self._measured(network, None, corpus), kept

    def _folded(self, network: Llama, goal: Model, corpus: Corpus | None) -> tuple[Llama, Comparison]:
        """Return the network folded into one of `goal`, and the error of that. Raises GpasError if it is above
        `max_error`.

        bfloat16 weights are folded and compared in float32, so that rounding does not hide the error of folding:
        `network` is float32 afterwards.
        """
        folded = fold(network.float(), goal)
        measured = self._measured(network, folded, corpus)
        worst = _largest(error for error in (0.0, measured.random_error, measured.held_out_error) if error is not None)
        # "not <=" rather than ">", so that NaN is refused too.
        if not worst <= self.max_error:
            raise GpasError(
                f"folding the gates into the weights changes the logits by {worst:.2g} of the largest one, more than "
                f"--max-error {self.max_error:g}: the gates scale the stream so much that the norms' eps matters"
            )
        return folded, measured

    def _measured(self, ours: Llama, exported: Llama | None, corpus: Corpus | None) -> Comparison:
        """Compare both networks, of one dtype, on random ids and on the start of the held-out text; `exported` is None
        if it is unchanged."""
        weight, found = ours.model.embed_tokens.weight, Comparison()
        if exported is not None:
            self.notify("comparing the exported network with the cell's, on random ids and held-out text")
            shape, generator = (_RANDOM_ROWS, self.cell.data.length - 1), torch.Generator().manual_seed(0)
            ids = torch.randint(self.cell.model.size.vocab, shape, generator=generator).to(weight.device)
            found = Comparison(random_error=logit_difference(ours, exported, ids))
        elif corpus is not None:
            self.notify("measuring the perplexity on held-out text")
        if corpus is None:
            return found
        precision = Precision("pure_bf16" if weight.dtype == torch.bfloat16 else "fp32", weight.device)
        rows, tokens = micro_batch_rows(self.cell, precision), min(_HELD_OUT_TOKENS, self.cell.data.eval_tokens)
        batches = list(validation_batches(corpus.validation, rows, tokens, CAUSAL))
        score, *others = (
            evaluate(network, batches, precision, corpus.validation_bytes_per_token)
            for network in (ours, exported)
            if network is not None
        )
        found = replace(found, held_out_tokens=int(score["tokens"]), perplexity=_finite(score["perplexity"]))
        if exported is None:
            return found
        inputs = (torch.from_numpy(batch.inputs).to(weight.device) for batch in batches)
        error = _largest([logit_difference(ours, exported, ids) for ids in inputs])
        return replace(found, held_out_error=error, exported_perplexity=_finite(others[0]["perplexity"]))

    def _tokens(self, corpus: Corpus | None) -> tuple[dict[str, int | None], dict[str, str]]:
        """Return the token ids and row length for config.json, and the tokenizer's files. Rows have no start token."""
        length = self.cell.data.length
        ids = corpus.tokenizer.special_ids() if corpus else {}
        files = corpus.tokenizer.transformers_files(length) if corpus else {}
        names = ("bos_token", "eos_token", "pad_token")
        return {"max_position_embeddings": length, **{f"{name}_id": ids.get(name) for name in names}}, files

    def _record(self, written: ExportReport) -> str:
        """Return gpas.json: the origin of the network and the error of folding."""
        # Only the path below `runs`: the folder may be published.
        facts = {**asdict(written), "checkpoint": short_name(written.checkpoint)}
        stage = self.cell.trained.key
        whole = {"gpas_cli": __version__, "stage": stage, **facts, "cell": self.cell.to_mapping()}
        return json.dumps(plain(whole), indent=2, allow_nan=False) + "\n"


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _largest(errors: Iterable[float]) -> float:
    """Return the largest error, NaN if one is NaN."""
    return max(errors, key=lambda error: (error != error, error))

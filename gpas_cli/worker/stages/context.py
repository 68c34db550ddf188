"""The argument of a stage's runner, and the lookup of the runner."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from gpas_cli.errors import GpasError
from gpas_cli.events import Emit, Outcome, Phase, Stop
from gpas_cli.spec.cell import Cell
from gpas_cli.state.outputs import averaged_checkpoints, last_checkpoint, text_of
from gpas_cli.store.records import AttemptRecord
from gpas_cli.store.rundir import AttemptDir
from gpas_cli.structure import Frozen

if TYPE_CHECKING:
    from gpas_cli.data.tokenizer import Tokenizer
    from gpas_cli.train.assemble import TrainedNetwork
    from gpas_cli.train.parallel import World


class StageContext(Frozen):
    """One attempt at a stage, as its runner sees it."""

    cell: Cell
    attempt: AttemptRecord  # the content of attempt.json
    directory: AttemptDir  # where the attempt keeps its files
    emit: Emit  # appends an event to the journal; only the first process has one
    stop: Stop  # polled between updates; returns the outcome to exit with, None to continue
    world: World  # the processes of the attempt

    @property
    def kind(self) -> str:
        return self.attempt.stage

    @property
    def parameters(self) -> Any:
        """The parameters of the stage: an instance of its kind's dataclass, None for pretraining."""
        return self.cell.parameters(self.kind)

    @property
    def runs(self) -> Path:
        """The folder with the attempts of all stages."""
        return self.directory.path.parents[2]

    @property
    def cache(self) -> Path:
        """The folder of the tokenised texts."""
        return Path(self.attempt.cache)

    @property
    def root(self) -> Path:
        """The folder of experiments.yaml."""
        return Path(self.attempt.root)

    @property
    def base(self) -> Cell:
        """The cell with only those stages that this one builds on."""
        return self.cell.before(self.kind)

    def trained_checkpoint(self) -> Path:
        """Return the final checkpoint of the last training before this stage. Raises GpasError if there is none."""
        return last_checkpoint(self.runs, self.base.trained.key)

    def require_tokenizer(self, tokenizer: Tokenizer) -> None:
        """Raise GpasError unless the last training before this stage used this tokenizer."""
        trained = self.trained_checkpoint()
        before = text_of(trained).tokenizer or tokenizer.identity
        if tokenizer.identity != before:
            raise GpasError(
                f"the tokenizer of data.tokenizer: {self.cell.data.tokenizer} has changed since {trained} was trained "
                f"(from {before[:12]} to {tokenizer.identity[:12]}); restore the text that it was made from"
            )

    def tokenizer(self) -> Tokenizer:
        """Return the tokenizer of the cell's text. Raises GpasError if the network was trained with another one."""
        from gpas_cli.data.prepare import token_caches

        data, vocab = self.cell.data, self.cell.text_vocab
        caches = token_caches(data, vocab, self.cache, root=self.root, notify=lambda name: self.emit(Phase(name)))
        self.require_tokenizer(caches[0].tokenizer)
        return caches[0].tokenizer

    def load_trained(self, averaged: Sequence[int] = ()) -> TrainedNetwork:
        """Return the network of the last training before this stage, whole in every process: that after its last
        update, or with the mean of the weights after the updates `averaged`.

        Collective. Raises GpasError or DamagedCheckpoint if there is none.
        """
        from gpas_cli.train.assemble import load_trained

        earlier = averaged_checkpoints(self.runs, self.base.trained.key, averaged)
        return load_trained(self.base, earlier or [self.trained_checkpoint()], self.world)


def runner(cell: Cell, kind: str) -> Callable[[StageContext], Outcome]:
    """Return the function that runs the stage `kind` of `cell`."""
    found = next(stage.declared.runner for stage in cell.stages if stage.kind == kind)
    resolved = pkgutil.resolve_name(found) if isinstance(found, str) else found
    return cast("Callable[[StageContext], Outcome]", resolved)

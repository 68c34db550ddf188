"""Resume a training from its newest intact checkpoint, unless the text or the code has changed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gpas_cli.checkpoints import newest_first
from gpas_cli.errors import GpasError
from gpas_cli.events import Emit, Warned
from gpas_cli.spec.run import Resources
from gpas_cli.train import checkpoint
from gpas_cli.train.checkpoint import DamagedCheckpoint, Position
from gpas_cli.train.loop import Loop


def resume(folders: Sequence[Path], key: str, loop: Loop, text: str, emit: Emit) -> Position:
    """Load the newest intact checkpoint of stage `key` in `folders`; return its position, or that of a new training.

    A damaged checkpoint is skipped with a warning. Raises GpasError if the checkpoint was trained on another text than
    `text` (`data.prepare.Corpus.identity`). Collective.
    """
    world = loop.layout.world
    # The first process's list: a network file system may show the others an older one.
    found = world.broadcast(newest_first(folders))
    for path in found:
        try:
            position = checkpoint.load(path, key, loop.network, loop.optimizer, world, loop.spec.kind)
        except DamagedCheckpoint as error:
            emit(Warned(f"{error}; it is skipped"))
            continue
        if position.text not in ("", text):
            raise GpasError(
                f"{path} was trained on another text, or with another tokenizer; restore the old one, or move "
                f"{path.parents[2]} away to start again"
            )
        return position
    if found:
        emit(Warned("no intact checkpoint is left: training starts again at update 0"))
    return Position()


def check_code(position: Position, code: str, resources: Resources, emit: Emit) -> None:
    """Warn if another version of the code made the checkpoint, or raise GpasError if `resources.resume` forbids it."""
    before = position.codes.rpartition(" ")[2]
    if not before or not code or before == code:
        return
    changed = f"update {position.step} was made by version {before} of the code, and this is version {code}"
    if resources.resume == "same-code":
        raise GpasError(
            f"{changed}; resources.resume: same-code refuses to mix them. Restore the code (`gpas why` has the commit) "
            "and `gpas retry`, set resume: any-code, or move the stage's run directory away to train from the start"
        )
    emit(Warned(f"{changed}: the result will come from both"))

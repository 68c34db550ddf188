"""The YAML blocks of README and docs/ train: a few updates of the cells with every choice, on a few pages of text.

The first row of every batch begins with the last id of the tokenizer, as a row of any text may.
"""

from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from attempts import make_attempt
from covering import covering
from documentation import YAML, written
from exporting import needs_transformers

from gpas_cli.data.loader import Batch, Batches
from gpas_cli.data.stdlib import FINETUNING_RECORDS, TRAINING_TEXT, VALIDATION_TEXT, write_sample
from gpas_cli.events import silent
from gpas_cli.grid.expand import expand
from gpas_cli.grid.load import load
from gpas_cli.grid.variant import _shrunk_mapping
from gpas_cli.spec.cell import Cell
from gpas_cli.spec.parse_cell import Catalogue, cell_from
from gpas_cli.spec.run import Cadence, Resources
from gpas_cli.spec.section import Tiny
from gpas_cli.train import training
from gpas_cli.train.device import make_deterministic
from gpas_cli.train.parallel import ALONE
from gpas_cli.worker.stages.context import StageContext, runner

TEXT = Tiny(TRAINING_TEXT, VALIDATION_TEXT, FINETUNING_RECORDS)
MET = set[str]()  # the choices of the cells that have been trained
NARROW = 64  # networks up to this width keep their size
PLAIN = training.Execution(
    Cadence(log_every=1, checkpoint_every=1000, eval_every=1000), lambda: None, Resources(compile="off")
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    make_deterministic(1)
    made = tmp_path_factory.mktemp("text")
    write_sample(made)
    return made


def tiny(cell: Cell, catalogue: Catalogue) -> Cell:
    """Return the cell with few updates of few rows, and with its size, vocabulary and start if the network is small."""
    values = _shrunk_mapping(cell, TEXT, catalogue) | dict.fromkeys(
        ["seed", *(stage.kind.name for stage in cell.later)]
    )
    values["seed"] = 1
    if cell.model.size.hidden <= NARROW and not cell.objective.reserved:
        values |= {"size": cell.to_mapping()["size"], "init": cell.to_mapping()["init"]}
    return cell_from(values, catalogue)


def ending(folder: Path, cell: Cell) -> str:
    """Train the cell; return how it ended."""
    paths = training.RunPaths(folder / cell.key, [], folder / "cache", folder)
    outcome = training.train(cell, paths, silent, PLAIN)
    return " ".join(filter(None, (outcome.outcome, outcome.cause)))


@pytest.mark.long
@pytest.mark.parametrize(("page", "text"), YAML, ids=[f"{page}-{i}" for i, (page, _) in enumerate(YAML)])
def test_cells_of_blocks(page: str, text: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = Batches.at

    def begins_with_the_last_id(self: Batches, step: int) -> Batch:
        batch = usual(self, step)
        inputs = batch.inputs.copy()
        inputs[0, 0] = last
        return replace(batch, inputs=inputs)

    monkeypatch.setattr(Batches, "at", begins_with_the_last_id)
    declared = load(written(tmp_path, text))
    entries = expand(declared, list(yaml.safe_load(text).get("grids", {"example": {}})))
    trained = [replace(one, cell=tiny(one.cell, declared.catalogue)) for one in entries if not one.cell.network]
    for entry in covering(trained, MET):
        last = entry.cell.text_vocab - 1
        assert ending(folder, entry.cell) == "done", f"{page}: {entry.id}"


NETWORKS = [(page, text) for page, text in YAML if yaml.safe_load(text).get("networks")]


@needs_transformers
@pytest.mark.release
@pytest.mark.parametrize(("page", "text"), NETWORKS, ids=[page for page, _ in NETWORKS])
def test_the_networks_of_a_block_are_measured(page: str, text: str, folder: Path, tmp_path: Path) -> None:
    declared = load(written(tmp_path, text))
    entries = [entry for entry in expand(declared, list(yaml.safe_load(text)["grids"])) if entry.cell.network]
    assert entries
    for entry in entries:
        cell = entry.cell
        assert cell.network.path, f"{page}: {entry.id} would be downloaded"
        for stage in cell.stages:
            facts = {
                "stage": stage.kind, "cell": cell.to_mapping(), "cache": str(folder / "cache"), "root": str(folder),
            }  # fmt: skip
            attempt = make_attempt(tmp_path / "runs", stage.key, facts)
            context = StageContext(cell, attempt.read_attempt(), attempt, silent, lambda: None, ALONE)
            assert runner(cell, stage.kind)(context).outcome == "done", f"{page}: {entry.id} {stage.kind}"

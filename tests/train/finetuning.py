"""What the tests of finetuning share: a small pretrained network, records, and runs, also of several processes.

`python finetuning.py SIZE MEETING CASES` runs the cases of a JSON file, lists [name, section, resources, earlier
folders, updates]; the first process writes NAME.json.
"""

import itertools
import json
import random
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from documents import WORDS, write_documents
from recorder import stop_after
from together import fork

from gpas_cli.checkpoints import newest_first
from gpas_cli.events import Event, Outcome, fields_of
from gpas_cli.spec.cell import Cell
from gpas_cli.spec.parse_cell import cell_from
from gpas_cli.spec.run import Cadence, Resources
from gpas_cli.train.device import make_deterministic
from gpas_cli.train.finetune import finetune
from gpas_cli.train.parallel import World, joined
from gpas_cli.train.training import Execution, RunPaths, train

LAYERS = 5
PRETRAINED_UPDATES = 8
SIZE = {"hidden": 16, "ffn": 24, "heads": 2, "layers": LAYERS, "vocab": 280}
DATA = {"source": "files", "path": "*.txt", "tokenizer": "bpe", "layout": "pack", "length": 16, "eval_tokens": 100}
OPTIM = {"lr": 0.01, "warmup": 1, "steps": PRETRAINED_UPDATES, "batch": 4}
SECTION = {
    "data": "records.json", "validation": "held-out.jsonl", "template": "plain", "layout": "pad", "length": 16,
    "lisa_layers": 2, "epochs": 2, "batch": 6, "lr": 0.01,
}  # fmt: skip
RECORDS = 24
UPDATES = 8  # 2 epochs of 24 rows, 6 at a time
CADENCE = Cadence(log_every=1, stats_every=4, eval_every=3, checkpoint_every=4)


def write_texts(root: Path) -> None:
    """Write a corpus and records, in the same few words."""
    write_documents(root)
    chooser = random.Random(2)
    phrases = (" ".join(chooser.choices(WORDS, k=3)) for _ in itertools.count())
    several = [{"instruction": next(phrases), "input": "", "output": f" {next(phrases)}"} for _ in range(RECORDS + 10)]
    (root / "records.json").write_text(json.dumps(several[:RECORDS]))
    (root / "held-out.jsonl").write_text("\n".join(map(json.dumps, several[RECORDS:])))


def cell(section: dict[str, Any] | None = None, **values: Any) -> Cell:
    """Return the small cell with `section` beside the usual settings of its finetuning."""
    whole = {"size": SIZE, "gate": "gpas", "data": DATA, "optim": OPTIM, "finetune": {**SECTION, **(section or {})}}
    return cell_from({**whole, **values})


def pretrain(root: Path, declared: Cell, name: str = "pretrained") -> Path:
    """Pretrain the cell into root/NAME and return its last checkpoint."""
    paths = RunPaths(root / name, [], root / "cache", root)
    outcome = train(declared, paths, lambda event: None, Execution(Cadence(), lambda: None))
    assert outcome.outcome == "done"
    return newest_first([root / name])[0]


def run(
    root: Path,
    name: str,
    declared: Cell,
    pretrained: Path,
    *,
    updates: int | None = None,
    earlier: Sequence[str] = (),
    cadence: Cadence = CADENCE,
    tokenizer: str | None = None,
    **how: Any,
) -> tuple[Outcome, list[Event]]:
    """Finetune into root/NAME, asking to stop after `updates` updates. Return the outcome and the events."""
    events: list[Event] = []
    paths = RunPaths(root / name, [root / before for before in earlier], root / "cache", root)
    outcome = finetune(
        declared, pretrained, paths, events.append, Execution(cadence, stop_after(updates), **how), tokenizer
    )
    return outcome, events


def main(size: int, meeting: str, cases: Path) -> None:
    root = cases.parent

    def act(rank: int) -> None:
        make_deterministic(1)
        with joined(World(rank, size, rank), meeting) as world:
            for name, section, resources, earlier, updates in json.loads(cases.read_text()):
                outcome, events = run(
                    root, name, cell(section), newest_first([root / "pretrained"])[0], world=world, earlier=earlier,
                    updates=updates, resources=Resources(**resources),
                )  # fmt: skip
                if rank == 0:
                    found = {"outcome": asdict(outcome), "events": [[e.kind, fields_of(e)] for e in events]}
                    (root / f"{name}.json").write_text(json.dumps(found))

    fork(size, act)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))

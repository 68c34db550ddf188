"""Small cells for the tests of layer importance, and one of two processes that measure one of them together:
`python importance_ranks.py RANK ROOM CHECKPOINT OUTPUT`."""

import copy
import json
import random
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from documents import WORDS
from learned_factors import open_factors
from recorder import Recorder
from saving import save

from gpas_cli.checkpoints import short_name
from gpas_cli.events import Emit, Outcome, Removal, RemovalScore, Stop
from gpas_cli.extensions.layers.importance import measure
from gpas_cli.extensions.layers.removal import own_subject
from gpas_cli.model.llama import Llama, build
from gpas_cli.spec.cell import Cell
from gpas_cli.spec.parse_cell import Catalogue, cell_from
from gpas_cli.train.assemble import load_trained
from gpas_cli.train.checkpoint import Position
from gpas_cli.train.device import make_deterministic
from gpas_cli.train.optim import make_adam
from gpas_cli.train.parallel import ALONE, World, joined
from gpas_cli.train.training import prepare_text


def _text(words: int, seed: int) -> str:
    chooser = random.Random(seed)
    return " ".join(chooser.choice(WORDS) for _ in range(words)) + "\n"


TEXTS = {f"t{i:02d}.txt": _text(40, i) for i in range(30)} | {f"v{i:02d}.txt": _text(3 + i % 13, i) for i in range(20)}
SIZE = {"hidden": 16, "ffn": 24, "heads": 2, "layers": 4, "vocab": 280}
DATA = {"source": "files", "path": "t*.txt", "validation": "v*.txt", "tokenizer": "bpe", "length": 16}
OPTIM = {"lr": 0.01, "warmup": 3, "steps": 7, "batch": 5}


def cell_of(*, layout: str = "pack", catalogue: Catalogue | None = None, **values: Any) -> Cell:
    data = {**DATA, "layout": layout}
    own = {"size": SIZE, "data": data, "optim": OPTIM, "importance": {"eval_tokens": 100}, **values}
    return cell_from(own, catalogue)


def save_network(
    cell: Cell,
    folder: Path,
    change: Callable[[Llama], None] = lambda network: None,
    *,
    gates: float = 0.4,
    step: int = 7,
) -> tuple[Path, Llama]:
    """Save a network with large weights and open gates as if it were trained; return its checkpoint and itself."""
    network = build(cell.model, seed=3)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if name.endswith("proj.weight"):
                parameter.mul_(8)
        for gate in network.gates():
            gate.alpha.fill_(gates)
        open_factors(network)
        change(network)
    optimizer = make_adam(network, cell.optim)
    return save(folder, cell.trained.key, network, optimizer, Position(step=step), ALONE), network


def write_texts(root: Path) -> Path:
    """Write texts of different lengths into the folder, and return it."""
    for name, text in TEXTS.items():
        (root / name).write_text(text)
    make_deterministic(1)
    return root


def measured(
    room: Path, cell: Cell, path: Path, earlier: Iterable[Removal | RemovalScore] = (), *,
    stop: Stop = lambda: None, world: World = ALONE, emit: Emit | None = None,
) -> tuple[Outcome, Recorder]:  # fmt: skip
    """Measure the network of a checkpoint on the texts of the folder. Return the outcome and the events."""
    recorder = Recorder()
    corpus = prepare_text(cell, room / "cache", room, notify=lambda _: None)
    section = cell.parameters("importance")
    subject = own_subject(cell, load_trained(cell, path, world), corpus, short_name(path), section.eval_tokens, world)
    return measure(subject, section, room, emit or recorder, stop, world, earlier), recorder


def without(network: Llama, layer: int) -> Llama:
    """Return a copy of the network that does not have the layer."""
    other = copy.deepcopy(network)
    del other.model.layers[layer - 1]
    return other


def main(rank: int, room: Path, path: Path, output: Path) -> None:
    make_deterministic(1)
    cell = cell_of(norm="post", gate="gpas", layout="pad")
    with joined(World(rank, 2, rank), f"file://{output}.meeting") as world:
        outcome, recorder = measured(room, cell, path, world=world)
    if rank == 0:
        (event,) = recorder.of("layers")
        output.write_text(json.dumps({"values": event["values"], "loss": outcome.metrics["loss"]}))
    else:
        assert not recorder.events


if __name__ == "__main__":
    main(int(sys.argv[1]), *map(Path, sys.argv[2:]))

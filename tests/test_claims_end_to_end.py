"""A claim about real trainings: seeds are added until it is decided, and a killed command resumes."""

from pathlib import Path

import pytest
from end_to_end import TOY, Toy, kill, wait

GRID = (
    TOY
    + """\
grids:
  rates:
    base: {{size: toy, data: notes}}
    axes:
      optim.lr: [0.01, 0.00001]
      seed: [1, 2]
    cadence: {{log_every: 5, stats_every: 20, eval_every: 100000, checkpoint_every: 50}}
claims:
  fast:
    statement: A learning rate of 0.01 gives a lower perplexity than one of 1e-5.
    grids: [rates]
    subject: {{optim.lr: 0.01}}
    against: {{optim.lr: 0.00001}}
    expect: lower
"""
)
RUN = ("run", "claims", "fast", "--executor", "local", "--yes")


@pytest.mark.long
def test_a_true_claim_is_supported_although_the_command_was_killed(tmp_path: Path) -> None:
    toy = Toy(tmp_path / "toy")
    (toy.folder / "experiments.yaml").write_text(GRID.format(steps=40))
    first = toy.start(*RUN)
    wait(lambda: len(toy.attempts()) >= 3)
    kill(first)
    # The seeds of the round were written before its first job.
    assert (toy.folder / "experiments.seeds.yaml").read_text().count("[3, 4]") == 2
    found = toy(*RUN, "--json").json
    (part,) = found["claims"][0]["parts"]
    assert found["claims"][0]["verdict"] == "supported"
    assert part["seeds"] == list(range(1, len(part["seeds"]) + 1))
    assert max(part["effects"]) < 0
    # A job that the killed command had started is followed or resumed, and no seed is trained twice.
    assert len({path.parent for path in toy.attempts()}) == 2 * len(part["seeds"])
    assert toy("claims", "fast", "--json").json["claims"][0]["verdict"] == "supported"
    before = toy.attempts()
    assert toy(*RUN, "--json").json["rounds"] == 0
    assert toy.attempts() == before
    # The two files make the same cells on another machine.
    other = Toy(tmp_path / "other")
    for name in ("experiments.yaml", "experiments.seeds.yaml"):
        (other.folder / name).write_text((toy.folder / name).read_text())
    assert set(other.status()) == set(toy.status())

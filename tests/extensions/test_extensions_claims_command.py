"""`gpas claims` in a project with recorded runs: verdicts, parts, commands, and numbers taken from curves."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from attempts import attempt_at
from cases import file_text
from face import Face, gpas
from goldens import compare_command, golden_cases

from gpas_cli.events import Event, Layers, Outcome, Spike, Started, Step
from gpas_cli.extensions.claims.command import next_text
from gpas_cli.grid import Entry

GRIDS = file_text("experiments/claims.yaml")


def record(runs: Path, entry: Entry) -> None:
    """Record a run: the gate lowers perplexity by about 1 and halves the variance, which grows with depth."""
    gated = entry.axes["gate"] == "gpas"
    seed = entry.cell.seed
    perplexity = 30 + seed - (1 + 0.02 * seed if gated else 0)
    events: list[Event] = [Started(stage="pretrain", key=entry.cell.stages[0].key, device="cpu", precision="fp32")]
    for step in (1, 10, 20, 40):
        variance = [(0.5 + 0.01 * seed if gated else 1) * 1.5**layer * step / 10 for layer in range(4)]
        gates = [-0.1 - 0.01 * seed, 0.2, 0.3 + 0.01 * seed] if entry.axes["norm"] == "mix" else [0.1 * seed, 0.1, 0.1]
        moved = {1: 0.0, 10: 0.5}.get(step, 1.0)
        values = {"activation_variance": variance, **({"gate": [moved * gate for gate in gates]} if gated else {})}
        events += [Step(step=step, loss=4.0, lr=1e-3, grad_norm=1.0, steps=40), Layers(step=step, values=values)]
    if entry.axes["norm"] == "post":
        events.append(Spike(step=20, of="loss", value=9.0, usual=4.0))
    attempt_at(runs, entry, [*events, Outcome("done", 40, metrics={"perplexity": perplexity, "loss": 3.4})])


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Face:
    """Return a project of 18 cells, of which mix-gpas-s3 is missing and post-gpas-s3 has diverged."""
    made = Face(tmp_path_factory.mktemp("claims") / "project", GRIDS)
    for entry in made.cells():
        if entry.name == "post-gpas-s3":
            attempt_at(made.runs, entry, [Started(), Outcome("diverged", 10, cause="loss is nan")])
        elif entry.name != "mix-gpas-s3":
            record(made.runs, entry)
    return made


@pytest.mark.parametrize("title", golden_cases("commands/claims"))
def test_what_is_said_is_that_of_the_golden_file(project: Face, title: str) -> None:
    compare_command("commands/claims", title, project, hidden=r"\d+(?= claims of papers)")


def test_the_appendix_for_those_who_check_claims(project: Face) -> None:
    said = project("claims", "gate-lowers-perplexity", "variance-at-10", "--appendix", "a.md", "--price", "2").out
    assert said == "Wrote a.md: 2 claims.\n"
    text = (project.folder / "a.md").read_text()
    first, second = text.split("\n## ")[1:]
    assert "(GPAS paper, section 4.2)" in first
    assert first.count(" | difference from the base < 0; ") == 2, "a line for each scheme with cells"
    assert "| hardware | " in first
    assert "gpas run claims gate-lowers-perplexity\n" in first
    assert "by itself > 1" in second
    assert "price" not in second, "its cells ask for no GPU"


def test_claims_are_checked_when_the_file_is_read(project: Face, tmp_path: Path) -> None:
    text = (project.folder / "experiments.yaml").read_text()
    wrong = text.replace("take: log-slope}", "take: log-slope, updates: all}").replace(
        "tokens_per_second", "tokens_per_s"
    )
    (tmp_path / "experiments.yaml").write_text(wrong.replace("curve: spike_loss", "curve: importance", 1))
    said = gpas(tmp_path, "plan", "g", expect=2).err
    for words in ("over layers is taken at one update", "did you mean 'tokens_per_second'?", "the stage 'importance'"):
        assert words in said


def test_missing_runs_are_counted_by_state() -> None:
    states = [SimpleNamespace(state=state) for state in ("interrupted", "missing", "missing")]
    assert next_text(SimpleNamespace(verdict="undecided", missing=states)) == "1 run interrupted, 2 missing"  # type: ignore[arg-type]
    assert next_text(SimpleNamespace(verdict="undecided", missing=states[1:])) == "2 runs missing"  # type: ignore[arg-type]

"""`gpas claims` in a project with recorded runs: verdicts, parts, commands, and numbers taken from curves."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from attempts import attempt_at
from face import Face, gpas, tiny

from gpas_cli.events import Event, Layers, Outcome, Spike, Started, Step
from gpas_cli.extensions.claims.command import next_text
from gpas_cli.grid import Entry

GRIDS = """
  g:
    title: My grid
    base: BASE
    axes: {norm: [pre, post, {name: mix, scheme: mix, post_fraction: 0.34}], gate: [none, gpas], seed: [1, 2, 3]}
claims:
  gate-lowers-perplexity:
    statement: The gate lowers the perplexity of every scheme.
    source: {paper: gpas, where: section 4.2, quote: lower perplexities}
    grids: [g]
    subject: {gate: gpas}
    against: {gate: none}
    by: [norm]
    expect: lower
  gate-halves-variance:
    statement: The gate halves the highest variance.
    grids: [g]
    subject: {norm: pre, gate: gpas}
    against: {gate: none}
    compare: ratio
    value: {curve: activation_variance, take: max, updates: all}
    expect: {between: [0.4, 0.6]}
  variance-at-10:
    statement: At update 10 the mean variance of the deeper layers is above 1.
    grids: [g]
    subject: {norm: pre, gate: none}
    value: {curve: activation_variance, layers: deeper, updates: 10}
    expect: {above: 1}
  signs:
    statement: Gates of post layers are negative, those of pre layers positive.
    grids: [g]
    parts:
      - {says: pre layers, subject: {gate: gpas, norm: mix}, value: {curve: gate, layers: pre}, expect: positive}
      - {says: post layers, subject: {gate: gpas, norm: mix}, value: {curve: gate, layers: post}, expect: negative}
      - {says: first layer, subject: {gate: gpas, norm: pre}, value: {curve: gate, layers: first}, expect: positive}
  slope:
    statement: The variance grows with depth.
    grids: [g]
    subject: {norm: pre, gate: none}
    value: {curve: activation_variance, take: log-slope}
    expect: {above: 0.3}
  early:
    statement: Gates move early.
    grids: [g]
    subject: {norm: pre, gate: gpas}
    value: {curve: gate, take: early-change, updates: all}
    expect: {above: 0.5}
  spikes:
    statement: Post-LN spikes, Pre-LN does not.
    grids: [g]
    subject: {gate: none}
    value: {curve: spike_loss, take: count}
    test: each-run
    parts:
      - {says: none, subject: {norm: pre, gate: none}, expect: {below: 1}}
      - {says: some, subject: {norm: post, gate: none}, expect: {above: 0}}
  not-here:
    statement: It trains fast.
    grids: [g]
    subject: {gate: gpas}
    by: [norm]
    value: tokens_per_second
    expect: positive
"""


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
    made = Face(tmp_path_factory.mktemp("claims") / "project", tiny(GRIDS))
    for entry in made.cells():
        if entry.name == "post-gpas-s3":
            attempt_at(made.runs, entry, [Started(), Outcome("diverged", 10, cause="loss is nan")])
        elif entry.name != "mix-gpas-s3":
            record(made.runs, entry)
    return made


@pytest.fixture(scope="module")
def claims(project: Face) -> dict[str, dict]:
    """Return the claims of `gpas claims --json` by name."""
    return {claim["name"]: claim for claim in project("claims", "--json").json["claims"]}


def test_only_claims_about_declared_grids_are_shown(claims: dict[str, dict]) -> None:
    assert list(claims) == [
        "gate-lowers-perplexity", "gate-halves-variance", "variance-at-10", "signs", "slope", "early", "spikes",
        "not-here",
    ]  # fmt: skip


def test_parts_effects_and_seeds(claims: dict[str, dict]) -> None:
    claim = claims["gate-lowers-perplexity"]
    pre, post, mix = claim["parts"]
    assert (pre["verdict"], pre["test"], pre["n"], pre["title"]) == ("supported", "t", 3, "Pre-LN")
    assert pre["effect"] == pytest.approx(-1.04)
    assert pre["seeds"][0]["cells"] == ["g/pre-gpas-s1", "g/pre-s1"]
    assert (pre["seeds"][0]["own"], pre["seeds"][0]["base"]) == (pytest.approx(29.98), 31.0)
    assert (post["test"], post["diverged"], post["verdict"], post["effect"]) == ("sign", 1, "undecided", None)
    assert post["seeds"][2]["own"] == post["seeds"][2]["effect"] == "inf"
    assert (mix["n"], mix["seeds"][2]["own"], mix["seeds"][2]["states"]) == (2, None, ["missing", "done"])
    assert (claim["verdict"], [run["cell"] for run in claim["missing"]]) == ("undecided", ["g/mix-gpas-s3"])
    assert claim["command"] == "gpas run grid g --where norm=mix --where gate=gpas --where seed=3"


def test_numbers_taken_from_curves(claims: dict[str, dict]) -> None:
    (halves,) = claims["gate-halves-variance"]["parts"]
    assert [seed["own"] for seed in halves["seeds"]] == pytest.approx([k * 1.5**2 * 4 for k in (0.51, 0.52, 0.53)])
    assert (halves["effect"], halves["verdict"]) == (pytest.approx(0.52, abs=1e-3), "supported")
    assert halves["value"] == "max of activation_variance, all updates"
    (at_ten,) = claims["variance-at-10"]["parts"]
    assert [seed["own"] for seed in at_ten["seeds"]] == pytest.approx([(1.5 + 1.5**2) / 2] * 3)
    assert at_ten["reason"].startswith("the effects of all seeds are equal")
    (slope,) = claims["slope"]["parts"]
    assert slope["seeds"][0]["own"] == pytest.approx(0.405465)
    (early,) = claims["early"]["parts"]
    assert early["seeds"][0]["own"] == 0.0  # all movement is after update 8 of 40


def test_layers_are_chosen_by_their_kind(claims: dict[str, dict]) -> None:
    pre, post, first = claims["signs"]["parts"]
    assert [seed["own"] for seed in pre["seeds"]] == [pytest.approx(0.255), pytest.approx(0.26), None]
    assert [seed["own"] for seed in post["seeds"]] == [pytest.approx(-0.11), pytest.approx(-0.12), None]
    assert [seed["own"] for seed in first["seeds"]] == pytest.approx([0.1, 0.2, 0.3])


def test_a_claim_about_each_run(claims: dict[str, dict]) -> None:
    assert claims["spikes"]["verdict"] == "supported"
    assert {part["test"] for part in claims["spikes"]["parts"]} == {"each-run"}
    assert [part["effect"] for part in claims["spikes"]["parts"]] == [0.0, 1.0]


def test_a_number_that_no_run_recorded(claims: dict[str, dict]) -> None:
    claim = claims["not-here"]
    assert {run["state"] for run in claim["missing"]} == {"unrecorded", "missing"}
    assert claim["command"] == "gpas run grid g --where norm=mix --where gate=gpas --where seed=3"


def test_the_overview_and_a_claim_in_detail(project: Face) -> None:
    said = project("claims").out
    assert "Your claims" in said
    assert "8 claims: 2 supported, 0 contradicted, 6 undecided." in said
    assert "claims of papers about grids that are not declared here, such as lns-lowers-perplexity." in said
    said = project("claims", "gate-lowers-perplexity").out
    assert "gate-lowers-perplexity: undecided" in said
    assert "GPAS paper, section 4.2: \N{LEFT DOUBLE QUOTATION MARK}lower perplexities" in said
    assert "1 run diverged; a diverged run counts as worse than any number." in said
    assert "1 run has no number yet: g/mix-gpas-s3 (missing)." in said
    assert "next: gpas run grid g --where norm=mix --where gate=gpas --where seed=3" in said


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


def test_nothing_selected_and_an_unknown_name(project: Face) -> None:
    assert "No claim matches these grids" in project("claims", "--toy").out
    assert "No claim matches these grids" in project("claims", "signs", "--toy").out
    said = project("claims", "sings", expect=2).err
    assert said.strip() == "gpas: no claim 'sings'; did you mean 'signs'?"


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

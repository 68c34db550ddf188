"""Training in this process: events, bit-exact resumption, divergence, and a disk that fills up."""

import json
import math
import shutil
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from cases import tables
from descriptors import descriptors
from documents import write_documents
from marks import long_but
from recorder import Recorder, stop_after
from safetensors.torch import load_file

from gpas_cli.checkpoints import newest_first, path_of
from gpas_cli.cli.views.events import line
from gpas_cli.errors import DataError, GpasError
from gpas_cli.events import Event, Outcome
from gpas_cli.spec.cell import Cell
from gpas_cli.spec.parse_cell import cell_from
from gpas_cli.spec.run import Cadence, Monitoring, Resources
from gpas_cli.train import checkpoint, loop, training
from gpas_cli.train.device import make_deterministic
from gpas_cli.train.loop import Update
from gpas_cli.train.training import Execution, RunPaths, train

STEPS = 13
LAYERS = 2
CADENCE = Cadence(log_every=4, stats_every=9, eval_every=6, checkpoint_every=5)


def paths_in(folder: Path) -> RunPaths:
    return RunPaths(checkpoints=folder / "unused", earlier=[], cache=folder / "cache", root=folder)


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> RunPaths:
    make_deterministic(1)
    write_documents(folder := tmp_path_factory.mktemp("text"))
    return paths_in(folder)


def cell(**values: object) -> Cell:
    size = {"hidden": 16, "ffn": 24, "heads": 2, "layers": LAYERS, "vocab": 280}
    data = {"source": "files", "path": "*.txt", "tokenizer": "bpe", "layout": "pack", "length": 16, "eval_tokens": 200}
    optim = {"lr": 0.01, "warmup": 3, "steps": STEPS, "batch": 4, "clip": 1.0, "clip_gates": 0.01}
    return cell_from({"size": size, "gate": "gpas", "data": data, "optim": optim, **values})


def go(
    paths: RunPaths, folder: Path, what: Cell, stop_at: int | None = None, **kwargs: object
) -> tuple[Outcome, Recorder]:
    """Train into `folder`; if `stop_at` is given, request a stop after that many updates."""
    recorder = Recorder()
    where = RunPaths(folder, kwargs.pop("earlier", []), paths.cache, paths.root)
    cadence, teacher = kwargs.pop("cadence", CADENCE), kwargs.pop("teacher", None)
    return train(what, where, recorder, Execution(cadence, stop_after(stop_at), **kwargs), teacher), recorder


def final_tensors(folder: Path) -> dict[str, torch.Tensor]:
    """Return everything in the newest checkpoint of one process."""
    (shard,) = newest_first([folder])[0].glob("*.safetensors")
    return load_file(shard)


@dataclass(frozen=True)
class Straight:
    """The uninterrupted run of `cell()`."""

    folder: Path
    outcome: Outcome
    recorder: Recorder


@pytest.fixture(scope="module")
def straight(paths: RunPaths, tmp_path_factory: pytest.TempPathFactory) -> Straight:
    folder = tmp_path_factory.mktemp("straight")
    return Straight(folder, *go(paths, folder, cell()))


def test_a_run_reports_every_event(straight: Straight) -> None:
    outcome, recorder = straight.outcome, straight.recorder
    assert (outcome.outcome, outcome.step) == ("done", STEPS)
    steps = recorder.of("step")
    assert [event["step"] for event in steps] == [1, 4, 8, 12, 13]
    assert (steps[0]["lr"], steps[0]["loss"]) == (0, pytest.approx(math.log(280), rel=0.1))
    assert steps[-1]["loss"] < steps[0]["loss"] - 1
    layers = recorder.of("layers")[-1]["values"]
    lengths = {name: len(series) for name, series in layers.items()}
    assert lengths["activation_variance"] == LAYERS + 1
    assert lengths["grad_norm"] == lengths["gate"] == lengths["weight_norm"] == lengths["weight_norm_q"] == LAYERS
    assert lengths["weight_norm_embedding"] == lengths["weight_norm_head"] == lengths["grad_norm_head"] == 1
    assert {"seconds_per_step", "flops_per_second", "memory"} <= steps[-1].keys()
    assert ("mfu" in steps[-1]) == torch.cuda.is_available()  # the peak of a CPU is unknown and not guessed
    assert [event["step"] for event in recorder.of("evaluation")] == [6, 12, 13]
    assert outcome.metrics["perplexity"] == pytest.approx(math.exp(outcome.metrics["loss"]))
    assert outcome.metrics["loss_reference"] < outcome.metrics["loss_batch_mean"]
    assert outcome.metrics["train_tokens"] == STEPS * 4 * 16
    (data,) = recorder.of("data")
    assert data["source"] == "files"
    assert len(data["first_batch"]) == 64


def test_descriptors_do_not_grow_over_time(paths: RunPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many files are open after the last evaluation and checkpoint as after the first."""
    counts = []
    once = Recorder.__call__

    def counted(recorder: Recorder, event: Event) -> None:
        once(recorder, event)
        if event.kind == "checkpoint":
            counts.append(len(descriptors()))

    monkeypatch.setattr(Recorder, "__call__", counted)
    go(paths, tmp_path, cell(), 10, cadence=Cadence(log_every=1, stats_every=1, eval_every=1, checkpoint_every=1))
    assert len(counts) == 10
    assert max(counts[4:]) <= max(counts[:4])


def test_a_training_that_stops_is_the_beginning_of_the_whole_one(paths: RunPaths, tmp_path: Path) -> None:
    """Stopped at an update of a longer schedule, resumed on the way: the same updates, evaluation and weights."""
    schedule = {"lr": 0.01, "warmup": 3, "steps": 2 * STEPS, "batch": 4, "clip": 1.0, "clip_gates": 0.01}
    whole, stopped = cell(optim=schedule), cell(optim={**schedule, "stop": 12})
    assert whole.key != stopped.key
    _, beginning = go(paths, tmp_path / "whole", whole, stop_at=12)
    interrupted, first = go(paths, tmp_path / "first", stopped, stop_at=7)
    outcome, rest = go(paths, tmp_path / "second", stopped, earlier=[tmp_path / "first"])
    assert (interrupted.outcome, outcome.outcome, outcome.step) == ("interrupted", "done", 12)

    def series(*recorders: Recorder) -> dict[int, tuple[float, ...]]:
        steps = [event for recorder in recorders for event in recorder.of("step")]
        return {event["step"]: (event["loss"], event["lr"], event["grad_norm"]) for event in steps}

    assert series(first, rest) == series(beginning)
    assert {event["steps"] for event in rest.of("step")} == {12}
    at_stop = {event["step"]: event for event in beginning.of("evaluation")}[12]
    (final,) = [event for event in rest.of("evaluation") if event["step"] == 12]
    assert final == at_stop
    assert outcome.metrics["perplexity"] == at_stop["perplexity"]
    assert outcome.metrics["train_tokens"] == 12 * 4 * 16
    assert max(event["step"] for event in rest.of("step")) == 12
    ours, theirs = final_tensors(tmp_path / "second"), final_tensors(tmp_path / "whole")
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_damaged_tokens_end_a_run_and_verified_ones_are_recorded(paths: RunPaths, tmp_path: Path) -> None:
    here = replace(paths, cache=tmp_path / "cache")
    _, recorder = go(here, tmp_path / "sound", cell())
    found = {event["split"]: event["shards"] for event in recorder.of("verified")}
    markers = {path.parent.name: path for path in here.cache.glob("tokens/*/*/00000.json")}
    assert found == {split: {"00000": json.loads(path.read_bytes())["sha256"]} for split, path in markers.items()}
    for split in ("validation", "train"):
        ids = markers[split].with_suffix(".bin")
        content = bytearray(ids.read_bytes())
        content[10] ^= 1  # still a valid token id
        ids.write_bytes(content)
        with pytest.raises(DataError, match=f"{split}/00000: the tokens on disk .* `gpas data prepare`"):
            go(here, tmp_path / split, cell())
    assert not list((tmp_path / "train").glob("step-*"))  # refused before the first update


@pytest.fixture(params=["at once", "in the background"])
def saving(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """How checkpoints are written."""
    monkeypatch.setattr(training, "_IN_BACKGROUND", ("cpu",) if request.param == "in the background" else ())


# A SIGKILL leaves only the periodic checkpoints: the last one is lost.
STOPS = [(7, True), (9, False)]


@pytest.mark.parametrize(
    ("saving", "stop_at", "lost"), [("at once", *STOPS[0]), ("in the background", *STOPS[1])], indirect=["saving"]
)
@pytest.mark.usefixtures("saving")
def test_a_resumed_run_is_equal(paths: RunPaths, straight: Straight, tmp_path: Path, stop_at: int, lost: bool) -> None:
    assert_resumed_in_the_same_bits(paths, tmp_path, cell(), straight, stop_at, lost)


KINDS = tables("train/cases.yaml")["a_resumed_run_of_another_kind_is_equal"]


@pytest.mark.parametrize("kind", long_but(KINDS, "pure_bf16", "dropout", "raptr", "stacking"))
def test_a_resumed_run_of_another_kind_is_equal(paths: RunPaths, tmp_path: Path, kind: str) -> None:
    what = cell(**KINDS[kind])
    whole = Straight(tmp_path / "straight", *go(paths, tmp_path / "straight", what))
    losses = [event["loss"] for event in whole.recorder.of("step")]
    assert (whole.outcome.outcome, losses[-1] < losses[0]) == ("done", True)
    assert_resumed_in_the_same_bits(paths, tmp_path, what, whole, *STOPS[0])


def assert_resumed_in_the_same_bits(
    paths: RunPaths, folder: Path, what: Cell, whole: Straight, stop_at: int, lost: bool
) -> None:
    left, _ = go(paths, folder / "first", what, stop_at)
    assert (left.outcome, left.step) == ("interrupted", stop_at)
    if lost:
        shutil.rmtree(path_of(folder / "first", stop_at))
    assert_the_rest_has_the_same_bits(paths, folder, what, whole, 5 if lost else stop_at)


def assert_the_rest_has_the_same_bits(
    paths: RunPaths, folder: Path, what: Cell, whole: Straight, resumed_from: int
) -> None:
    second = folder / "second"
    resumed, recorder = go(paths, second, what, earlier=[folder / "first"])
    assert recorder.of("phase")[-2]["resumed_from"] == resumed_from
    assert resumed.metrics["loss"] == whole.outcome.metrics["loss"]
    ours, theirs = final_tensors(second), final_tensors(whole.folder)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


@pytest.mark.parametrize(("stop_at", "written"), [(5, [5]), (7, [5, 7])])
def test_a_stop_waits_for_the_checkpoint_that_is_being_written(
    paths: RunPaths,
    straight: Straight,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    stop_at: int,
    written: list[int],
) -> None:
    """Another one is written only if updates have been done since."""
    monkeypatch.setattr(training, "_IN_BACKGROUND", ("cpu",))
    write, asks, stopping = checkpoint._write, stop_after(stop_at), threading.Event()
    files = []

    def slow(path: Path, tensors: Mapping[str, torch.Tensor]) -> str:
        assert stopping.wait(60)
        files.append(path)
        return write(path, tensors)

    def stop() -> str | None:
        if asked := asks():
            stopping.set()
        return asked

    monkeypatch.setattr(checkpoint, "_write", slow)
    first, recorder = tmp_path / "first", Recorder()
    left = train(cell(), replace(paths, checkpoints=first), recorder, Execution(CADENCE, stop))
    assert (left.outcome, left.step) == ("interrupted", stop_at)
    assert [event["step"] for event in recorder.of("checkpoint")] == written
    assert (len(files), sorted(first.glob("*step-*"))) == (len(written), [path_of(first, update) for update in written])
    assert_the_rest_has_the_same_bits(paths, tmp_path, cell(), straight, stop_at)


def test_base_and_gpas_see_the_same_batches(paths: RunPaths, tmp_path: Path) -> None:
    runs = [go(paths, tmp_path / str(i), cell(gate=gate), stop_at=0)[1] for i, gate in enumerate([None, "gpas"])]
    assert runs[0].of("data") == runs[1].of("data")
    other = go(paths, tmp_path / "other", cell(seed=1), stop_at=0)[1]
    assert other.of("data")[0]["first_batch"] != runs[0].of("data")[0]["first_batch"]


def test_a_loss_that_is_nan_is_a_result(paths: RunPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    healthy = loop.summed_loss
    calls = iter(range(10**6))
    monkeypatch.setattr(loop, "summed_loss", lambda *a: healthy(*a) * (math.nan if next(calls) == 6 else 1))
    outcome, recorder = go(paths, tmp_path, cell())
    assert (outcome.outcome, outcome.step) == ("diverged", 7)
    # The loss of one row is nan: so are all gradients, of the embedding's rows those of its tokens.
    assert outcome.cause.startswith("the training loss of update 7 is nan, first in the gradient of model.embed_tokens")
    assert "not_finite_at" not in outcome.metrics
    assert recorder.of("step")[-1]["step"] == 8


def test_a_gradient_not_finite_ends_a_run(paths: RunPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    healthy = loop.clip
    calls = iter(range(10**6))

    def endless(*given: object) -> tuple[torch.Tensor, torch.Tensor]:
        norm, norms = healthy(*given)
        return norm * (math.inf if next(calls) == 8 else 1), norms

    monkeypatch.setattr(loop, "clip", endless)
    outcome, recorder = go(paths, tmp_path, cell())
    assert (outcome.outcome, outcome.step) == ("diverged", 9)
    assert outcome.cause == "the gradient norm of update 9 is inf"
    assert recorder.of("checkpoint")[-1]["step"] == 5  # the checkpoint of update 10 would have contained the damage


@pytest.mark.parametrize(("name", "at"), [("model.embed_tokens.weight", 7), ("model.layers.1.mlp.down_proj.weight", 0)])
def test_the_first_parameter_without_a_finite_gradient_is_named(
    name: str, at: int, paths: RunPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    healthy = loop.Loop._gradients

    def damaged(self: loop.Loop, *given: object) -> object:
        result = healthy(self, *given)
        if self.position.step == 0:
            for one in (name, "model.norm.weight"):
                dict(self.network.named_parameters())[one].grad[at] = math.inf
        return result

    monkeypatch.setattr(loop.Loop, "_gradients", damaged)
    outcome, _ = go(paths, tmp_path, cell())
    assert (outcome.outcome, outcome.step, outcome.parameter) == ("diverged", 1, name)
    assert outcome.cause.startswith("the gradient norm of update 1 is ")
    assert outcome.cause.endswith(f", first in the gradient of {name}")
    assert outcome.metrics["not_finite_at"] == 1
    assert line(outcome).startswith("not finite at update 1: the gradient norm")


def test_a_loss_that_stays_high_diverges(paths: RunPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    healthy = loop.summed_loss
    calls = iter(range(10**6))
    monkeypatch.setattr(loop, "summed_loss", lambda *a: healthy(*a) * (9 if next(calls) >= 4 else 1))
    outcome, _ = go(paths, tmp_path, cell(), watch=Monitoring(patience=6))
    assert (outcome.outcome, outcome.step) == ("diverged", 10)
    assert "was above 6." in outcome.cause


def test_a_resumed_run_has_the_same_spikes(paths: RunPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = {7: 8.0, 8: 8.0, 12: 9.0}
    update = loop.Loop.update

    def spiking(self: loop.Loop, **kwargs: object) -> Update:
        done = update(self, **kwargs)
        return replace(done, loss=done.loss * 0 + seen.get(done.step, 3.0))

    monkeypatch.setattr(loop.Loop, "update", spiking)
    asked = {"watch": Monitoring(window=16), "cadence": Cadence(log_every=5, eval_every=10**6, checkpoint_every=5)}
    whole = go(paths, tmp_path / "whole", cell(), **asked)[1].of("spike")
    assert [(spike["step"], spike["of"]) for spike in whole] == [(7, "loss"), (12, "loss")]
    for stop_at in (6, 7, 12):
        first, second = tmp_path / f"{stop_at}-1", tmp_path / f"{stop_at}-2"
        spikes = go(paths, first, cell(), stop_at, **asked)[1].of("spike")
        _, after = go(paths, second, cell(), earlier=[first], **asked)
        assert spikes + after.of("spike") == whole
        assert not after.of("warning")


def test_a_run_resumed_by_other_code_warns_or_is_refused(paths: RunPaths, tmp_path: Path) -> None:
    def attempt(number: int, code: str, stop_at: int | None = None, **more: str) -> tuple[Outcome, Recorder]:
        recorder = Recorder()
        earlier = [tmp_path / str(before) for before in range(number)]
        where = replace(paths, checkpoints=tmp_path / str(number), earlier=earlier, code=code)
        how = Execution(CADENCE, stop_after(stop_at), Resources(**more))
        return train(cell(), where, recorder, how), recorder

    attempt(0, "aaaa", 3)
    same, recorder = attempt(1, "aaaa", 3)
    assert ("code_versions" in same.metrics, recorder.of("warning")) == (False, [])
    with pytest.raises(GpasError, match=r"version aaaa of the code, and this is version bbbb.*same-code refuses"):
        attempt(2, "bbbb", resume="same-code")
    mixed, recorder = attempt(3, "bbbb")
    assert "update 6 was made by version aaaa of the code" in recorder.of("warning")[0]["message"]
    assert (mixed.outcome, mixed.metrics["code_versions"]) == ("done", 2)


def test_a_run_without_deterministic_kernels_warns_where_it_resumes(paths: RunPaths, tmp_path: Path) -> None:
    """So does one that had them only before or only after. Its manifest has which."""

    def attempt(number: int, stop_at: int | None, *, strict: bool) -> list[str]:
        make_deterministic(1)
        folder, earlier = tmp_path / str(number), [tmp_path / str(before) for before in range(number)]
        _, recorder = go(paths, folder, cell(), stop_at, earlier=earlier, resources=Resources(deterministic=strict))
        assert torch.are_deterministic_algorithms_enabled() is strict
        assert checkpoint.read_manifest(newest_first([folder])[0]).facts["rounding"]["deterministic"] is strict
        return [event["message"] for event in recorder.of("warning")]

    def changed(before: str, update: int, after: str) -> list[str]:
        kernels = "deterministic kernels (resources.deterministic)"
        end = "so the result is not bit for bit that of an uninterrupted run"
        return [f"{kernels}: {before} up to update {update}, {after} after it, {end}"]

    try:
        assert attempt(0, 3, strict=False) == []
        assert attempt(1, 2, strict=False) == changed("no", 3, "no")
        assert attempt(2, 4, strict=True) == changed("no", 5, "yes")
        assert attempt(3, 2, strict=True) == []
        assert attempt(4, None, strict=False) == changed("yes", 11, "no")
    finally:
        make_deterministic(1)


def test_another_machine_rounds_otherwise(paths: RunPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(torch, "__version__", "2.10.0")
        elsewhere.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "OTHER")
        go(paths, tmp_path / "1", cell(), 9)
    with pytest.raises(GpasError, match=r"^torch: 2.10.0 up to update 9, .* same-code refuses .* Install torch 2.10.0"):
        go(paths, tmp_path / "2", cell(), earlier=[tmp_path / "1"], resources=Resources(resume="same-code"))
    _, recorder = go(paths, tmp_path / "2", cell(), 3, earlier=[tmp_path / "1"])
    *device, version = (event["message"] for event in recorder.of("warning"))
    if not torch.cuda.is_available():
        assert device[0].startswith("the device: CPU with OTHER up to update 9, CPU with ")
    assert version == (
        f"torch: 2.10.0 up to update 9, {torch.__version__} after it, so the result is not bit for bit that of an "
        "uninterrupted run"
    )
    _, recorder = go(paths, tmp_path / "3", cell(), earlier=[tmp_path / "2"])
    assert not recorder.of("warning")


def test_a_checkpoint_without_a_record_of_what_was_usual(paths: RunPaths, tmp_path: Path) -> None:
    go(paths, tmp_path / "1", cell(), 9)
    for path in (tmp_path / "1").glob("watch-*.json"):
        path.unlink()
    outcome, recorder = go(paths, tmp_path / "2", cell(), earlier=[tmp_path / "1"])
    assert outcome.outcome == "done"
    assert "a spike shortly after it is not detected" in recorder.of("warning")[0]["message"]


def test_a_profile_is_written_and_reported(paths: RunPaths, straight: Straight, tmp_path: Path) -> None:
    profiled, recorder = go(paths, tmp_path / "b/checkpoints", cell(), watch=Monitoring(profile=2))
    assert profiled.metrics["loss"] == straight.outcome.metrics["loss"]
    (profile,) = recorder.of("profile")
    assert profile["step"] == 12
    assert Path(profile["trace"]) == tmp_path / "b/profile/trace.json"
    assert "traceEvents" in json.loads(Path(profile["trace"]).read_text())
    assert "aten::mm" in Path(profile["operators"]).read_text()


def test_a_run_too_short_for_a_profile_warns(paths: RunPaths, tmp_path: Path) -> None:
    _, recorder = go(paths, tmp_path / "checkpoints", cell(), 5, watch=Monitoring(profile=3))
    assert recorder.of("profile") == []
    assert "it takes 13 updates" in recorder.of("warning")[0]["message"]


def test_checkpoints_by_time_follow_the_clock(paths: RunPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every reading of the clock is a minute later: one at the start and one after each update and at each save."""
    minutes = iter(range(10**6))
    monkeypatch.setattr(training.time, "monotonic", lambda: 60.0 * next(minutes))
    _, recorder = go(paths, tmp_path / "a", cell(), cadence=replace(CADENCE, checkpoint_every="5min"))
    assert [event["step"] for event in recorder.of("checkpoint")] == [5, 10, STEPS]
    _, recorder = go(paths, tmp_path / "b", cell(), cadence=replace(CADENCE, checkpoint_every="2h"))
    assert [event["step"] for event in recorder.of("checkpoint")] == [STEPS]
    assert all(torch.equal(a, b) for a, b in zip(*(final_tensors(tmp_path / n).values() for n in "ab"), strict=True))


@pytest.mark.usefixtures("saving")
def test_a_disk_full_for_a_while_costs_no_run(paths: RunPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last checkpoint is not lost either: it is written after the evaluation, when the disk has room again."""
    refused = iter(range(-(-STEPS // CADENCE.checkpoint_every)))
    write = checkpoint._write

    def full_for_a_while(file: Path, tensors: dict[str, torch.Tensor]) -> str:
        if next(refused, None) is not None:
            raise OSError(28, "No space left on device")
        return write(file, tensors)

    monkeypatch.setattr(checkpoint, "_write", full_for_a_while)
    outcome, recorder = go(paths, tmp_path, cell())
    assert outcome.outcome == "done"
    assert "No space left" in recorder.of("warning")[0]["message"]
    assert [event["step"] for event in recorder.of("checkpoint")] == [STEPS]
    assert path_of(tmp_path, STEPS).is_dir()


@pytest.mark.usefixtures("saving")
def test_a_run_whose_last_checkpoint_cannot_be_written_is_interrupted_and_ends_in_the_same_bits(
    paths: RunPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its result would have no weights, so that no later stage could run on it."""

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "_write", Mock(side_effect=OSError(28, "No space left on device")))
        outcome, recorder = go(paths, tmp_path / "1", cell())
    assert outcome.outcome == "interrupted"
    assert "No space left" in outcome.cause
    assert recorder.of("checkpoint") == []
    outcome, _ = go(paths, tmp_path / "2", cell(), earlier=[tmp_path / "1"])
    assert outcome.outcome == "done"
    assert path_of(tmp_path / "2", STEPS).is_dir()


def test_a_damaged_newest_checkpoint_is_skipped(paths: RunPaths, tmp_path: Path) -> None:
    go(paths, tmp_path / "1", cell(), stop_at=11)
    newest = path_of(tmp_path / "1", 11) / "00000.safetensors"
    newest.write_bytes(newest.read_bytes()[:-9])
    outcome, recorder = go(paths, tmp_path / "2", cell(), earlier=[tmp_path / "1"])
    assert outcome.outcome == "done"
    assert "it is skipped" in recorder.of("warning")[0]["message"]
    assert next(e["resumed_from"] for e in recorder.of("phase") if "resumed_from" in e) == 10


def test_without_an_intact_checkpoint_training_starts_again(paths: RunPaths, tmp_path: Path) -> None:
    go(paths, tmp_path / "1", cell(), stop_at=11)
    for folder in (tmp_path / "1").glob("step-*"):
        (folder / "00000.safetensors").write_bytes(b"")
    _, recorder = go(paths, tmp_path / "2", cell(), earlier=[tmp_path / "1"])
    assert "starts again at update 0" in recorder.of("warning")[-1]["message"]
    assert next(e["resumed_from"] for e in recorder.of("phase") if "resumed_from" in e) == 0


def test_a_run_is_not_resumed_with_another_text(paths: RunPaths, tmp_path: Path) -> None:
    root = tmp_path / "text"
    shutil.copytree(paths.root, root, ignore=shutil.ignore_patterns("cache"))
    own = replace(paths, root=root, cache=root / "cache")
    go(own, tmp_path / "1", cell(), stop_at=3)
    kept = (root / "00.txt").read_text()
    (root / "00.txt").write_text(f"{kept} more")
    with pytest.raises(GpasError, match=r"step-00000003 was trained on another text.*move .* away to start again"):
        go(own, tmp_path / "2", cell(), earlier=[tmp_path / "1"])
    (root / "00.txt").write_text(kept)
    outcome, _ = go(own, tmp_path / "3", cell(), earlier=[tmp_path / "1"])
    assert outcome.outcome == "done"


def test_predefined_gates_start_from_the_teacher_and_stay(paths: RunPaths, straight: Straight, tmp_path: Path) -> None:
    trained = final_tensors(straight.folder)
    pupil = cell(gate={"learnable": False, "from_trained": True})
    go(paths, tmp_path / "pupil", pupil, teacher=path_of(straight.folder, STEPS))
    kept = final_tensors(tmp_path / "pupil")
    gates = [name for name in trained if name.startswith("network/") and name.endswith("alpha")]
    assert len(gates) == LAYERS
    assert all(torch.equal(kept[name], trained[name]) and trained[name] != 0 for name in gates)

"""Several processes produce the same bytes as one, whatever is killed, and exit with their owner."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from small_corpus import sentences, write_jsonl

from gpas_cli.data import encode
from gpas_cli.data.files import Files
from gpas_cli.data.shards import TokenCache, Totals
from gpas_cli.errors import DataError

Make = Callable[..., TokenCache]


def everything(totals: Totals) -> bool:
    return False


def content(folder: Path) -> dict[str, bytes]:
    """Return the files by name, without those a killed writer left unfinished, which are swept after a day."""
    files = (p for p in sorted(folder.rglob("*")) if p.is_file() and p.name != "made_by.json" and p.name[0] != ".")
    return {str(p.relative_to(folder)): p.read_bytes() for p in files}


def build(cache: TokenCache, number: int) -> TokenCache:
    for split in ("train", "validation"):
        cache.ensure(split, everything, lambda message: None, workers=number)
    return cache


@pytest.fixture(autouse=True)
def _small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encode, "_GROUP_CHARACTERS", 300)


@pytest.mark.parametrize("limit", [None, 12])
def test_two_processes_write_the_same_shards_as_one(make_cache: Make, limit: int | None):
    one, two = build(make_cache(limit, "one"), 1), build(make_cache(limit, "two"), 2)
    assert content(two.folder) == content(one.folder)


def test_progress_counts_existing_shards(make_cache: Make):
    seen: list[Totals] = []
    shards = make_cache().ensure("train", everything, lambda message: None, workers=2, progress=seen.append)
    documents = [totals.documents for totals in seen]
    assert documents[0] == 0
    assert documents == sorted(documents)
    assert documents[-1] == sum(shard.totals.documents for shard in shards)
    assert len(set(documents)) > len(shards)  # updates are finer than shards


def test_growing_with_workers_continues_where_one_process_stopped(make_cache: Make):
    cache = make_cache()
    cache.ensure("train", lambda t: t.documents >= 25, lambda message: None)
    build(cache, 2)
    assert content(cache.folder) == content(build(make_cache(folder="fresh"), 1).folder)


def test_a_worker_that_is_killed_is_replaced(make_cache: Make):
    cache = make_cache()
    killed = list[int]()

    def watch(totals: Totals) -> None:
        pids = [child.pid for child in multiprocessing.active_children() if child.pid not in killed]
        if totals.documents and pids and len(killed) < 3:
            os.kill(pids[0], signal.SIGKILL)
            killed.append(pids[0])

    cache.ensure("train", everything, lambda message: None, workers=2, progress=watch)
    assert len(set(killed)) == 3
    build(cache, 1)
    assert content(cache.folder) == content(build(make_cache(folder="fresh"), 1).folder)


def deadly(record: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_group_that_kills_its_workers_is_given_up(make_cache: Make, tokenizer, source: Files):
    with pytest.raises(
        DataError,
        match=r"processes were killed 3 times while tokenising the documents from 'a\.jsonl:\d+' on.*--workers",
    ):
        list(encode.encode_in_workers(tokenizer, deadly, None, 2, encode.groups(source.records("train"))))


def test_an_error_is_raised_in_order_and_leaves_no_process(root: Path, make_cache: Make):
    lines = (root / "corpus" / "b.jsonl").read_text().splitlines()
    lines[30] = '{"text": 7}'
    cache = make_cache()
    (root / "corpus" / "b.jsonl").write_text("\n".join(lines) + "\n")
    with pytest.raises(DataError, match=r"b\.jsonl:31: the field 'text' is not text but 7"):
        cache.ensure("train", everything, lambda message: None, workers=2)
    assert len(list((cache.folder / "train").glob("*.json"))) >= 8  # the shards before the error were written
    assert not multiprocessing.active_children()


BUILDER = """
import sys
from pathlib import Path
from gpas_cli.data import encode
from gpas_cli.data.corpora import cached_survey
from gpas_cli.data.files import Files
from gpas_cli.data.shards import TokenCache
from gpas_cli.data.tokenizer import make_tokenizer

encode._GROUP_CHARACTERS = 2000
root, cache = Path(sys.argv[1]), Path(sys.argv[2])
source = Files("corpus/*.jsonl", "text", root)
survey = cached_survey(source, cache)
tokenizer = make_tokenizer("bpe", 320, source, survey, cache, root=root, notify=lambda message: None)
tokens = TokenCache(source, survey, tokenizer, 12, cache, 50)
for split in ("train", "validation"):
    tokens.ensure(split, lambda totals: False, lambda message: print(message, flush=True), workers=2)
print(tokens.folder.name)
assert "torch" not in sys.modules
"""


def start(root: Path, cache: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(Path(encode.__file__).parents[2])}
    command = [sys.executable, "-c", BUILDER, str(root), str(cache)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def gone(processes: list[psutil.Process]) -> bool:
    _, alive = psutil.wait_procs(processes, timeout=20)
    return not alive


def test_a_killed_command_leaves_whole_shards_and_no_workers_and_is_resumed(root: Path, tmp_path: Path):
    """Two runs are killed at different places while a second command waits; the bytes equal those of one process."""
    write_jsonl(root / "corpus" / "c.jsonl", sentences(1500, seed=5))
    shared = tmp_path / "shared"
    commands = list[subprocess.Popen[str]]()
    try:
        for wanted in (4, 11):
            victim = start(root, shared)
            commands.append(victim)
            while len(list(shared.glob("tokens/*/train/*.json"))) < wanted:
                assert victim.poll() is None, victim.communicate()
                time.sleep(0.005)
            family = psutil.Process(victim.pid).children(recursive=True)
            victim.send_signal(signal.SIGKILL)
            victim.wait()
            assert gone(family)
        kept = {p.name: p.stat().st_ino for p in shared.glob("tokens/*/train/*.bin") if p.with_suffix(".json").exists()}
        commands += [start(root, shared), start(root, shared)]
        ends = [command.communicate(timeout=120) for command in commands[-2:]]
    finally:
        for command in commands:
            command.kill()
            command.communicate()
    assert [error for _, error in ends] == ["", ""]
    (name,) = {output.split()[-1] for output, _ in ends}
    alone = TokenCache(*ingredients(root, tmp_path / "alone"), 12, tmp_path / "alone", 50)
    assert alone.folder.name == name
    build(alone, 1)
    assert content(shared / "tokens" / name) == content(alone.folder)
    now = {p.name: p.stat().st_ino for p in (shared / "tokens" / name / "train").glob("*.bin")}
    assert kept.items() <= now.items()  # the shards that the killed ones had finished were not built again


def ingredients(root: Path, cache: Path):
    from gpas_cli.data.tokenizer import make_tokenizer

    source = Files("corpus/*.jsonl", "text", root)
    survey = source.survey()
    return source, survey, make_tokenizer("bpe", 320, source, survey, cache, root=root, notify=lambda message: None)


def test_a_process_waiting_for_a_builder_continues_once_its_part_exists(make_cache: Make, monkeypatch):
    """The lock is held by a process that never releases it; meanwhile the shards needed appear."""
    import threading

    from gpas_cli.data import disk

    monkeypatch.setattr(disk, "POLL_SECONDS", 0.02)
    cache, other = make_cache(), make_cache(folder="other")
    build(other, 1)
    found: list[int] = []

    said: list[str] = []
    seen: list[Totals] = []

    def wait() -> None:
        found.append(len(cache.ensure("train", lambda t: t.documents >= 15, said.append, progress=seen.append)))

    with disk.locked(cache.folder / "train"):
        thread = threading.Thread(target=wait)
        thread.start()
        for path in sorted((other.folder / "train").glob("0000[01].*"), key=lambda p: p.suffix == ".json"):
            disk.write(cache.folder / "train" / path.name, path.read_bytes())
        thread.join(timeout=20)
        assert found == [2]
    assert said == ["waiting for another process that is tokenising corpus/*.jsonl train"]
    assert seen[-1].documents == 20  # it saw the other process's progress

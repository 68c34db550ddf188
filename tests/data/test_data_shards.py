"""The token cache: content-addressed, whole or absent, with the same bytes whoever builds it and whatever is killed."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import psutil
import pytest
import wide_tokenizer
from small_corpus import sentences, write_jsonl

from gpas_cli.data import disk, encode, shards
from gpas_cli.data.corpora import Document
from gpas_cli.data.files import Files
from gpas_cli.data.rows import open_rows
from gpas_cli.data.shards import TokenCache, Totals, read_shard
from gpas_cli.data.tokenizer import Tokenizer, make_tokenizer
from gpas_cli.errors import DataError

Make = Callable[..., TokenCache]
WIDE = Tokenizer(wide_tokenizer.backend(), wide_tokenizer.VOCAB, origin="test")


def everything(totals: Totals) -> bool:
    return False


def build(cache: TokenCache, number: int = 1) -> TokenCache:
    cache.ensure("train", everything, lambda message: None, workers=number)
    cache.ensure("validation", everything, lambda message: None)
    return cache


def content(folder: Path, unfinished: bool = True) -> dict[str, bytes]:
    """Return the files by name, with or without those a killed writer left unfinished, which are swept after a day."""
    files = (p for p in sorted(folder.rglob("*")) if p.is_file() and p.name not in (".lock", "made_by.json"))
    return {str(p.relative_to(folder)): p.read_bytes() for p in files if unfinished or p.name[0] != "."}


def test_shards_hold_every_document_in_order(make_cache: Make, source: Files):
    cache = make_cache()
    for split in ("train", "validation"):
        found = cache.ensure(split, everything, print)
        documents = list(source.documents(split))
        ids = [i for s in found for i in s.tokens.tolist()]
        assert ids == [i for d in documents for i in [*cache.tokenizer.encode(d.text), 1]]
        lengths = [n for s in found for n in s.lengths.tolist()]
        assert lengths == [len(cache.tokenizer.encode(d.text)) + 1 for d in documents]
        assert [s.totals.final for s in found] == [False] * (len(found) - 1) + [True]
        total = sum((s.totals for s in found), Totals())
        assert total.bytes == sum(len(d.text.encode()) for d in documents)
        assert (total.documents, total.tokens) == (len(documents), len(ids))


def test_files_are_little_endian_and_named_by_their_spec(make_cache: Make):
    cache = build(make_cache())
    spec = json.loads((cache.folder / "spec.json").read_text())
    assert cache.folder.name == f"files-{disk.digest(spec)}"
    marker = json.loads((cache.folder / "train" / "00000.json").read_text())
    raw = (cache.folder / "train" / "00000.bin").read_bytes()
    lengths = (cache.folder / "train" / "00000.len").read_bytes()
    assert marker["tokens"] == len(raw) // 2
    assert marker["documents"] == len(lengths) // 4 == 10
    assert int.from_bytes(raw[:2], "little") == cache.ensure("train", everything, print)[0].tokens[0]
    assert str(cache.cache) not in json.dumps(spec)


@pytest.mark.parametrize("vocab", [2**16, 2**16 + 1, wide_tokenizer.VOCAB])
def test_ids_take_four_bytes_where_two_do_not_hold_the_vocabulary(make_cache: Make, vocab: int):
    """The tokenizer of the last one has ids above 65,536."""
    made = make_cache()
    backend = wide_tokenizer.backend() if vocab == wide_tokenizer.VOCAB else made.tokenizer.backend
    cache = build(replace(made, tokenizer=Tokenizer(backend, vocab, origin="test")))
    size = 2 if vocab == 2**16 else 4
    for split in ("train", "validation"):
        found = cache.ensure(split, everything, print)
        ids = [i for shard in found for i in shard.tokens.tolist()]
        assert ids == [i for d in cache.source.documents(split) for i in [*cache.tokenizer.encode(d.text), 1]]
        rows = open_rows(found, "pack", 8, pad_id=0)
        assert rows.tokens(np.arange(2)).tolist() == [ids[:9], ids[8:17]]
        assert {(shard.tokens.dtype, shard.lengths.dtype) for shard in found} == {
            (np.dtype(f"<u{size}"), np.dtype("<u4"))
        }
        assert isinstance(found[0].tokens, np.memmap)
    stem = cache.folder / "train" / "00000"
    marker = json.loads(stem.with_suffix(".json").read_text())
    assert stem.with_suffix(".bin").stat().st_size == size * marker["tokens"]
    assert marker.get("id_bytes") == (4 if size == 4 else None)


def test_several_processes_write_ids_of_four_bytes(make_cache: Make):
    one, two = (replace(make_cache(folder=name), tokenizer=WIDE) for name in ("one", "two"))
    two.ensure("train", everything, print, workers=2)
    assert content(build(two).folder) == content(build(one).folder)


def test_ids_of_another_width_are_refused(make_cache: Make):
    """As in a folder into which somebody has copied the shards of another one."""
    narrow, wide = build(make_cache()), build(replace(make_cache(), tokenizer=WIDE))
    for file in (narrow.folder / "train").glob("00000.*"):
        (wide.folder / "train" / file.name).write_bytes(file.read_bytes())
    with pytest.raises(DataError, match=r"00000\.json: ids of 2 bytes do not belong to a vocabulary of 70,000; remove"):
        wide.ensure("train", everything, print)
    with pytest.raises(DataError, match="ids of 2 bytes"):
        wide.built("train", everything)
    bad = {cache.vocab: shards.damaged(cache) for cache in shards.list_caches(wide.cache)}
    assert bad == {320: [], 70_000: [wide.folder / "train" / "00000.json"]}


@pytest.mark.parametrize("said", [8, "4", None, [], 2.5])
def test_a_width_that_cannot_be_is_a_damaged_shard(make_cache: Make, said: object):
    cache = build(replace(make_cache(), tokenizer=WIDE))
    path = cache.folder / "train" / "00001.json"
    whole = path.read_bytes()
    path.write_text(json.dumps({**json.loads(whole), "id_bytes": said}))
    assert read_shard(path.with_suffix("")) is None
    assert build(cache).folder
    assert path.read_bytes() == whole


def test_the_key_covers_everything_that_determines_the_bytes(make_cache: Make, tokenizer):
    base = make_cache()
    other_text = replace(base, survey=replace(base.survey, fingerprint="f" * 16))
    smaller = replace(base, tokenizer=type(tokenizer)(tokenizer.backend, 400, origin="test"))
    keys = {c.folder.name for c in (base, other_text, smaller, make_cache(limit=8), make_cache(shard_documents=11))}
    assert len(keys) == 5
    assert make_cache(folder="elsewhere").folder.name == base.folder.name


def test_grouping_for_the_encoder_does_not_show(make_cache: Make, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(encode, "_GROUP_CHARACTERS", 10**6)
    one = build(make_cache(folder="one"))
    monkeypatch.setattr(encode, "_GROUP_CHARACTERS", 1)
    assert content(build(make_cache(folder="two")).folder) == content(one.folder)


def test_building_grows_only_as_far_as_asked(make_cache: Make):
    cache = make_cache()
    some = cache.ensure("train", lambda t: t.documents >= 15, print)
    assert [s.totals.documents for s in some] == [10, 10]
    assert len(list((cache.folder / "train").glob("*.bin"))) == 2
    more = cache.ensure("train", lambda t: t.documents >= 35, print)
    assert len(more) == 4
    again = cache.ensure("train", lambda t: t.documents >= 15, lambda message: pytest.fail(message))
    assert [s.stem for s in again] == [s.stem for s in some]  # shards cached beyond what is needed are ignored
    cache.ensure("train", everything, print)
    assert content(cache.folder / "train") == content(build(make_cache(folder="fresh")).folder / "train")


def shorten(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-2])


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("00001.bin", shorten), ("00001.len", shorten), ("00001.bin", Path.unlink), ("00001.json", Path.unlink),
        ("00001.json", shorten), ("00001.json", lambda path: path.write_text("{}")), ("00000.json", Path.unlink),
    ],
)  # fmt: skip
def test_only_damaged_shards_are_rebuilt(make_cache: Make, name: str, damage: Callable[[Path], object]):
    cache = build(make_cache())
    before = content(cache.folder)
    inodes = {p.name: p.stat().st_ino for p in (cache.folder / "train").glob("*.bin")}
    damage(cache.folder / "train" / name)
    assert read_shard(cache.folder / "train" / name[:5]) is None
    build(cache)
    assert content(cache.folder) == before
    after = {p.name: p.stat().st_ino for p in (cache.folder / "train").glob("*.bin")}
    assert {n for n in after if after[n] != inodes[n]} <= {f"{name[:5]}.bin"}


def test_documents_without_a_token_are_left_out(make_cache: Make, monkeypatch: pytest.MonkeyPatch):
    cache = make_cache()
    texts = ["", "one two", "", "three", ""]
    documents = [Document(str(n), text) for n, text in enumerate(texts)]
    monkeypatch.setattr(Files, "documents", lambda self, split, after="": iter(documents))
    (shard,) = cache.ensure("train", everything, print)
    assert (shard.totals.documents, shard.last) == (2, "4")


def test_an_unwritable_cache_is_reported(make_cache: Make, tmp_path: Path):
    (tmp_path / "blocked").write_text("a file where a folder should be")
    with pytest.raises(DataError, match=r"cannot use .*blocked.*GPAS_CACHE"):
        build(make_cache(folder="blocked"))


def test_a_full_disk_leaves_no_partial_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    disk.write(tmp_path / "x.bin", b"old")
    monkeypatch.setattr(os, "fsync", Mock(side_effect=OSError(28, "No space left on device")))
    with pytest.raises(DataError, match=r"cannot write .*x\.bin: No space left on device"):
        disk.write(tmp_path / "x.bin", b"new")
    assert [p.name for p in tmp_path.iterdir()] == ["x.bin"]
    assert (tmp_path / "x.bin").read_bytes() == b"old"


def test_a_lock_has_one_holder(tmp_path: Path):
    order: list[str] = []

    def second() -> None:
        with disk.locked(tmp_path):
            order.append("second")

    thread = threading.Thread(target=second)
    with disk.locked(tmp_path):
        thread.start()
        time.sleep(0.2)
        order.append("first")
    thread.join(timeout=10)
    assert order == ["first", "second"]


def test_leftovers_of_killed_writers_are_removed_after_a_day(tmp_path: Path):
    old, new = tmp_path / ".tmp-old", tmp_path / ".tmp-new"
    old.write_text("x")
    new.write_text("x")
    os.utime(old, (time.time() - 90_000,) * 2)
    with disk.locked(tmp_path):
        pass
    assert not old.exists()
    assert new.exists()


@pytest.fixture(autouse=True)
def _small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encode, "_GROUP_CHARACTERS", 300)


def test_two_processes_write_the_same_shards_as_one(make_cache: Make):
    one, two = build(make_cache(12, "one")), make_cache(12, "two")
    seen: list[Totals] = []
    shards = two.ensure("train", everything, lambda message: None, workers=2, progress=seen.append)
    assert content(build(two).folder) == content(one.folder)
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


@pytest.mark.long
def test_a_worker_that_is_killed_is_replaced(make_cache: Make):
    cache = make_cache()
    killed = list[int]()

    def watch(totals: Totals) -> None:
        pids = [child.pid for child in multiprocessing.active_children() if child.pid not in killed]
        if totals.documents and pids and len(killed) < 3:
            with suppress(ProcessLookupError):  # the pool ends its other workers when one is killed
                os.kill(pids[0], signal.SIGKILL)
                killed.append(pids[0])

    cache.ensure("train", everything, lambda message: None, workers=2, progress=watch)
    assert len(set(killed)) == 3
    build(cache, 1)
    assert content(cache.folder) == content(build(make_cache(folder="fresh"), 1).folder)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Deadly(str):
    """A text that kills the process that receives it."""

    def __reduce__(self) -> tuple[Callable[[], None], tuple[()]]:
        return die, ()


@pytest.mark.long
def test_a_group_that_kills_its_workers_is_given_up(tokenizer):
    with pytest.raises(
        DataError,
        match=r"processes were killed 3 times while tokenising the documents from 'a\.jsonl:\d+' on.*--workers",
    ):
        list(encode.encode_in_workers(tokenizer, None, 1, iter([[Document("a.jsonl:1", Deadly())]])))


def test_an_error_is_raised_in_order_and_leaves_no_process(root: Path, make_cache: Make):
    lines = (root / "corpus" / "b.jsonl").read_text().splitlines()
    lines[30] = '{"text": 7}'
    cache = make_cache()
    (root / "corpus" / "b.jsonl").write_text("\n".join(lines) + "\n")
    with pytest.raises(DataError, match=r"b\.jsonl:31: the field 'text' is not text but 7"):
        cache.ensure("train", everything, lambda message: None, workers=2)
    assert len(list((cache.folder / "train").glob("*.json"))) >= 5  # the shards before the error were written
    assert not multiprocessing.active_children()


BUILDER = """
import sys, time
from pathlib import Path
from gpas_cli.data import disk, encode, shards
from gpas_cli.data.corpora import cached_survey
from gpas_cli.data.files import Files
from gpas_cli.data.shards import TokenCache
from gpas_cli.data.tokenizer import make_tokenizer

root, cache = map(Path, sys.argv[1:3])
halts, group, limit, shard_documents, workers = map(int, sys.argv[3:])
source = Files("corpus/*.jsonl", "text", root)
survey = cached_survey(source, cache)
tokenizer = make_tokenizer("bpe", 320, source, survey, cache, root=root, notify=lambda message: None)
encode._GROUP_CHARACTERS = group

write = disk.write

def torn(path, content):
    write(path, content)
    if path.name == "00002.bin":
        print("halted", flush=True)
        time.sleep(600)

if halts:
    disk.write = torn
tokens = TokenCache(source, survey, tokenizer, limit or None, cache, shard_documents)
disk.POLL_SECONDS = 0.02

def notify(message):
    if "waiting" in message:
        print(message, flush=True)

print("ready", flush=True)
for split in ("train", "validation"):
    tokens.ensure(split, lambda totals: False, notify, workers=workers)
print(tokens.folder)
assert "torch" not in sys.modules
"""


def start(root: Path, cache: Path, numbers: str = "0 200 0 10 1") -> subprocess.Popen[str]:
    """Start a builder of the cache; `numbers`: whether it halts, characters a group, tokens a row, documents a shard,
    workers."""
    environment = {**os.environ, "PYTHONPATH": str(Path(shards.__file__).parents[2]), "TOKENIZERS_PARALLELISM": "false"}
    command = [sys.executable, "-c", BUILDER, str(root), str(cache), *numbers.split()]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def read_line(process: subprocess.Popen[str]) -> str:
    return process.stdout.readline().strip()


def test_three_builders_of_which_one_is_killed(root: Path, tmp_path: Path, make_cache: Make):
    """The victim holds the lock in the middle of its third shard; the others wait, and continue from there."""
    shared = tmp_path / "shared"
    victim = start(root, shared, "1 200 0 10 1")
    others: list[subprocess.Popen[str]] = []
    try:
        assert [read_line(victim), read_line(victim)] == ["ready", "halted"]
        others = [start(root, shared) for _ in range(2)]
        assert [read_line(p) for p in others] == ["ready"] * 2
        markers = sorted(shared.glob("tokens/*/train/*.json"))
        assert [p.name for p in markers] == ["00000.json", "00001.json"]
        inode = markers[0].stat().st_ino
        waiting = "waiting for another process that is tokenising corpus/*.jsonl train"
        assert [read_line(p) for p in others] == [waiting] * 2
        victim.send_signal(signal.SIGKILL)
        ends = [p.communicate(timeout=60) for p in others]
    finally:
        for process in (victim, *others):
            process.kill()
            process.communicate()
    assert victim.returncode == -signal.SIGKILL
    assert [(p.returncode, err) for p, (_, err) in zip(others, ends, strict=True)] == [(0, "")] * 2
    fresh = build(make_cache(folder="fresh"))
    assert {out.splitlines()[-1] for out, _ in ends} == {str(shared / "tokens" / fresh.folder.name)}
    assert content(shared / "tokens" / fresh.folder.name) == content(fresh.folder)
    assert markers[0].stat().st_ino == inode  # the victim's complete shards were kept
    assert not list(shared.rglob(f"{disk._TEMPORARY_PREFIX}*"))


def gone(processes: list[psutil.Process]) -> bool:
    _, alive = psutil.wait_procs(processes, timeout=20)
    return not alive


def test_a_killed_command_leaves_whole_shards_and_no_workers_and_is_resumed(root: Path, tmp_path: Path):
    """The bytes equal those of one process."""
    write_jsonl(root / "corpus" / "c.jsonl", sentences(1500, seed=5))
    shared = tmp_path / "shared"
    victim = start(root, shared, "0 2000 12 50 2")
    try:
        while len(list(shared.glob("tokens/*/train/*.json"))) < 4:
            assert victim.poll() is None, victim.communicate()
            time.sleep(0.005)
        family = psutil.Process(victim.pid).children(recursive=True)
    finally:
        victim.kill()
        victim.communicate()
    assert gone(family)
    kept = {p.name: p.stat().st_ino for p in shared.glob("tokens/*/train/*.bin") if p.with_suffix(".json").exists()}
    source = Files("corpus/*.jsonl", "text", root)
    survey = source.survey()
    own = make_tokenizer("bpe", 320, source, survey, shared, root=root, notify=lambda message: None)
    resumed, alone = (TokenCache(source, survey, own, 12, cache, 50) for cache in (shared, tmp_path / "alone"))
    assert [path.name for path in shared.glob("tokens/*")] == [resumed.folder.name]
    assert content(build(resumed).folder, unfinished=False) == content(build(alone).folder)
    now = {p.name: p.stat().st_ino for p in (resumed.folder / "train").glob("*.bin")}
    assert kept.items() <= now.items()  # the shards that the killed one had finished were not built again


def test_a_process_waiting_for_a_builder_continues_once_its_part_exists(make_cache: Make, monkeypatch):
    """The lock is held by a process that never releases it; meanwhile the shards needed appear."""
    monkeypatch.setattr(disk, "POLL_SECONDS", 0.02)
    cache, other = make_cache(), make_cache(folder="other")
    build(other, 1)
    found: list[int] = []

    said: list[str] = []
    seen: list[Totals] = []

    waits = threading.Event()

    def notify(message: str) -> None:
        said.append(message)
        waits.set()

    def wait() -> None:
        found.append(len(cache.ensure("train", lambda t: t.documents >= 15, notify, progress=seen.append)))

    with disk.locked(cache.folder / "train"):
        thread = threading.Thread(target=wait)
        thread.start()
        assert waits.wait(timeout=20)  # the shards appear once it waits, or it would find them and not wait
        for path in sorted((other.folder / "train").glob("0000[01].*"), key=lambda p: p.suffix == ".json"):
            disk.write(cache.folder / "train" / path.name, path.read_bytes())
        thread.join(timeout=20)
        assert found == [2]
    assert said == ["waiting for another process that is tokenising corpus/*.jsonl train"]
    assert seen[-1].documents == 20  # it saw the other process's progress

"""`gpas data`: a corpus of the user's own, tokenised by two processes."""

import json
import math
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from cases import file_text
from face import Face
from face import gpas as run

from gpas_cli.cli.commands.data import pace
from gpas_cli.data.prepare import Need
from gpas_cli.data.shards import Totals
from gpas_cli.data.text_usage import requirements
from gpas_cli.spec.data import Data, TextDemand
from gpas_cli.spec.parse_cell import cell_from
from gpas_cli.words import byte_size

EXPERIMENTS = file_text("experiments/own_corpus.yaml")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "text").mkdir()
    (tmp_path / "experiments.yaml").write_text(EXPERIMENTS)
    write(tmp_path, 400)
    return tmp_path


def write(folder: Path, number: int) -> None:
    draw = random.Random(1)
    lines = [" ".join(draw.choices(["gate", "norm", "depth", "scale", "loss"], k=60)) for _ in range(number)]
    (folder / "text/a.jsonl").write_text("".join(json.dumps({"text": line}) + "\n" for line in lines))


def start(folder: Path, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "gpas_cli", "data", *words]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def gpas(folder: Path, *words: str) -> tuple[int, str, str]:
    said = run(folder, "data", *words, expect=None)
    return said.code, said.out, said.err


def test_prepare_then_status(folder: Path) -> None:
    assert "no token cache" in gpas(folder, "status")[1]
    code, out, err = gpas(folder, "prepare", "--workers", "2", "--json")
    assert code == 0, out + err
    document = json.loads(out)
    (corpus,) = document["corpora"]  # two cells, one text
    assert (document["schema"], corpus["source"], corpus["name"]) == (1, "files", "text/*.jsonl")
    assert sum(split["documents"] for split in corpus["splits"].values()) == 400
    assert all(split["final"] for split in corpus["splits"].values())
    stored = (folder / "text/a.jsonl").stat().st_size
    again = json.loads(gpas(folder, "prepare", "--json")[1])
    assert again == document
    said = gpas(folder, "prepare")[1]
    assert f"text/*.jsonl: 1 file, {byte_size(stored)}; 0 of " in said
    sizes = {name: byte_size(split["bytes"]) for name, split in corpus["splits"].items()}
    assert all(f"documents of {size}, " in said for size in sizes.values())
    shown = json.loads(gpas(folder, "status", "--json")[1])
    (cache,) = shown["caches"]
    assert cache["splits"] == corpus["splits"]
    assert {name: cache[name] for name in ("folder", "fingerprint", "tokenizer")} == {
        name: corpus[name] for name in ("folder", "fingerprint", "tokenizer")
    }
    assert (cache["vocab"], cache["max_doc_tokens"]) == (300, None)
    assert cache["bytes_on_disk"] == sum(p.stat().st_size for p in Path(cache["folder"]).rglob("*") if p.is_file())
    assert "files-" in gpas(folder, "status")[1]


def test_a_text_is_called_by_its_name(face: Face, monkeypatch: pytest.MonkeyPatch) -> None:
    (face.folder / "experiments.yaml").write_text(EXPERIMENTS)
    write(face.folder, 400)
    assert "text/*.jsonl is tokenised first, by the first job that reads it" in face("plan", "mine").out
    said = face("data", "prepare", "--workers", "1")
    assert "files" not in said.err.replace("files-", "")
    assert "\ntext/*.jsonl train: 353 documents" in said.out
    assert face("data", "status", "--json").json["caches"][0]["name"] == "own"
    assert " own " in face("data", "status").out
    assert "is tokenised first" not in face("plan", "mine").out


def with_fields(**fields: object) -> Callable[[bytes], bytes]:
    return lambda content: json.dumps(json.loads(content) | fields).encode()


SPEC, SHARD, MARKER = "spec.json", "train/00000.bin", "train/00000.json"


@pytest.mark.parametrize(
    ("file", "damage"),
    [
        (SPEC, lambda content: content.replace(b'"vocab": 300', b'"vocab": 301')),
        (SPEC, lambda content: b"\0" * len(content)),
        *((SPEC, lambda _, text=text: text) for text in (b"[" * 100_000, b'{"source": NaN}', b"{}")),
        (SHARD, lambda content: bytes([content[0] ^ 1]) + content[1:]),
        (SHARD, lambda content: content[:-2]),
        *((MARKER, with_fields(documents=number)) for number in ("1", math.inf)),
        *((MARKER, lambda _, text=text: text) for text in (b"[" * 100_000, b"\0")),
    ],
)
def test_damage_is_reported_and_made_good(folder: Path, file: str, damage: Callable[[bytes], bytes]) -> None:
    assert gpas(folder, "prepare", "--workers", "1")[0] == 0
    (path,) = folder.glob(f"cache/tokens/*/{file}")
    sound = path.read_bytes()
    harmed = damage(sound)
    path.write_bytes(harmed)
    says = f"{path} is missing or damaged" if file == SPEC else f"{path.with_suffix('')} is damaged"
    code, out, err = gpas(folder, "status")
    assert (code, says in out, err) == (0, file == SPEC, "")
    code, out, err = gpas(folder, "check")
    assert (code, says in out, err) == (4, True, "")
    code, out, _ = gpas(folder, "check", "--json")
    listed = json.loads(out)["undescribed" if file == SPEC else "damaged"]
    assert (code, listed) == (4, [str(path.with_suffix(".json"))])
    code, out, _ = gpas(folder, "prepare", "--workers", "1")
    unnoticed = file == SHARD and len(harmed) == len(sound)  # jobs make what is too short again by themselves
    assert (code, f"{says} and is rebuilt" in out) == (0, unnoticed)
    assert path.read_bytes() == sound
    code, out, _ = gpas(folder, "check")
    assert (code, "No damage found (token caches: 1)" in out) == (0, True)


@pytest.mark.long
def test_two_commands_at_once_of_which_one_is_killed(folder: Path) -> None:
    """The second has the whole cache in the end, and no process of the first is left."""
    write(folder, 8_000)
    first = start(folder, "prepare", "--workers", "2")
    family: list[psutil.Process] = []
    deadline = time.monotonic() + 60
    while len(family) < 3 and time.monotonic() < deadline and first.poll() is None:  # two workers and a tracker
        family = psutil.Process(first.pid).children(recursive=True)
        time.sleep(0.01)
    second = start(folder, "prepare", "--workers", "2", "--json")
    first.send_signal(signal.SIGKILL)
    first.communicate()
    out, err = second.communicate(timeout=120)
    assert second.returncode == 0, err
    assert psutil.wait_procs(family, timeout=20)[1] == []
    (corpus,) = json.loads(out)["corpora"]
    assert sum(split["documents"] for split in corpus["splits"].values()) == 8_000


def test_a_mistake_in_the_text_is_one_message(folder: Path) -> None:
    (folder / "text/b.jsonl").write_text('{"txt": "a"}\n')
    code, out, err = gpas(folder, "prepare")
    assert code == 2
    assert "b.jsonl:1: no field 'text' (data.text_field)" in err
    assert "Traceback" not in out + err


def test_each_corpus_is_wanted_once_and_as_much_as_the_greediest_cell_reads() -> None:
    def cell(steps: int, **values: object):
        optim = {"lr": 1e-3, "warmup": 1, "steps": steps, "batch": 8}
        return cell_from({"size": "71m", "optim": optim, **values})

    few = Data(eval_tokens=1000)
    cells = [
        cell(10),
        cell(50, norm="post"),
        cell(20, data={"like": "c4", "eval_tokens": 1000}),
        cell(5, data="quickstart"),
    ]
    first, second = requirements(cells)
    assert first == TextDemand(Data(), 32_000, 400)
    assert second.data.source == "stdlib"
    assert requirements([cells[2]]) == [TextDemand(few, 32_000, 160)]


def test_the_pace_of_tokenising() -> None:
    first, now = Totals(100, 20_000), Totals(300, 60_000)
    assert pace(Need("documents", 1000), first, now, 10.0) == "300 documents, 60,000 tokens, 4,000 tokens/s, 0:35 left"
    assert pace(Need("documents", 1000), first, first, 0.0) == "100 documents, 20,000 tokens"
    assert pace(None, Totals(), Totals(10, 1000), 10.0) == "10 documents, 1,000 tokens, 100 tokens/s"


def test_a_task_with_almost_the_name_of_a_known_one_is_noted(face: Face) -> None:
    (face.folder / "own.jsonl").write_text('{"context": "2 + 2 =", "choices": ["3", "4"], "answer": 1}\n')
    assert "did you mean 'arc_easy'?" in face("data", "import-task", "own.jsonl", "--task", "arc_esy").err
    assert face("data", "import-task", "own.jsonl", "--task", "sums").err == ""

"""Corpora and texts of the hub without a network: files of the same form, and messages when it is unreachable."""

import gzip
import json
import os
import time
from dataclasses import replace
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from cases import cases, file_text
from shipped import EXPERIMENTS
from small_corpus import sentences, write_jsonl

from gpas_cli.data import encode, hub
from gpas_cli.data.corpora import cached_survey, side
from gpas_cli.data.files import Files, read_lines
from gpas_cli.data.hub import C4, HfDataset, HubFiles
from gpas_cli.data.prepare import build, prepare, token_caches
from gpas_cli.data.text_documents import joined, read_text
from gpas_cli.data.text_usage import estimate_usage
from gpas_cli.errors import DataError
from gpas_cli.spec.data import Data
from gpas_cli.spec.downstream import KNOWN_TEXTS

COMMIT = "1588ec454efa1a09f29cd18ddd04fe05fc8653a2"
FILES = {"train": 3, "validation": 1}
REAL = Path(__file__).parents[1] / "real"


@pytest.fixture(autouse=True)
def _own_datasets_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "datasets")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    datasets.disable_progress_bars()


@pytest.fixture
def c4(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the names of the files opened in a hub cache with four files of C4's form, of 30 documents each."""
    folder = tmp_path / "hub" / "snapshots" / COMMIT / "en"
    folder.mkdir(parents=True)
    opened: list[str] = []
    for split, count in FILES.items():
        for number in range(count):
            records = [{"text": t, "timestamp": "2019", "url": "u"} for t in sentences(30, seed=number + count)]
            content = "".join(json.dumps(record) + "\n" for record in records)
            name = f"c4-{split}.{number:05d}-of-{count:05d}.json.gz"
            (folder / name).write_bytes(gzip.compress(content.encode()))

    def download(repo: str, name: str, revision: str, *, kind: str = "dataset") -> Path:
        assert (repo, kind, revision in ("main", COMMIT)) == ("allenai/c4", "dataset", True)
        opened.append(name.split("/")[1])
        return folder.parent / name

    monkeypatch.setattr(hub, "download", download)
    monkeypatch.setattr(C4, "files", FILES)
    return opened


def texts(source, split: str) -> list[str]:
    return [d.text for d in source.documents(split)]


def test_a_separate_validation_split_is_used(tmp_path: Path):
    write_jsonl(tmp_path / "set" / "train.jsonl", ["a", "b", " ", "c"], field="body")
    write_jsonl(tmp_path / "set" / "validation.jsonl", ["d", "e"], field="body")
    source = HfDataset("set", "body", tmp_path)
    assert [d[:2] for d in source.documents("train")] == [("train/0", "a"), ("train/1", "b"), ("train/3", "c")]
    assert [d[:2] for d in source.documents("validation")] == [("validation/0", "d"), ("validation/1", "e")]
    assert list(source.documents("train", after="train/1")) == [("train/3", "c", "")]
    assert source.commit is None
    rows = source._splits["train"]
    rows.info.download_checksums = {f"hf://datasets/owner/name@{COMMIT}/data/train.jsonl": {"num_bytes": 9}}
    assert source.commit == COMMIT


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "jsonl.gz"])
def test_without_one_rows_are_split_by_their_text(tmp_path: Path, kind: str):
    import datasets

    lines = sentences(100)
    path = write_jsonl(tmp_path / "rows.jsonl", lines)
    if kind == "parquet":
        datasets.Dataset.from_dict({"text": lines}).to_parquet(tmp_path / "rows.parquet")
    if kind == "jsonl.gz":
        (tmp_path / "rows.jsonl.gz").write_bytes(gzip.compress(path.read_bytes()))
    source = HfDataset(f"*.{kind}", "text", tmp_path)
    train, validation = list(source.documents("train")), list(source.documents("validation"))
    assert [d.text for d in train] == [text for text in lines if side(text) == "train"]
    assert sorted(d.text for d in train + validation) == sorted(lines)
    assert list(source.documents("train", after=train[10].id)) == train[11:]


def test_a_survey_of_arrow_files_is_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write_jsonl(tmp_path / "rows.jsonl", sentences(100))
    first = cached_survey(HfDataset("rows.jsonl", "text", tmp_path), tmp_path / "cache")
    monkeypatch.setattr(HfDataset, "survey", lambda self: pytest.fail("read again"))
    assert cached_survey(HfDataset("rows.jsonl", "text", tmp_path), tmp_path / "cache") == first


@cases("data/cases.yaml")
def test_an_unloadable_dataset_is_reported(tmp_path: Path, path: str, field: str, message: str):
    (tmp_path / "rows.jsonl").write_text('{"text": "a", "number": 1}\n')
    write_jsonl(tmp_path / "test_only" / "test.jsonl", ["a"])
    with pytest.raises(DataError, match=message):
        HfDataset(path, field, tmp_path).survey()


def test_a_local_file_that_cannot_be_read_is_named(tmp_path: Path):
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n')
    os.mkfifo(tmp_path / "b.jsonl")
    with pytest.raises(DataError, match=r"^data\.path: .*b\.jsonl is not a file that can be read"):
        HfDataset("*.jsonl", "text", tmp_path).survey()


def test_c4_is_read_file_by_file_in_order(c4: list[str], tmp_path: Path):
    source = C4(tmp_path / "cache")
    documents = source.documents("train")
    first = [next(documents) for _ in range(30)]
    assert [d.text for d in first] == sentences(30, seed=3)
    assert first[16].id == "en/c4-train.00000-of-00003.json.gz:17"
    assert c4 == ["c4-validation.00000-of-00001.json.gz", "c4-train.00000-of-00003.json.gz"]
    assert len(list(documents)) == 60
    assert len(texts(source, "validation")) == 30


def test_c4_continues_behind_a_document_without_earlier_files(c4: list[str], tmp_path: Path):
    every = list(C4(tmp_path / "cache").documents("train"))
    c4.clear()
    for position in (35, 59):
        assert list(C4(tmp_path / "cache").documents("train", every[position].id)) == every[position + 1 :]
    assert "c4-train.00000-of-00003.json.gz" not in c4


def test_c4_pins_its_revision_at_first_use(c4: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    survey = C4(tmp_path / "cache").survey()
    assert json.loads((tmp_path / "cache" / "sources" / "c4.json").read_text())["revision"] == COMMIT
    monkeypatch.setattr(hub, "resolve", lambda repo, name: "0" * 40)
    assert C4(tmp_path / "cache").survey() == survey
    assert C4(tmp_path / "other").survey() != survey


@pytest.mark.parametrize(("layout", "tokens"), [("pad", 12), ("pack", 13)])
def test_a_run_on_c4_sees_its_own_rows_whatever_is_cached(c4: list[str], tmp_path: Path, layout, tokens, monkeypatch):
    monkeypatch.setattr("gpas_cli.data.shards.TokenCache.__init__.__defaults__", (16, 10**9))
    data = Data(source="c4", tokenizer="bpe", layout=layout, length=12, eval_tokens=100)
    small = prepare(data, 320, tmp_path / "a", root=tmp_path, rows=10)
    c4.clear()
    large = prepare(data, 320, tmp_path / "a", root=tmp_path, rows=60)
    again = prepare(data, 320, tmp_path / "a", root=tmp_path, rows=10)
    assert len(small.train) == len(again.train) == 10
    assert small.facts().commit == COMMIT
    assert len(large.train) == 60
    assert again.train_totals == small.train_totals
    assert len(small.validation) == len(large.validation)
    first = range(10)
    assert (large.train.tokens(first) == small.train.tokens(first)).all()
    assert small.train.tokens(first).shape == (10, tokens)
    c4.clear()
    prepare(data, 320, tmp_path / "a", root=tmp_path, rows=60)
    assert c4 == []  # a complete cache needs no hub


def test_the_next_file_is_fetched_while_one_is_read(c4: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(hub, "_FETCH_NEXT", 20)
    documents = C4(tmp_path / "cache").documents("train")
    first = [next(documents) for _ in range(20)]
    names = [f"c4-train.0000{n}-of-00003.json.gz" for n in range(2)]
    deadline = time.monotonic() + 10
    while c4[1:] != names and time.monotonic() < deadline:
        time.sleep(0.01)
    assert c4[1:] == names
    monkeypatch.undo()
    assert [d.text for d in first] == sentences(30, seed=3)[:20]


def test_processes_share_the_work_on_c4(c4: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("gpas_cli.data.shards.TokenCache.__init__.__defaults__", (16, 10**9))
    monkeypatch.setattr(encode, "_GROUP_CHARACTERS", 400)
    data = Data(source="c4", tokenizer="bpe", layout="pad", length=12, eval_tokens=100)
    made = []
    for number in (1, 2):
        cache = tmp_path / f"cache{number}"
        (tokens,) = caches = token_caches(data, 320, cache, root=tmp_path, notify=lambda message: None)
        (shards,) = build(caches, data, 70, notify=lambda message: None, workers=number)
        assert 70 <= sum(s.totals.documents for s in shards["train"]) < 90  # grown only as far as needed
        made.append({p.name: p.read_bytes() for p in tokens.folder.glob("train/0*")})
    assert made[0] == made[1]


def test_an_unreachable_hub_is_reported_with_remedies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    import huggingface_hub

    refuse = Mock(side_effect=OSError("We couldn't connect to 'https://huggingface.co'\nand many more lines"))
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", refuse)
    with pytest.raises(DataError) as caught:
        C4(tmp_path).survey()
    said = str(caught.value)
    assert "cannot download en/c4-validation.00000-of-00008.json.gz of allenai/c4 (revision main)" in said
    assert all(words in said for words in ("OSError: We couldn't connect", "HF_HOME", "data.source: files"))
    assert "\n" not in said


def test_a_damaged_file_of_c4_is_named(c4: list[str], tmp_path: Path):
    path = next((tmp_path / "hub").rglob("c4-train.00001*"))
    os.truncate(path, path.stat().st_size - 20)
    with pytest.raises(DataError, match=r"c4-train\.00001-of-00003\.json\.gz: cannot be read"):
        texts(C4(tmp_path / "cache"), "train")


# Files of the hub: records with the fields of DCLM-Baseline, and columns of the three parts of SmolLM's corpus.


def zstd(lines: list[str]) -> bytes:
    """Return the lines as a .zst file of two frames, which a reader must join."""
    import pyarrow

    halves = ("".join(lines[:7]), "".join(lines[7:]))
    return b"".join(bytes(pyarrow.compress(half.encode(), "zstd", asbytes=True)) for half in halves)


def dclm_line(text: str) -> str:
    others = json.loads(file_text("data/dclm.json"))
    return json.dumps({**others, "text": text}) + "\n"


DCLM = "mlfoundations/dclm-baseline-1.0"
SMOLLM = "HuggingFaceTB/smollm-corpus"


@pytest.fixture
def repositories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Make two repositories of the hub, and return what is asked of it: files by name, "list REPOSITORY"."""
    import huggingface_hub
    import pyarrow
    from pyarrow import parquet

    hub_folder = tmp_path / "hub"
    for number, place in enumerate(("02_of_10/local-shard_0", "01_of_10/local-shard_9", "01_of_10/local-shard_0")):
        path = hub_folder / DCLM / f"global-shard_{place}_of_10" / "shard_00000000_processed.jsonl.zst"
        path.parent.mkdir(parents=True)
        path.write_bytes(zstd([dclm_line(text) for text in sentences(30, seed=number)]))
    (hub_folder / DCLM / "README.md").write_text("DCLM-baseline")
    columns = {
        "cosmopedia-v2": {"prompt": ["p"] * 30, "text": sentences(30, seed=7), "token_length": [9] * 30},
        "fineweb-edu-dedup": {"text": sentences(30, seed=8), "metadata": [{"score": 3.2, "dump": "d"}] * 30},
        "python-edu": {"blob_id": ["b"] * 30, "repo_name": ["r"] * 30, "length_bytes": [1] * 30},
    }
    for name, table in columns.items():
        (hub_folder / SMOLLM / name).mkdir(parents=True)
        parquet.write_table(pyarrow.table(table), hub_folder / SMOLLM / name / "train-00000-of-00104.parquet")
    asked: list[str] = []

    def download(repo: str, name: str, revision: str, *, kind: str = "dataset") -> Path:
        assert (revision, kind) == (COMMIT, "dataset")
        asked.append(name)
        return hub_folder / repo / name

    refs = [SimpleNamespace(name=name, target_commit=commit) for name, commit in (("old", "0" * 40), ("main", COMMIT))]

    def files(self: object, repo: str, *, revision: str, repo_type: str) -> list[str]:
        assert (revision, repo_type) == (COMMIT, "dataset")
        asked.append(f"list {repo}")
        found = [path for path in (hub_folder / repo).rglob("*") if path.is_file()]
        return [path.relative_to(hub_folder / repo).as_posix() for path in found]

    monkeypatch.setattr(hub, "download", download)
    monkeypatch.setattr(
        huggingface_hub.HfApi, "list_repo_refs", lambda self, repo, repo_type: SimpleNamespace(branches=refs)
    )
    monkeypatch.setattr(huggingface_hub.HfApi, "list_repo_files", files)
    return asked


def test_files_of_the_hub_are_read_in_the_order_of_their_names(repositories: list[str], tmp_path: Path):
    source = HubFiles(f"{DCLM}:global-shard_*.jsonl.zst", "text", tmp_path / "cache")
    every = sorted(chain(source.documents("train"), source.documents("validation")), key=lambda d: place(d.id))
    assert [d.text for d in every] == sentences(30, seed=2) + sentences(30, seed=1) + sentences(30, seed=0)
    assert every[30].id == "global-shard_01_of_10/local-shard_9_of_10/shard_00000000_processed.jsonl.zst:1"
    train = list(source.documents("train"))
    assert [d.id for d in train] == [d.id for d in every if side(d.text) == "train"]
    for number in (20, 40, len(train) - 1):
        repositories.clear()
        assert list(source.documents("train", train[number].id)) == train[number + 1 :]
        assert min(repositories) == train[number].id.split(":")[0]  # no earlier file


def place(identity: str) -> tuple[str, int]:
    name, _, line = identity.rpartition(":")
    return name, int(line)


def test_parquet_files_of_the_hub(repositories: list[str], tmp_path: Path):
    source = HubFiles(f"{SMOLLM}:cosmopedia-v2/*.parquet", "text", tmp_path / "cache")
    both_splits = [d for split in ("train", "validation") for d in source.documents(split)]
    assert sorted(d.text for d in both_splits) == sorted(sentences(30, seed=7))
    python = HubFiles(f"{SMOLLM}:python-edu/*.parquet", "text", tmp_path / "cache")
    with pytest.raises(
        DataError, match=r"train-00000-of-00104\.parquet: no column 'text' \(data\.text_field\); valid: blob"
    ):
        list(python.documents("train"))


def test_files_of_the_hub_are_pinned_at_first_use(repositories: list[str], tmp_path: Path, monkeypatch):
    path = f"{DCLM}:global-shard_*.jsonl.zst"
    cache = tmp_path / "cache"
    assert HubFiles(path, "text", cache).known(cache) is None
    survey = HubFiles(path, "text", cache).survey()
    assert repositories == [f"list {DCLM}"]
    again = HubFiles(path, "text", cache)
    assert again.known(cache) == again.survey() == survey
    assert len(list(again.documents("train")) + list(again.documents("validation"))) == 90
    assert repositories.count(f"list {DCLM}") == 1
    assert HubFiles(path, "url", cache).survey() != survey
    monkeypatch.setattr(hub, "_listed", lambda repo: ("0" * 40, ["global-shard_1.jsonl.zst"]))
    assert HubFiles(path, "text", tmp_path / "other").survey() != survey


def test_a_run_reads_no_more_files_of_the_hub_than_it_needs(repositories: list[str], tmp_path: Path, monkeypatch):
    monkeypatch.setattr("gpas_cli.data.shards.TokenCache.__init__.__defaults__", (4, 10**9))
    monkeypatch.setattr("gpas_cli.data.tokenizer._TRAINING_BYTES", 500)
    monkeypatch.setattr(encode, "_GROUP_CHARACTERS", 100)
    path = f"{DCLM}:global-shard_*.jsonl.zst"
    data = Data(source="hf-files", path=path, tokenizer="bpe", layout="pack", length=12, eval_tokens=24)
    short = prepare(data, 320, tmp_path / "cache", root=tmp_path, rows=5)
    assert len(short.train) == 5
    assert {name.split("/")[0] for name in repositories[1:]} == {"global-shard_01_of_10"}
    usage = estimate_usage(data, 320, tmp_path / "cache", tmp_path, rows=5)
    assert usage.epochs == 1
    rows = 10_000  # more than there are: the text is repeated, and `gpas plan` warns
    longer = prepare(data, 320, tmp_path / "cache", root=tmp_path, rows=rows)
    assert 5 < len(longer.train) < rows
    assert (longer.train.tokens(range(5)) == short.train.tokens(range(5))).all()
    usage = estimate_usage(data, 320, tmp_path / "cache", tmp_path, rows=rows)
    assert usage.epochs == pytest.approx(rows / len(longer.train))


@cases("data/cases.yaml")
def test_a_glob_of_no_text_on_the_hub_is_refused(repositories: list[str], tmp_path: Path, path: str, message: str):
    with pytest.raises(DataError, match=message):
        HubFiles(path, "text", tmp_path).survey()
    assert not list(tmp_path.glob("sources/hf-files*"))


def test_a_repository_that_cannot_be_listed_is_reported_with_remedies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(
        DataError, match=r"cannot list the files of a/b .*OfflineMode.*gpas data prepare.*data.source: files"
    ):
        HubFiles("a/b:*.parquet", "text", tmp_path).survey()


def test_a_data_set_that_cannot_be_reached_is_reported_at_once_with_a_text_that_is_here(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(hub, "_reachable", lambda: False)
    with pytest.raises(DataError, match=r"cannot load 'a/b:c'.*OfflineMode.*data: quickstart.*data\.source: files"):
        HfDataset("a/b:c", "text", tmp_path).survey()


def test_a_real_zst_file_is_read(tmp_path: Path):
    path = REAL / "dolma" / "test.jsonl.zst"
    assert list(read_lines(path)) == [b'{"message": "this is a test"}']
    source = Files(str(path), "message", tmp_path)
    assert [d.text for d in source.everything()] == ["this is a test"]
    for size in (3, 20, path.stat().st_size - 1):
        (tmp_path / "cut.jsonl.zst").write_bytes(path.read_bytes()[:size])
        with pytest.raises(DataError, match=r"cut\.jsonl\.zst: cannot be read: Truncated"):
            list(read_lines(tmp_path / "cut.jsonl.zst"))


def test_smollm_has_the_published_proportions_of_the_text_that_there_is() -> None:
    """huggingface/smollm, config_smollm1_135M.yaml: 0.7, 0.15, 0.08, 0.06 and 0.01, two of them without text."""
    published = {"fineweb-edu-dedup": 0.7, "cosmopedia-v2": 0.15, "open-web-math": 0.06}
    mixture = EXPERIMENTS.catalogue.corpora["smollm"].mixture
    assert {s.name: s.weight for s in mixture} == {n: round(w / 0.91, 3) for n, w in published.items()}


PAGE = (
    " = Ada Lovelace = \n \n Ada was an English writer , chiefly of notes ( 1 @,@ 500 words ) . \n"
    ' She wrote the " first program " , a well @-@ known one . \n = = Notes = = \n It \'s note G . \n'
)


@pytest.fixture
def hub_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with both data sets of the hub, two documents each, loaded as those of the hub are."""
    rows = {
        "wikitext": ("page", [PAGE, "", " = Two = \n"]),
        "lambada_openai": ("text", ["she said yes", "he ran away"]),
    }
    for name, (column, texts) in rows.items():
        known = KNOWN_TEXTS[name]
        folder = tmp_path / name
        folder.mkdir()
        (folder / "test.jsonl").write_text("".join(json.dumps({column: text}) + "\n" for text in texts))
        (folder / "train.jsonl").write_text(json.dumps({column: "not this"}) + "\n")
        files = [{"split": split, "path": f"{split}.jsonl"} for split in ("train", "test")]
        configs = json.dumps([{"config_name": known.configuration, "data_files": files}])
        (folder / "README.md").write_text(f"---\nconfigs: {configs}\n---\n")
        monkeypatch.setitem(KNOWN_TEXTS, name, replace(known, repo=str(folder)))
    return tmp_path


def test_wikitext_is_ordinary_text_with_the_words_of_the_tokenised_one(hub_texts: Path) -> None:
    found = read_text("wikitext", hub_texts)
    first, second = found.documents
    assert first.text == joined(PAGE)
    assert (first.context, first.words, first.size) == ("", len(PAGE.split()), len(PAGE))
    assert second.words == 3
    assert len(found.digest) == 12
    assert read_text("wikitext", hub_texts, limit=1).documents == (first,)
    assert read_text("wikitext", hub_texts, limit=1).digest != found.digest


def test_joined() -> None:
    assert joined(PAGE) == (
        " = Ada Lovelace =\n\nAda was an English writer, chiefly of notes (1,500 words).\n"
        'She wrote the "first program", a well-known one.\n== Notes ==\nIt\'s note G.\n'
    )


def test_of_lambada_only_the_last_word_is_predicted(hub_texts: Path) -> None:
    first, second = read_text("lambada_openai", hub_texts).documents
    assert (first.context, first.text, first.words) == ("she said", " yes", 1)
    assert (second.context, second.text) == ("he ran", " away")


def test_local_files_are_read_whole_and_in_order(tmp_path: Path) -> None:
    (tmp_path / "b.jsonl").write_text("".join(json.dumps({"text": f"line {i}"}) + "\n" for i in range(12)))
    (tmp_path / "a.txt").write_text("first of all\n" * 3)
    found = read_text("own=*.*", tmp_path)
    assert [one.text.strip() for one in found.documents][-12:] == [f"line {i}" for i in range(12)]
    assert found.documents[0].text.startswith("first of all")
    assert {one.words for one in found.documents[-12:]} == {2}
    (tmp_path / "a.txt").write_text("other\n")
    assert read_text("own=*.*", tmp_path).digest != found.digest


def test_what_cannot_be_read_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match=r"texts\.texts.*absent"):
        read_text("absent/*.txt", tmp_path)
    (tmp_path / "empty.txt").write_text("  \n")
    with pytest.raises(DataError, match="has no document with text"):
        read_text("./empty.txt", tmp_path)

    unreachable = Mock(side_effect=ConnectionError("Couldn't reach the Hub\nmore"))
    monkeypatch.setattr("datasets.load_dataset", unreachable)
    with pytest.raises(
        DataError, match=r"EleutherAI/lambada_openai .*ConnectionError: Couldn't reach the Hub; it is not"
    ):
        read_text("lambada_openai", tmp_path)

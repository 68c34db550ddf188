"""A small corpus on disk, and token caches of it."""

from pathlib import Path

import pytest
from small_corpus import sentences, write_jsonl

from gpas_cli.data import corpora
from gpas_cli.data.corpora import cached_survey
from gpas_cli.data.files import Files
from gpas_cli.data.shards import TokenCache
from gpas_cli.data.tokenizer import Tokenizer, make_tokenizer


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait less after a file has been written: the times of a file on this machine are exact to ten milliseconds."""
    monkeypatch.setattr(corpora, "_FINE_TICK", 0.011)


def write_corpus(folder: Path) -> Files:
    """Write 120 documents to corpus/a.jsonl and corpus/b.jsonl of a project."""
    write_jsonl(folder / "corpus" / "a.jsonl", sentences(80))
    write_jsonl(folder / "corpus" / "b.jsonl", sentences(40, seed=1))
    return Files("corpus/*.jsonl", "text", folder)


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """Return the text of `source` in a folder of all tests, which only read it."""
    return write_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="session")
def tokenizer(corpus: Files, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    cache = tmp_path_factory.mktemp("tokenizer")
    return make_tokenizer("bpe", 320, corpus, cached_survey(corpus, cache), cache, root=corpus.root, notify=print)


@pytest.fixture
def source(tmp_path: Path) -> Files:
    return write_corpus(tmp_path / "project")


@pytest.fixture
def root(source: Files) -> Path:
    """Return the project folder of `source`."""
    return source.root


@pytest.fixture
def make_cache(source: Files, tokenizer: Tokenizer, tmp_path: Path):
    """Return `make_cache(limit=None, folder="cache", shard_documents=10)` -> TokenCache, ten documents a shard."""

    def make(limit: int | None = None, folder: str = "cache", shard_documents: int = 10) -> TokenCache:
        return TokenCache(source, source.survey(), tokenizer, limit, tmp_path / folder, shard_documents)

    return make

"""A small corpus on disk, and token caches of it."""

from pathlib import Path

import pytest
from small_corpus import sentences, write_jsonl

from gpas_cli.data.corpora import cached_survey
from gpas_cli.data.files import Files
from gpas_cli.data.shards import TokenCache
from gpas_cli.data.tokenizer import Tokenizer, make_tokenizer


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a project folder with 120 documents in corpus/a.jsonl and corpus/b.jsonl."""
    folder = tmp_path / "project"
    write_jsonl(folder / "corpus" / "a.jsonl", sentences(80))
    write_jsonl(folder / "corpus" / "b.jsonl", sentences(40, seed=1))
    return folder


@pytest.fixture
def source(root: Path) -> Files:
    return Files("corpus/*.jsonl", "text", root)


@pytest.fixture
def tokenizer(source: Files, tmp_path: Path) -> Tokenizer:
    survey = cached_survey(source, tmp_path / "cache")
    return make_tokenizer("bpe", 320, source, survey, tmp_path / "cache", root=source.root, notify=print)


@pytest.fixture
def make_cache(source: Files, tokenizer: Tokenizer, tmp_path: Path):
    """Return `make_cache(limit=None, folder="cache", shard_documents=10)` -> TokenCache, ten documents a shard."""

    def make(limit: int | None = None, folder: str = "cache", shard_documents: int = 10) -> TokenCache:
        return TokenCache(source, source.survey(), tokenizer, limit, tmp_path / folder, shard_documents)

    return make

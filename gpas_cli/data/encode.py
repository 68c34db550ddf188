"""Encode groups of documents to ids, in this process or in several. Ids do not depend on the grouping.

Groups are encoded in worker processes and yielded in order, so that the shards do not depend on the number of workers.
Workers that are killed are replaced, and their groups are encoded again; if this process is killed, they exit too.
"""

from __future__ import annotations

import os
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from multiprocessing import get_context, parent_process
from threading import Thread
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpas_cli.data.corpora import Document
from gpas_cli.data.tokenizer import Tokenizer, id_bytes
from gpas_cli.errors import DataError
from gpas_cli.structure import Frozen

Ids = NDArray[np.unsignedinteger[Any]]
ID_TYPES: dict[int, np.dtype[Any]] = {size: np.dtype(f"<u{size}") for size in (2, 4)}  # by bytes of an id
# Documents are encoded in groups of about this many characters; the tokenizer uses several threads for a group.
_GROUP_CHARACTERS = 1_000_000
_GROUPS_PER_WORKER = 4  # that may be encoded before the one that is next in order: bounds the memory
_MOST_DEATHS = 3  # of workers while no group is finished

_Group = list[Document]


def id_type(vocab: int) -> np.dtype[Any]:
    """Return the type of the ids of a vocabulary, in memory and on disk."""
    return ID_TYPES[id_bytes(vocab)]


class EncodedGroup(Frozen):
    """The documents of a group, encoded.

    A document without a token to predict has length 0, without even an end token, and no bytes.
    """

    names: Sequence[str]  # of the documents
    faults: Sequence[str]  # why each document has no text, else ""
    ids: Ids  # of all documents, concatenated
    lengths: NDArray[np.int64]  # the number of tokens of each document
    sizes: NDArray[np.int64]  # the UTF-8 bytes that the tokens of each document stand for
    wholes: NDArray[np.int64]  # the UTF-8 bytes of each document's whole text


def encode_group(documents: _Group, tokenizer: Tokenizer, limit: int | None) -> EncodedGroup:
    """Encode the documents."""
    encoded = tokenizer.encode_documents([document.text for document in documents], limit)
    wholes = [len(document.text.encode("utf-8", "surrogatepass")) for document in documents]
    numbers = np.array(
        [(len(one.ids), one.size, whole) for one, whole in zip(encoded, wholes, strict=True)], np.int64
    ).reshape(-1, 3)
    kept = numbers[:, 0] > 1  # more than the end token: there is something to predict
    numbers[~kept] = 0
    kind = id_type(tokenizer.vocab)
    ids = [np.array(one.ids, kind) for one, keep in zip(encoded, kept, strict=True) if keep]
    joined = np.concatenate([*ids, np.zeros(0, kind)])
    names, faults = [document.id for document in documents], [document.fault for document in documents]
    return EncodedGroup(names, faults, joined, *numbers.T)


def groups(documents: Iterable[Document]) -> Iterator[_Group]:
    """Yield the documents in lists of about _GROUP_CHARACTERS characters."""
    group: _Group = []
    size = 0
    for document in documents:
        group.append(document)
        size += len(document.text)
        if size >= _GROUP_CHARACTERS:
            yield group
            group = []
            size = 0
    if group:
        yield group


def encode_in_workers(
    tokenizer: Tokenizer, limit: int | None, workers: int, groups: Iterator[_Group]
) -> Iterator[EncodedGroup]:
    """Encode groups in `workers` processes as `encode_group` does, and yield the results in order.

    Raises DataError if workers are killed again and again.
    """
    settings = {"vocab": tokenizer.vocab, "origin": tokenizer.origin, "local": tokenizer.local, "eos": tokenizer.eos_id}
    encoder = (tokenizer.backend.to_str(), settings, limit)
    unfinished: deque[_Group] = deque()
    deaths = 0
    while True:
        pool = ProcessPoolExecutor(workers, get_context("spawn"), _start_worker, encoder)
        try:
            for encoded in _in_order(pool, groups, unfinished, _GROUPS_PER_WORKER * workers):
                deaths = 0
                yield encoded
            return
        except BrokenProcessPool as error:
            deaths += 1
            if deaths == _MOST_DEATHS:
                raise DataError(
                    f"processes were killed {deaths} times while tokenising the documents from '{unfinished[0][0].id}' "
                    "on; if memory is short, use fewer --workers"
                ) from error
        finally:
            pool.shutdown(cancel_futures=True)


def _in_order(
    pool: ProcessPoolExecutor, groups: Iterator[_Group], unfinished: deque[_Group], most: int
) -> Iterator[EncodedGroup]:
    """Yield the results of `unfinished`, to which up to `most` groups are added, and from which they are removed."""
    answers: deque[Future[EncodedGroup]] = deque(pool.submit(_encode_here, group) for group in unfinished)
    while True:
        while len(unfinished) < most and (group := next(groups, None)) is not None:
            unfinished.append(group)
            answers.append(pool.submit(_encode_here, group))
        if not answers:
            return
        encoded = answers.popleft().result()
        unfinished.popleft()
        yield encoded


_encoder: Callable[[_Group], EncodedGroup]  # of a worker process


def _start_worker(definition: str, settings: dict[str, Any], limit: int | None) -> None:
    from tokenizers import Tokenizer as Backend

    global _encoder
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C signals every process of a terminal; the main one handles it
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # so does a scheduler's warning
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    Thread(target=_exit_with_parent, daemon=True).start()
    tokenizer = Tokenizer(Backend.from_str(definition), **settings)
    _encoder = partial(encode_group, tokenizer=tokenizer, limit=limit)


def _exit_with_parent() -> None:
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _encode_here(group: _Group) -> EncodedGroup:
    try:
        return _encoder(group)
    except DataError:
        raise
    except Exception as error:  # `tokenizers` raises plain Exception
        what = f"cannot tokenise the documents starting with '{group[0].id}'"
        raise DataError(f"{what}: {type(error).__name__}: {error}") from None

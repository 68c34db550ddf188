"""Corpora from the Hugging Face hub: any `datasets` data set, or file by file. Libraries are imported on first use.

Training does not use `datasets` streaming: the order that a seed gives has changed between releases, and a shuffled
stream cannot be resumed exactly. Documents are read once, in stored order, into the token cache.
"""

from __future__ import annotations

import fnmatch
import glob
import os
import re
import socket
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cached_property, partial
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar
from unittest.mock import patch
from urllib.parse import urlsplit
from urllib.request import getproxies

from gpas_cli.data import disk
from gpas_cli.data.corpora import SPLITS, Document, Source, Survey, SurveyUnknown, file_stamp
from gpas_cli.data.files import check_file, check_suffix, documents_of
from gpas_cli.errors import DataError, first_line, nearest

# The document of a file at which the download of the next one starts, late enough that a short run needs one file.
_FETCH_NEXT = 100_000
_CONNECT_SECONDS = 3.0
_OWN_TEXT = "use a text that is here: data: quickstart, or data.source: files with data.tokenizer: bpe"
_KINDS = {".parquet": "parquet", ".json": "json", ".jsonl": "json", ".csv": "csv"}


class HfDataset(Source):
    """`name`, `name:configuration`, a local folder, or a glob of local .json, .jsonl, .parquet or .csv files.

    Its own `validation` split is the validation text; if it has none, a hash splits the documents of `train`.
    Ids are such as `train/17`: row 17, counted from 0.
    """

    name = "hf"

    def __init__(self, path: str, text_field: str, root: Path):
        self.path = path
        self.text_field = text_field
        self.root = root
        self.by_text = True

    def documents(self, split: str, after: str = "") -> Iterator[Document]:
        if "validation" in self._splits:
            return self._rows(split, after)
        return (d for d in self._rows("train", after) if self.side(d) == split)

    @property
    def commit(self) -> str | None:
        addresses = (address for rows in self._splits.values() for address in rows.info.download_checksums or ())
        found = (re.search(r"@([0-9a-f]{40})/", address) for address in addresses)
        return next((match[1] for match in found if match), None)

    def stamp(self) -> Any:
        """Return facts of the Arrow files in the cache of `datasets`, which it rewrites when their source changes."""
        files = [Path(f["filename"]) for split in self._splits.values() for f in split.cache_files]
        if not files or any(not split.cache_files for split in self._splits.values()):
            return None
        facts = {"field": self.text_field, "splits": sorted(self._splits), "files": file_stamp(files)}
        return {**facts, "malformed": "skip"} if self.skip else facts

    def known(self, cache: Path) -> Survey | None:
        """Raise SurveyUnknown: it cannot be known without opening (and possibly downloading) the data set."""
        raise SurveyUnknown

    def _rows(self, split: str, after: str) -> Iterator[Document]:
        start = int(after.rpartition("/")[2]) + 1 if after else 0
        rows = self._splits[split].select_columns([self.text_field]).skip(start)
        for batch in rows.iter(batch_size=1000):
            for text in batch[self.text_field]:
                identity = f"{split}/{start}"
                start += 1
                if text is None and not self.skip:
                    raise DataError(f"{self.path}, {identity}: the column '{self.text_field}' is not text but null")
                if text is None or text.strip():
                    yield Document(identity, text or "", "null" if text is None else "")

    @cached_property
    def _splits(self) -> dict[str, Any]:
        """The splits in use: `train`, and `validation` if the data set has one. Raises DataError."""
        try:
            loaded = self._load()
        except DataError:
            raise
        except Exception as error:
            # A data set may run any builder, which may raise any exception.
            raise DataError(
                f"data.source: {self.name}: cannot load '{self.path}': {type(error).__name__}: {first_line(error)}; "
                f"check data.path (name, name:configuration, a folder or a glob of files below {self.root}), "
                f"or {_OWN_TEXT}"
            ) from error
        if "train" not in loaded:
            raise DataError(
                f"data.source: {self.name}: '{self.path}' has no split 'train'; it has {', '.join(map(str, loaded))}"
            )
        splits = {name: loaded[name] for name in SPLITS if name in loaded}
        self.separate = "validation" in splits
        for rows in splits.values():
            self._check_field(rows)
        return splits

    def _load(self) -> Any:
        import datasets

        here = self.root / Path(self.path).expanduser()
        if here.is_dir():
            return datasets.load_dataset(str(here))
        if kind := _KINDS.get(Path(self.path.removesuffix(".gz")).suffix):
            files = sorted(glob.glob(str(here), recursive=True))  # noqa: PTH207
            if not files:
                raise DataError(f"data.path: no file matches '{self.path}' in {self.root}")
            for file in files:
                check_file(Path(file), "data.path: ")
            return datasets.load_dataset(kind, data_files=files)
        name, _, configuration = self.path.partition(":")
        with offline_if_unreachable():
            return datasets.load_dataset(name, configuration or None)

    def _check_field(self, rows: Any) -> None:
        if self.text_field not in rows.column_names:
            hint = nearest(self.text_field, rows.column_names)
            raise DataError(f"data.text_field: '{self.path}' has no column '{self.text_field}'; {hint}")
        kind = getattr(rows.features[self.text_field], "dtype", "")
        if kind not in ("string", "large_string"):
            raise DataError(f"data.text_field: column '{self.text_field}' of '{self.path}' is not text but {kind}")


class _Repository(Source):
    """A repository of the hub whose files are downloaded one at a time, as far as a run reads, into the hub's own cache
    (HF_HOME).

    The revision is pinned in the token cache at first use, so that all jobs of a project read the same text, and later
    jobs need no network.
    """

    endless = True

    def __init__(self, repo: str, text_field: str, pin: Path):
        self.repo = repo
        self.text_field = text_field
        self.pin = pin

    def documents(self, split: str, after: str = "") -> Iterator[Document]:
        """Yield documents with ids such as `en/c4-train.00000-of-01024.json.gz:17`: file and line or row."""
        self.by_text = "split" in self._pinned  # not pinned by a version in which ids decided
        last_file = after.rpartition(":")[0]
        names = [name for name in self._names(split) if name >= last_file]
        for name, following in zip(names, [*names[1:], ""], strict=True):
            passed = name != last_file
            path = download(self.repo, name, self.revision)
            for number, document in enumerate(documents_of(name, path, self.text_field, skip=self.skip), start=1):
                if number == _FETCH_NEXT and following:
                    fetch = partial(_fetch, self.repo, following, self.revision)
                    Thread(target=fetch, daemon=True, name="gpas-fetch").start()
                if passed and (self.separate or self.side(document) == split):
                    yield document
                passed = passed or document.id == after

    def survey(self) -> Survey:
        """Return fingerprints of the revision, which determines the bytes of every file of the repository."""
        whole, validation = (disk.digest([self.repo, self.revision, self._chosen, split]) for split in SPLITS)
        return Survey(whole, validation, commit=self.revision)

    def known(self, cache: Path) -> Survey | None:
        """Return the survey if the revision has been pinned, else None."""
        return self.survey() if disk.read_json(self.pin) is not None else None

    @property
    def revision(self) -> str:
        """The commit that the corpus is read at."""
        return str(self._pinned["revision"])

    @cached_property
    def _pinned(self) -> dict[str, Any]:
        if (known := disk.read_json(self.pin)) is None:
            with disk.locked(self.pin.parent):
                if (known := disk.read_json(self.pin)) is None:
                    known = {"repository": self.repo, **self._newest()}
                    disk.write_json(self.pin, known)
        return known

    @property
    @abstractmethod
    def _chosen(self) -> Any:
        """What is read of the repository, as JSON data."""

    @abstractmethod
    def _newest(self) -> dict[str, Any]:
        """Return what is pinned: the `revision`, now. Raises DataError if the hub cannot be reached."""

    @abstractmethod
    def _names(self, split: str) -> list[str]:
        """Return the files that have documents of `split`, sorted."""


def _fetch(repo: str, name: str, revision: str) -> None:
    """Download a file that will be read soon. A failure is reported when the file is read."""
    with suppress(DataError):
        download(repo, name, revision)


class C4(_Repository):
    """allenai/c4, English. 1024 training and 8 validation files of about 356,000 and 46,000 documents."""

    name = "c4"
    separate = True
    files: ClassVar[dict[str, int]] = {"train": 1024, "validation": 8}

    def __init__(self, cache: Path):
        super().__init__("allenai/c4", "text", cache / "sources" / "c4.json")

    @property
    def _chosen(self) -> Any:
        return self.files

    def _newest(self) -> dict[str, Any]:
        return {"revision": resolve(self.repo, self._names("validation")[0])}

    def _names(self, split: str) -> list[str]:
        count = self.files[split]
        return [f"en/c4-{split}.{number:05d}-of-{count:05d}.json.gz" for number in range(count)]


class HubFiles(_Repository):
    """The .jsonl, .jsonl.gz, .jsonl.zst or .parquet files of a repository that a glob matches, sorted by name.

    `path` is "OWNER/NAME:GLOB"; as in the hub's `allow_patterns`, * matches / too. A hash splits the documents.
    The names of the files are pinned together with the revision.
    """

    name = "hf-files"

    def __init__(self, path: str, text_field: str, cache: Path):
        repo, _, self.pattern = path.partition(":")
        super().__init__(repo, text_field, cache / "sources" / f"{self.name}-{disk.digest(path)}.json")

    @property
    def title(self) -> str:
        return f"{self.repo}:{self.pattern}"

    @property
    def _chosen(self) -> Any:
        return [self.pattern, self.text_field, *self._pinned.get("split", ()), *["skip"] * self.skip]

    def _newest(self) -> dict[str, Any]:
        revision, every = _listed(self.repo)
        names = sorted(fnmatch.filter(every, self.pattern))
        if not names:
            folders = {name.partition("/")[0] for name in every}
            hint = nearest(self.pattern.partition("/")[0], sorted(folders))
            raise DataError(f"data.path: no file of {self.repo} matches '{self.pattern}'; {hint}")
        for name in names:
            check_suffix(name, "data.path", name)
        return {"revision": revision, "files": names, "split": ["by text"]}

    def _names(self, split: str) -> list[str]:
        return list(self._pinned["files"])


def _listed(repo: str) -> tuple[str, list[str]]:
    """Return the commit of `main` and its files. Raises DataError if the hub is unreachable or has no such data set."""
    from huggingface_hub import HfApi

    try:
        branches = HfApi().list_repo_refs(repo, repo_type="dataset").branches
        (commit,) = (branch.target_commit for branch in branches if branch.name == "main")
        return commit, HfApi().list_repo_files(repo, revision=commit, repo_type="dataset")
    except Exception as error:
        # Network and hub raise many classes of exceptions here; all of them mean that the repository is unavailable.
        raise DataError(
            f"cannot list the files of {repo} on the Hugging Face hub ({type(error).__name__}: {first_line(error)}); "
            "run `gpas data prepare` once where there is a network, as the cache of the project keeps the list and the "
            f"tokens, or {_OWN_TEXT}"
        ) from error


def download(repo: str, name: str, revision: str, *, kind: str = "dataset") -> Path:
    """Return the local copy of a file of a hub repository, downloading it if necessary. Raises DataError."""
    from huggingface_hub import hf_hub_download

    try:
        return Path(hf_hub_download(repo, name, revision=revision, repo_type=kind))
    except Exception as error:
        # Network, hub and disk raise many classes of exceptions here; all of them mean that the file is unavailable.
        what = f"cannot download {name} of {repo} (revision {revision[:12]}) from the Hugging Face hub"
        raise DataError(unavailable(what, error, _OWN_TEXT)) from error


def load_rows(what: str, instead: str, **where: Any) -> Any:
    """Return the rows of a data set of the hub or its cache; `where`: arguments of `datasets.load_dataset`.

    what, instead: of the message (`unavailable`) of the DataError if it cannot be loaded.
    """
    import datasets

    try:
        with offline_if_unreachable():
            return datasets.load_dataset(**where)
    except Exception as error:
        # Network, hub and builders raise many classes of exceptions; all of them mean that there are no rows.
        raise DataError(unavailable(what, error, instead)) from error


def unavailable(what: str, error: Exception, instead: str = "") -> str:
    """Return the message that something can neither be read from the hub nor from its cache, and what helps.

    what: what cannot be read, as the beginning of a sentence. instead: what else the user may do.
    """
    way_out = f", or {instead}" if instead else ""
    offline = type(error).__name__ == "LocalEntryNotFoundError"  # as of `offline_if_unreachable`
    reason = "the hub cannot be reached" if offline else f"{type(error).__name__}: {first_line(error)}"
    return (
        f"{what}: {reason}; it is not in the local hub cache either. Connect this machine to the network, or copy a "
        f"hub cache here and set HF_HOME to it{way_out}"
    )


def resolve(repo: str, name: str) -> str:
    """Return the commit of `main`, now or when the local copy was made: the hub cache has a folder named after it."""
    path = download(repo, name, "main")
    return path.parts[path.parts.index("snapshots") + 1]


@contextmanager
def offline_if_unreachable() -> Iterator[None]:
    """Let the hub's libraries use only their cache if the hub cannot be reached: they would retry for minutes."""
    if _reachable():
        yield
        return
    # These modules read the variable HF_HUB_OFFLINE only once, at import.
    import datasets.config
    import huggingface_hub.constants

    with (
        patch.object(huggingface_hub.constants, "HF_HUB_OFFLINE", True),
        patch.object(datasets.config, "HF_HUB_OFFLINE", True),
    ):
        yield


def _reachable() -> bool:
    """Return whether the hub, or the proxy on the way to it, accepts a connection."""
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        return False
    address = urlsplit(os.environ.get("HF_ENDPOINT", "https://huggingface.co"))
    proxy = getproxies().get(address.scheme)
    if proxy:
        address = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
    port = address.port or (443 if address.scheme == "https" else 80)
    try:
        socket.create_connection((address.hostname or "", port), _CONNECT_SECONDS).close()
    except OSError:
        return False
    return True

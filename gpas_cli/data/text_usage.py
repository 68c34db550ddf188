"""How runs use a text: how often they read it, how much is cut off, and how much there is to evaluate on.

`requirements` lists the text that a selection of cells needs tokenised.
"""

from __future__ import annotations

import glob
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import field, replace
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpas_cli.data import disk
from gpas_cli.data.corpora import SPLITS, VALIDATION_PERCENT, Document, Source, SurveyUnknown
from gpas_cli.data.files import Files
from gpas_cli.data.tokenizer import TOKENIZERS, bytes_per_token, id_bytes
from gpas_cli.errors import DataError
from gpas_cli.project import hub_cache
from gpas_cli.spec.cell import Cell, distinct
from gpas_cli.spec.data import ENDLESS, HUB_BYTES, Data, TextDemand
from gpas_cli.spec.downstream import base_name, local_file
from gpas_cli.structure import HIDDEN, Frozen
from gpas_cli.words import byte_size, count

if TYPE_CHECKING:
    from gpas_cli.data.shards import Totals

_SAMPLE_BYTES = 4_000_000  # read for an estimate before a text is tokenised
# A user is warned if a text is read more often, or if a larger fraction of it is cut off.
_EXPECTED_EPOCHS = 1.05
_EXPECTED_CUT = 0.02
_WHOLE_BYTES = {"stdlib": 8_000_000, "languages": 3_000_000}  # of the texts that are not read from the user's files
_ARROW = 1.7  # bytes in the cache of `datasets`, and of text, for a downloaded one (WMT16 1.66)
# Of C4, by the card of allenai/c4: a file of 1,024 and its documents. With address and time they have 2,271 bytes.
_C4_FILE_BYTES, _C4_FILE_DOCUMENTS, _C4_TEXT_BYTES = 318_800_000, 356_317, 2_170


class TextUsage(Frozen):
    """How a run uses its text. `asked`: the validation tokens that the cell asks for."""

    data: Data
    epochs: float  # how often it reads each row
    cut: float | None  # the fraction of the training text's bytes that `layout: pad` cuts off, None if unknown
    targets: int | None  # the validation tokens available to predict, None if unknown
    estimated: bool = False  # computed from file sizes, before the text is tokenised
    most_read: str = ""  # the corpus of a mixture that is read most often, which `epochs` counts; "" without a mixture

    @property
    def asked(self) -> int:
        """The validation tokens that the cell asks for."""
        return self.data.eval_tokens

    def warnings(self) -> list[str]:
        """Return warnings for the user, one sentence each. C4 is cut as in the papers, without a warning."""
        about = "about " if self.estimated else ""
        found = []
        if self.epochs > _EXPECTED_EPOCHS:
            name = f" of {self.most_read}" if self.most_read else ""
            refused = "; without `repeat: true` the run ends with an error" if name and not self.data.repeat else ""
            found.append(f"the training text{name} is read {about}{self.epochs:,.1f} times{refused}")
        if self.cut is not None and self.cut > _EXPECTED_CUT and self.data.source != "c4":
            found.append(
                f"layout: pad cuts off {100 * self.cut:.0f} % of the training text, from documents longer than "
                f"length: {self.data.length}; layout: pack reads all of it"
            )
        if self.targets is not None and not self.estimated and self.targets < self.asked != Data().eval_tokens:
            found.append(
                f"evaluations use {self.targets:,} tokens, the whole validation text; eval_tokens asks for "
                f"{self.asked:,}"
            )
        return found


def text_usage(data: Data, rows: int, totals: Sequence[Mapping[str, Totals]]) -> TextUsage:
    """Return how a run of `rows` rows uses text with these totals of each part's splits."""
    shares = zip(data.parts, data.weights, totals, strict=True)
    parts = [_part_usage(part, rows * weight, own["train"], own["validation"]) for part, weight, own in shares]
    return _together(data, parts)


def _together(data: Data, parts: Sequence[TextUsage]) -> TextUsage:
    """Return how a run uses a text whose parts it uses so."""
    if not data.mixture:
        return parts[0]
    most = max(range(len(parts)), key=lambda number: parts[number].epochs)
    return TextUsage(
        data,
        epochs=parts[most].epochs,
        cut=0.0,
        targets=sum(min(part.asked, part.targets or 0) for part in parts),
        estimated=any(part.estimated for part in parts),
        most_read=data.names[most],
    )


def _part_usage(data: Data, rows: float, train: Totals, validation: Totals) -> TextUsage:
    available = train.rows(data)
    # Some texts are tokenised only as far as the longest run reads; there is more.
    epochs = 1.0 if data.source in ENDLESS and not train.final else rows / max(1, available)
    padded = data.layout == "pad"
    targets = validation.tokens - validation.documents if padded else validation.rows(data) * data.length
    return TextUsage(data, epochs, train.cut if padded else 0.0, targets)


def estimate_usage(
    data: Data, vocab: int, cache: Path, root: Path, rows: int, trained: int | None = None
) -> TextUsage | None:
    """Return `text_usage` from the token cache, or an estimate from file sizes and a sample; None if neither is known.

    rows: of the whole schedule, all of which are tokenised; trained: the rows that the run reads, by default all.

    Builds nothing and reads at most SAMPLE_BYTES of text. Raises DataError if there is no text.
    """
    from gpas_cli.data.prepare import cached, open_sources  # and numpy, which `gpas status` does without
    from gpas_cli.data.shards import sum_of

    with suppress(SurveyUnknown):
        if shards := cached(data, vocab, cache, root=root, rows=rows):
            totals = [{split: sum_of(found) for split, found in own.items()} for own in shards]
            return text_usage(data, trained or rows, totals)
    parts = []
    for part, weight, source in zip(data.parts, data.weights, open_sources(data, cache, root), strict=True):
        if isinstance(source, Files) and (known := _estimate(part, vocab, source, (trained or rows) * weight)):
            parts.append(known)
    return _together(data, parts) if len(parts) == len(data.parts) else None


def _estimate(data: Data, vocab: int, source: Files, rows: float) -> TextUsage | None:
    files = source.files()
    if any(path.suffix in (".gz", ".zst", ".parquet") for named in files.values() for path in named.values()):
        return None
    size, held = (sum(path.stat().st_size for path in files.get(split, {}).values()) for split in SPLITS)
    if not held:
        held = size * VALIDATION_PERCENT // 100
        size -= held
    token = bytes_per_token(vocab)
    row = data.length * token
    targets = max(1, int(held / token))
    if data.layout == "pack":
        return TextUsage(data, rows / max(1.0, size / row), 0.0, targets, estimated=True)
    lengths = [len(document.text.encode("utf-8", "surrogatepass")) for document in _sample(source)]
    if not lengths:
        return None
    kept = sum(min(length, row) for length in lengths) / sum(lengths)
    documents = size * len(lengths) / sum(lengths)
    return TextUsage(data, rows / max(1.0, documents), None, int(targets * kept) or 1, estimated=True)


def _sample(source: Source) -> Iterator[Document]:
    left = _SAMPLE_BYTES
    for document in source.documents("train"):
        yield document
        left -= len(document.text)
        if left < 0:
            return


class MissingText(Frozen):
    """About what a text still adds to the disks: `tokens` of `id_bytes` to the token cache, and `download` bytes
    to the hub's cache. 0 tokens: the size of the text is unknown."""

    name: str
    tokens: float
    download: float
    id_bytes: int = field(default=2, metadata=HIDDEN)


def missing_texts(wanted: Iterable[TextDemand], cache: Path, root: Path) -> list[MissingText]:
    """Return what is not in the token cache of what `wanted` needs, once for each token cache. Reads no text."""
    found: dict[object, MissingText] = {}
    for demand in wanted:
        from gpas_cli.data.prepare import cached, known_caches, open_sources
        from gpas_cli.data.rows import rows_needed  # imports numpy, which a plan without jobs does not need

        data, caches = demand.data, list[Any]()
        with suppress(SurveyUnknown, DataError, OSError):
            if cached(data, demand.vocab, cache, root=root, rows=demand.rows):
                continue
            caches = known_caches(data, demand.vocab, cache, root=root)
        sources, rows = open_sources(data, cache, root), rows_needed(data.weights, demand.rows)
        for name, part, source, needed, own in zip_longest(data.names, data.parts, sources, rows, caches):
            unknown = source.name in ("hf", "hf-pairs") and not caches
            if unknown and any((cache / "tokens").glob(f"{source.name}-{'?' * 16}")):
                continue  # it may be there; that is known once `datasets` has loaded it
            with suppress(DataError, OSError):
                one = _missing(name, part, demand.vocab, needed, own.documents if own else 0, source)
                same = (name, part.tokenizer, part.layout == "pad" and part.length, demand.vocab)
                found[same] = max(one, found.get(same, one), key=lambda missing: missing.tokens)
    return list(found.values())


def _missing(name: str, data: Data, vocab: int, rows: int, there: int, source: Source) -> MissingText:
    """Return what of a text that is no mixture is missing, of which `there` documents are in the cache."""
    repository = "allenai/c4" if data.source == "c4" else data.path.partition(":")[0]
    blobs = (hub_cache() / f"datasets--{repository.replace('/', '--')}" / "blobs").glob("*")
    here = sum(path.stat().st_size for path in blobs)
    if not source.endless:
        whole = HUB_BYTES.get(data.path.partition("/{")[0], 0)
        text = _WHOLE_BYTES.get(data.source, _ARROW * whole) + sum(map(_text_bytes, source.paths()))
        missing = max(0.0, (1 + _ARROW) * (whole - here))
        return MissingText(name, text / bytes_per_token(vocab), missing, id_bytes(vocab))
    # The lengths of C4's documents are about exponentially distributed: of 256 tokens `layout: pad` keeps 200 by this,
    # and 195 were counted. Other texts of the web are taken for C4.
    kept, pad = _C4_TEXT_BYTES / bytes_per_token(vocab), data.layout == "pad"
    kept *= 1 - math.exp(-data.length / kept) if pad else 1
    documents = max(0.0, (rows if pad else rows * data.length / kept) + data.eval_tokens / kept - there)
    download = math.ceil(documents / _C4_FILE_DOCUMENTS) * _C4_FILE_BYTES
    return MissingText(name, kept * documents, max(0.0, download - here), id_bytes(vocab))


def _text_bytes(path: Path) -> int:
    """Return about how many bytes of text a file has."""
    return path.stat().st_size * (3 if path.suffix in (".gz", ".zst", ".parquet") else 1)


def measured_speed(cache: Path) -> float | None:
    """Return how many tokens a second one process made, the median of the token caches in `cache`, None if unknown."""
    made = (disk.read_json(path) or {} for path in (cache / "tokens").glob("*/made_by.json"))
    return statistics.median(speeds) if (speeds := [one["speed"] for one in made if one.get("speed")]) else None


def local_amount(path: str, vocab: int, root: Path) -> tuple[int, float]:
    """Return about how many documents and tokens the files of a text have, or a file of questions, each a document.

    Raises DataError or OSError if there are none.
    """
    paths = Files(path, "text", root).paths()
    documents = len(paths) if paths[0].suffix == ".txt" else marks_in(paths, b"\n")
    return documents, sum(map(_text_bytes, paths)) / bytes_per_token(vocab)


def marks_in(paths: Sequence[Path], mark: bytes) -> int:
    """Return about how often `mark` is in files, at least 1. Reads at most SAMPLE_BYTES. Raises OSError."""
    with paths[0].open("rb") as file:
        sample = file.read(_SAMPLE_BYTES)
    return max(1, round(sum(path.stat().st_size for path in paths) * sample.count(mark) / max(1, len(sample))))


def local_files(data: Data, cache: Path, root: Path) -> Iterator[str]:
    """Yield how much each corpus of `data` that is in files here has: "notes/*.txt: 2 files, 1.2 MB", and how much of
    its validation text is training text, if it was surveyed. Opens none."""
    from gpas_cli.data.prepare import open_sources

    with suppress(DataError, OSError):
        for name, source in zip(data.names, open_sources(data, cache, root), strict=True):
            if paths := source.paths():
                size = byte_size(sum(path.stat().st_size for path in paths))
                overlap = f"; {known.overlap}" if (known := source.known(cache)) and known.overlap else ""
                yield f"{name}: {count(len(paths), 'file')}, {size}{overlap}"


def absent_task(task: str, cache: Path, root: Path) -> str:
    """Return why a task of the project's files cannot be scored, "" if its file is there."""
    if (root / local_file(task)).is_file():
        return ""
    remedy = f"`gpas data import-task FILE --task {base_name(task)}` writes it"
    return f"{local_file(task)} is missing, so the task cannot be scored; {remedy}"


def absent_text(path: str, cache: Path, root: Path) -> str:
    """Return why local texts cannot be scored, "" if a file matches the path or glob."""
    if glob.glob(str(root / Path(path).expanduser()), recursive=True):  # noqa: PTH207
        return ""
    return f"texts.texts: no file matches '{path}', so the text cannot be scored"


def unreadable_reason(data: Data, cache: Path, root: Path) -> str:
    """Return why the text of `data` cannot be read, "" if no reason is found. Opens no file and uses no network."""
    from gpas_cli.data.prepare import open_sources

    try:
        for source in open_sources(data, cache, root):
            source.check()
        if data.tokenizer not in TOKENIZERS and not (path := root / Path(data.tokenizer).expanduser()).is_file():
            return (
                f"data.tokenizer: '{data.tokenizer}' is not one of {', '.join(TOKENIZERS)}, and there is no file {path}"
            )
    except DataError as error:
        return str(error)
    return ""


def requirements(cells: Iterable[Cell]) -> list[TextDemand]:
    """Return the corpora that the cells read, in the order of the cells."""
    found: dict[object, TextDemand] = {}
    for cell in distinct(cells):
        data = cell.data
        vocab = cell.text_vocab
        key = (replace(data, eval_tokens=1), vocab)
        known = found.get(key, TextDemand(data, vocab, 0))
        eval_tokens = max(known.data.eval_tokens, data.eval_tokens)
        rows = max(known.rows, cell.optim.rows)
        found[key] = TextDemand(replace(data, eval_tokens=eval_tokens), vocab, rows)
    return list(found.values())

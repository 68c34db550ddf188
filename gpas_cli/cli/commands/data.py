"""`gpas data`: tokenise text ahead of the jobs that read it, inspect the token caches, and import tasks."""

import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import field, replace
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import track
from rich.text import Text

from gpas_cli.cli.console import console, print_json, say, warn, working
from gpas_cli.cli.options import AsJson, Names, Where
from gpas_cli.cli.selection import entries, experiments, project
from gpas_cli.cli.views.columns import Columns
from gpas_cli.data.corpora import SPLITS, SurveyUnknown
from gpas_cli.data.prepare import Need, build, open_source, token_caches
from gpas_cli.data.shards import CachedCorpus, Totals, damaged, discard_damaged, list_caches, sum_of, undescribed_caches
from gpas_cli.data.text_usage import requirements
from gpas_cli.errors import Exit, GpasError, closest, nearest
from gpas_cli.evaluate.tasks.forms import FORMS
from gpas_cli.evaluate.tasks.local import import_task as import_file
from gpas_cli.plan.texts import Texts
from gpas_cli.processor import usable_cores
from gpas_cli.spec.data import TextDemand
from gpas_cli.structure import FLAT, Document, DocumentJson
from gpas_cli.words import byte_size, count, left_out, stopwatch

app = typer.Typer(help="Prepare, list and check tokenised text; import tasks.", no_args_is_help=True)


class _TotalsJson(Document):
    """How much of a split there is."""

    totals: Totals = field(metadata=FLAT)
    cut: Annotated[float | None, "share of the text that rows of a fixed length cut off, null if unknown"]


class _PreparedCorpusJson(Document):
    """A corpus that has been tokenised."""

    name: Annotated[str, "of a part of a mixture; otherwise the path or the source"]
    source: str
    folder: Path
    fingerprint: str
    tokenizer: str
    splits: Mapping[str, _TotalsJson]
    overlap: Annotated[str, "how many validation documents are training text too, empty if unknown"]


class PreparedJson(DocumentJson):
    """`gpas data prepare --json`."""

    corpora: Sequence[_PreparedCorpusJson]


class _CacheJson(Document):
    """One token cache."""

    name: Annotated[str | None, "of the text under `corpora`, if it is declared there with local files"]
    cache: CachedCorpus = field(metadata=FLAT)
    splits: Mapping[str, _TotalsJson]


class CachesJson(DocumentJson):
    """`gpas data status --json`."""

    cache: Path
    caches: Sequence[_CacheJson]
    undescribed: Annotated[Sequence[Path], "spec.json files that are missing or have changed"]


class ImportedTaskJson(DocumentJson):
    """`gpas data import-task --json`."""

    task: Annotated[str, "the name of the task in experiments.yaml"]
    path: Path
    questions: int


class CheckedCachesJson(DocumentJson):
    """`gpas data check --json`."""

    caches: Annotated[int, "token caches that were read"]
    damaged: Annotated[Sequence[Path], "markers of the shards that have changed"]
    undescribed: Annotated[Sequence[Path], "spec.json files that are missing or have changed"]


@app.command("prepare")
def prepare(
    names: Names = None,
    where: Where = None,
    workers: Annotated[
        int | None, typer.Option("--workers", "-j", min=1, help="Number of processes; by default one per CPU.")
    ] = None,
    split: Annotated[str | None, typer.Option("--split", help="Only train or only validation.")] = None,
    as_json: AsJson = False,
) -> None:
    """Tokenise the text of a grid's cells with all CPUs. Jobs tokenise missing text themselves, but with fewer CPUs.

    Can be killed and run again, or run twice at once: finished shards are kept, and the result is always the same.
    Shards that fail their checksums are rebuilt.

    Example: gpas data prepare table2 --where size=71m --workers 16
    """
    if split is not None and split not in SPLITS:
        raise GpasError(f"--split: unknown split '{split}'; {nearest(split, SPLITS)}")
    # The default action ends no worker and releases no semaphore, of which Python then complains.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    here = project()
    splits = (split,) if split else SPLITS
    chosen = entries(names, where)
    cells = [replace(entry.cell, later=()) for entry in chosen]  # finetuning records are not tokenised beforehand
    texts = Texts(here, cells, entries=chosen)
    if absent := list(dict.fromkeys(filter(None, map(texts.missing, cells)))):
        raise GpasError("\n".join(absent))
    wanted = requirements(cells)
    made: list[_PreparedCorpusJson] = []
    for demand in wanted:
        with working("tokenising") as show:
            made += _prepare(demand, here.cache, here.config.parent, splits, workers or len(usable_cores()), show)
    if as_json:
        print_json(PreparedJson(corpora=made))
        return
    for line in texts.files(cells):
        say(line)
    for one in made:
        for name, part in one.splits.items():
            totals = part.totals
            size = byte_size(totals.bytes)
            words = f"{count(totals.documents, 'document')} of {size}, {count(totals.tokens, 'token')}"
            more = "" if totals.final else ", more in the source"
            skipped = f", {left_out(totals.left_out)}" if totals.left_out else ""
            say(f"{one.name} {name}: {words}{skipped}{more} in {one.folder}")
        if one.overlap and one.source == "hf":  # of files it is said above
            say(f"{one.name}: {one.overlap}")


def _prepare(
    demand: TextDemand, cache: Path, root: Path, splits: Sequence[str], workers: int, show: Callable[[str], None]
) -> list[_PreparedCorpusJson]:
    data = demand.data
    caches = token_caches(data, demand.vocab, cache, root=root, notify=show)
    for tokens in caches:
        tokens.describe()
        for stem in (stem for split in splits for stem in discard_damaged(tokens.folder / split)):
            say(f"{stem} is damaged and is rebuilt", soft_wrap=True)
    began: dict[str, tuple[float, Totals]] = {}

    def watch(split: str, need: Need | None, totals: Totals) -> None:
        since, first = began.setdefault(split, (time.monotonic(), totals))
        show(f"{split}: {pace(need, first, totals, time.monotonic() - since)}")

    shards = build(caches, data, demand.rows, notify=show, splits=splits, workers=workers, watch=watch)
    totals = [{split: sum_of(own[split]) for split in splits} for own in shards]
    return [
        _PreparedCorpusJson(
            name=name, source=part.source, folder=tokens.folder, fingerprint=tokens.survey.fingerprint,
            tokenizer=tokens.tokenizer.identity, splits=_splits_json(own), overlap=tokens.survey.overlap,
        )
        for name, tokens, part, own in zip(data.names, caches, data.parts, totals, strict=True)
    ]  # fmt: skip


def pace(need: Need | None, first: Totals, now: Totals, seconds: float) -> str:
    """Return the totals of a split as text, with the speed since `first`, `seconds` ago, and the time left if known."""
    speed = f", {(now.tokens - first.tokens) / seconds:,.0f} tokens/s" if seconds else ""
    left = ""
    if need and (done := need.of(now) - need.of(first)) > 0:
        left = f", {stopwatch(max(0, need.amount - need.of(now)) * seconds / done)} left"
    return f"{now.documents:,} documents, {now.tokens:,} tokens{speed}{left}"


def _splits_json(splits: Mapping[str, Totals]) -> dict[str, _TotalsJson]:
    return {name: _TotalsJson(totals=totals, cut=totals.cut) for name, totals in splits.items()}


@app.command("status")
def status(as_json: AsJson = False) -> None:
    """List the token caches of the project: text, tokenizer, documents, tokens and size.

    Also shows the fraction of the text that `layout: pad` cuts off. Reads no text and builds nothing.

    Example: gpas data status --json
    """
    here = project()
    found, unknown = list_caches(here.cache), undescribed_caches(here.cache)
    names = _names_of_texts() if found else {}
    for path in () if as_json else unknown:
        say(f"{path} is missing or damaged; see `gpas data check`", soft_wrap=True)
    if as_json:
        caches = [
            _CacheJson(name=names.get(one.fingerprint) or None, cache=one, splits=_splits_json(one.splits))
            for one in found
        ]
        print_json(CachesJson(cache=here.cache, caches=caches, undescribed=unknown))
    elif not found and not unknown:
        say(Text.assemble(f"no token cache in {here.cache}; ", ("gpas data prepare", "bold"), " builds one"))
    elif found:
        say(_table(found, names))


@app.command("check")
def check(as_json: AsJson = False) -> None:
    """Verify the checksums of the token caches. Changes nothing. Exit code 4 if a file is damaged.

    Example: gpas data check
    """
    cache = project().cache
    found, unknown = list_caches(cache), undescribed_caches(cache)
    shown = track(found, "reading", console=console(), transient=True, disable=as_json)
    markers = [marker for one in shown for marker in damaged(one)]
    if as_json:
        print_json(CheckedCachesJson(caches=len(found), damaged=markers, undescribed=unknown))
    else:
        for path in unknown:
            say(f"- {path} is missing or damaged", soft_wrap=True)
        for marker in markers:
            say(f"- {marker.with_suffix('')} is damaged", soft_wrap=True)
        remedy = "`gpas data prepare` with the grids that read them rebuilds them"
        sound = f"No damage found (token caches: {len(found)})."
        say(remedy if markers or unknown else sound)
    if markers or unknown:
        raise typer.Exit(Exit.FAILED)


@app.command("import-task")
def import_task(
    file: Annotated[str, typer.Argument(metavar="FILE", help="JSON lines or a JSON list of documents.")],
    task: Annotated[
        str, typer.Option("--task", "-t", metavar="NAME", help="The task with this format of documents, or a new name.")
    ],
    examples: Annotated[
        str, typer.Option("--examples", metavar="FILE", help="The training split, for the solved examples of shots.")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Add a file of questions to the project, to score networks at them without a network connection.

    Documents have the format of lm-evaluation-harness for the task or, for squad, squadv2, triviaqa,
    tydiqa, drop, coqa and quac, of the authors' files. For a task with a new name, they have a context, choices and
    answer, the index of the right choice from 0. Name the task in experiments.yaml with the digest that this command
    prints.

    Example: gpas data import-task ARC-Easy/test.json --task arc_easy
    """
    root = project().config.parent
    made = import_file(Path(file).expanduser(), task, root, Path(examples).expanduser() if examples else None)
    if task not in FORMS and closest(task, FORMS):
        warn(f"{task} is imported as a new task, without the prompts of a known one; {nearest(task, FORMS)}")
    if as_json:
        print_json(ImportedTaskJson(task=made.name, path=made.path, questions=made.questions))
        return
    where = made.path.relative_to(root)
    say(f"{made.name}: {count(made.questions, 'question')} in {where}", soft_wrap=True)
    say(f"in experiments.yaml: downstream: {{tasks: [{made.name}]}}", soft_wrap=True)


def _names_of_texts() -> dict[str, str]:
    """Return fingerprint -> the name under `corpora` of each text of local files that has been tokenised."""
    here = project()
    found = {}
    for name, data in experiments().catalogue.corpora.items() if here.config.is_file() else ():
        with suppress(SurveyUnknown, GpasError, OSError):
            if data.source == "files" and (
                known := open_source(data, here.cache, here.config.parent).known(here.cache)
            ):
                found[known.fingerprint] = name
    return found


def _table(found: Sequence[CachedCorpus], names: Mapping[str, str]) -> Columns:
    facts_of = ("cache", "text", "tokenizer", "vocabulary", "per document", "split")
    numbers = ("documents", "tokens", "text bytes", "cut off", "complete", "on disk")
    rows: list[tuple[str, ...]] = []
    for one in found:
        text = names.get(one.fingerprint, one.fingerprint[:8])
        facts = [one.folder.name, text, one.tokenizer[:8], f"{one.vocab}", f"{one.max_doc_tokens or 'all'}"]
        size = byte_size(one.bytes_on_disk)
        for split, totals in one.splits.items():
            share = totals.cut  # "?" for a cache that an older version wrote
            cut = "?" if share is None else f"{100 * share:.0f} %" if share else "nothing"
            totals_text = (f"{totals.documents:,}", f"{totals.tokens:,}", byte_size(totals.bytes), cut)
            rows.append((*facts, split, *totals_text, "yes" if totals.final else "grows", size))
            facts = [""] * len(facts)
            size = ""
    return Columns((*facts_of, *numbers), rows, right=frozenset(numbers))

"""The texts of cells to run: their availability, warnings about how the runs will use them, and the jobs that
tokenise them beforehand."""

import pkgutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from itertools import chain
from pathlib import Path

from gpas_cli.data import disk, text_usage
from gpas_cli.data.corpora import SurveyUnknown
from gpas_cli.data.text_usage import TextUsage, estimate_usage, requirements
from gpas_cli.data.tokenizer import MaskToken
from gpas_cli.errors import DataError, GpasError
from gpas_cli.grid.declared import Declared, Entry
from gpas_cli.plan.stage_jobs import StageJob
from gpas_cli.project import Project
from gpas_cli.spec.cell import Cell, LaterStage, distinct
from gpas_cli.spec.cost import parameters
from gpas_cli.spec.data import Data, TextDemand
from gpas_cli.spec.downstream import LocalAmounts, is_local, local_file, local_path
from gpas_cli.spec.finetune import Finetune
from gpas_cli.spec.objective import Masked
from gpas_cli.spec.parse import plain
from gpas_cli.spec.section import Input
from gpas_cli.spec.stage import TOKENISE
from gpas_cli.state.claims import read_claim
from gpas_cli.state.observe import observe
from gpas_cli.state.status import CellStatus, StageStatus
from gpas_cli.state.view import SchedulerView, facts_of
from gpas_cli.structure import Frozen
from gpas_cli.words import grouped, listed


class Texts:
    """The texts and finetuning records of `cells`, looked up in `project`; without one nothing counts as missing.

    `entries`: the declared cells, used to give the position in experiments.yaml in messages.
    `elsewhere`: whether the cells run on other machines, which makes a text missing here only a warning.
    """

    def __init__(
        self, project: Project | None, cells: Iterable[Cell], *, entries: Iterable[Entry] = (), elsewhere: bool = False
    ):
        self._project, self._elsewhere = project, elsewhere
        needed = dict.fromkeys(one for cell in distinct(cells) for one in _read_by(cell) if one.needed)
        missing = _reasons(project, needed) if project else {}
        shown = entries if any(missing.values()) else ()
        declared = {what: entry.declared for entry in shown for what in _read_by(entry.cell)}
        self._reason_of, self._looked_up = cache(self._reason), cache(self._look_up)
        self._amount_of = cache(self._count)
        self._missing = {what: _placed(reason, declared.get(what)) for what, reason in missing.items()}

    def missing(self, cell: Cell) -> str:
        """Return why the cell's text or records cannot be read; "" if they can, or if the cell is none of `cells`."""
        return "" if self._elsewhere else self._reason_of(cell.seedless)

    def _reason(self, seedless: Cell) -> str:
        return next(filter(None, (self._missing.get(what) for what in _read_by(seedless))), "")

    def warnings(self, cells: Iterable[Cell]) -> list[str]:
        """Return the warnings about the texts of these cells, without duplicates."""
        cells = distinct(cells)
        reasons = dict.fromkeys(self._reason_of(cell.seedless) for cell in cells)
        absences = [f"{reason} (on this machine; jobs elsewhere need it)" for reason in reasons if reason]
        found = (self._skipped(cells), _rows_at_zero(cells), self._foreseen(cells))
        networks = {cell.network: parameters(cell) for cell in cells if cell.network}
        unknown = (network.warnings(number) for network, number in networks.items())
        return [*absences, *chain.from_iterable((*found, *unknown))]

    def _skipped(self, cells: Iterable[Cell]) -> Iterator[str]:
        """Yield why jobs will skip some of what the cells' later stages measure."""
        found = dict.fromkeys(one for cell in cells for one in _read_by(cell) if not one.needed)
        if self._project:
            yield from filter(None, _reasons(self._project, found).values())

    def _foreseen(self, cells: Iterable[Cell]) -> Iterator[str]:
        for data, seen in dict.fromkeys((cell.data, self._usage(cell)) for cell in cells):
            for warning in seen.warnings() if seen else []:
                yield f"{data.label}: {warning}"

    def files(self, cells: Iterable[Cell]) -> list[str]:
        """Return how many files and bytes the texts of these cells have, as far as they are files here."""
        here, read = self._project, dict.fromkeys(cell.data for cell in distinct(cells) if cell.network is None)
        found = (text_usage.local_files(data, here.cache, here.config.parent) for data in read if here)
        return list(dict.fromkeys(chain.from_iterable(found)))

    def sized(self, cell: Cell) -> Cell:
        """Return the cell with no more text to evaluate and to finetune on than there is, for its cost."""
        seen = self._usage(cell)
        if seen and seen.targets is not None:
            cell = replace(cell, data=replace(cell.data, eval_tokens=max(1, min(seen.asked, seen.targets))))
        return replace(cell, later=tuple(self._stage_sized(stage, cell.text_vocab) for stage in cell.later))

    def _stage_sized(self, stage: LaterStage, vocab: int) -> LaterStage:
        section = stage.parameters
        if self._project is None or not isinstance(section, Finetune | LocalAmounts):
            return stage
        if isinstance(section, LocalAmounts):
            return replace(stage, parameters=section.with_amounts(partial(self._amount_of, vocab)))
        from gpas_cli.data.records import estimated_amount

        try:
            amount = estimated_amount(section, vocab, self._project.config.parent)
        except (DataError, OSError):
            return stage
        return replace(stage, parameters=section.with_cost_of(*amount)) if amount else stage

    def _count(self, vocab: int, name: str) -> tuple[int, float] | None:
        """Return the documents and tokens of a local task or text, None for others and for what is not here."""
        path = local_file(name) if is_local(name) else local_path(name)
        with suppress(DataError, OSError):
            return text_usage.local_amount(path, vocab, self._project.config.parent) if path and self._project else None
        return None

    def _usage(self, cell: Cell) -> TextUsage | None:
        """Return how the cell uses its text, known or estimated; None if it is neither."""
        if cell.network:
            return None
        return self._looked_up(cell.data, cell.text_vocab, cell.optim.rows, cell.optim.trained_rows)

    def _look_up(self, data: Data, vocab: int, rows: int, trained: int) -> TextUsage | None:
        if self._project is None:
            return None
        with suppress(DataError, OSError):
            return estimate_usage(data, vocab, self._project.cache, self._project.config.parent, rows, trained)
        return None


def require_texts(project: Project, cells: Mapping[str, Cell], entries: Iterable[Entry]) -> None:
    """Raise GpasError if the text of any of `cells` (id -> cell) is missing. The message gives each reason once."""
    texts = Texts(project, cells.values(), entries=entries)
    reasons = grouped((reason, who) for who, cell in cells.items() if (reason := texts.missing(cell)))
    if reasons:
        raise GpasError("\n".join(f"{listed(who, 1)}: {reason}" for reason, who in reasons.items()))


def _reasons(project: Project, inputs: Iterable[Input]) -> dict[Input, str]:
    """Return why each of these cannot be read, "" if it can."""
    root = project.config.parent
    return {one: pkgutil.resolve_name(one.reason)(one.value, project.cache, root) for one in inputs}


def _rows_at_zero(cells: Iterable[Cell]) -> Iterator[str]:
    """Yield a warning for each tokenizer whose last id keeps a row of zeros, although the text may have it."""
    kept = (cell for cell in cells if cell.model.init.zero_last_row and cell.data.uses_last_id)
    for tokenizer, last in dict.fromkeys((cell.data.tokenizer, cell.model.size.vocab - 1) for cell in kept):
        yield (
            f"init.zero_last_row: true keeps id {last} at zero, and tokenizer '{tokenizer}' may emit it: gradients of "
            "rows that begin with that id can overflow; remove the setting or write false"
        )


def _placed(reason: str, declared: Declared | None) -> str:
    """Return `reason`, which begins with the name of a setting, after the position of that setting in the file."""
    setting = reason.partition(":")[0]
    return f"{declared.place(setting.split('.'))}: {reason}" if reason and declared else reason


def _read_by(cell: Cell) -> Iterator[Input]:
    """Yield the cell's text, its tokenizer's mask token and what its later stages read; or the network that it has in
    place of a training, and what is measured of it.

    Fields that do not identify them have their defaults.
    """
    if cell.network:
        yield from cell.network.inputs()
    else:
        yield from cell.start.start_inputs(cell.model) if cell.start else ()
        usual, unread = Data(), ("length", "layout", "documents", "batches", "eval_tokens")
        data = replace(cell.data, **{name: getattr(usual, name) for name in unread})
        yield Input(data, "gpas_cli.data.text_usage:unreadable_reason")
        if isinstance(cell.objective, Masked) and cell.objective.mask_token:
            token = MaskToken(cell.data.tokenizer, cell.objective.mask_token)
            yield Input(token, "gpas_cli.data.tokenizer:absent_reason")
    for stage in cell.later:
        yield from stage.parameters.inputs()


def with_texts(project: Project, jobs: Iterable[StageJob]) -> list[StageJob]:
    """Return `jobs`, preceded by a job for each corpus that they read and that is not tokenised yet. Reads no text.

    A job that depends on another of `jobs` reads the text of that other job.
    """
    jobs = list(jobs)
    keys = {job.key for job in jobs}
    first = [job for job in jobs if keys.isdisjoint(job.before) and not job.cell.network]
    readers = grouped((job.cell.seedless, job) for job in first)
    texts: dict[str, StageJob] = {}
    read: dict[str, str] = {}
    for wanted in requirements(same[0].cell for same in readers.values()):
        reading = [job for same in readers.values() if _serves(wanted, same[0].cell) for job in same]
        if key := _needed_key(project, wanted):
            texts[key] = _job(key, wanted, reading[0])
            read |= {job.key: key for job in reading}
    return [*texts.values(), *(replace(job, text=read.get(job.key, "")) for job in jobs)]


class Awaited(Frozen):
    """A corpus that cells wait for: its name, and the key and status of its job, with the scheduler's report."""

    name: str
    key: str
    status: StageStatus


def awaited(runs: Path, states: Sequence[CellStatus]) -> Iterator[Awaited]:
    """Yield the corpora that queued cells are waiting for, and those that cancelled cells waited for."""
    waiting = [state for state in states if state.claim and state.state in ("queued", "cancelled")]
    keys = dict.fromkeys(key for state in waiting if state.claim for key in state.claim.after)
    alive = SchedulerView(runs)
    trained = {stage.key for state in states for stage in state.entry.cell.stages}
    for key in (key for key in keys if key not in trained):
        facts = facts_of(alive, key)
        if facts.get("stage") == TOKENISE:
            claim = read_claim(runs, key)
            seen = observe(runs, key, alive)
            yield Awaited(str(facts["name"]), key, replace(seen, job=seen.job or alive.job_of(claim)))


def how_far(seen: StageStatus) -> str:
    """Return the state of a tokenising job as a short phrase."""
    share = f" {seen.fraction:.0%}".replace("%", " %") if seen.state == "running" and seen.fraction is not None else ""
    doing = f" ({seen.progress.phase})" if seen.state == "running" and seen.progress else ""
    why = f": {seen.cause}" if seen.cause else ""
    return f"{seen.state}{share}{doing}{why}"


def _serves(wanted: TextDemand, cell: Cell) -> bool:
    """Return whether the cell reads this corpus under this vocabulary."""
    same_text = replace(cell.data, eval_tokens=wanted.data.eval_tokens) == wanted.data
    return same_text and cell.text_vocab == wanted.vocab


def _needed_key(project: Project, wanted: TextDemand) -> str:
    """Return the key of the job that must tokenise the corpus, "" if it is already tokenised."""
    if _is_cached(project, wanted):
        return ""
    generation = 0
    while observe(project.runs, key := _key(project, wanted, generation)).state == "done":
        if _is_cached(project, wanted) is not False:
            return ""
        generation += 1
    return key


def _is_cached(project: Project, wanted: TextDemand) -> bool | None:
    """Return whether the corpus is tokenised; None if unknown without reading the text."""
    from gpas_cli.data.prepare import cached  # and numpy, which `gpas status` does without

    try:
        found = cached(wanted.data, wanted.vocab, project.cache, root=project.config.parent, rows=wanted.rows)
    except SurveyUnknown:
        return None
    except DataError:  # the job reports the error if the text is still missing then, or on its node
        return False
    return found is not None


def _key(project: Project, wanted: TextDemand, generation: int) -> str:
    from gpas_cli.data.prepare import open_sources

    if not any(source.endless for source in open_sources(wanted.data, project.cache, project.config.parent)):
        wanted = replace(wanted, data=replace(wanted.data, eval_tokens=1), rows=0)
    return disk.digest([TOKENISE, plain(wanted), generation])


def _job(key: str, wanted: TextDemand, reader: StageJob) -> StageJob:
    resources = reader.text_resources
    return replace(
        reader, kind=TOKENISE, key=key, parents=(), name=wanted.data.label, axes={}, resources=resources, demand=wanted
    )

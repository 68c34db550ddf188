"""The plan of a `gpas run`: the action for each cell, the jobs to start, and their estimated cost."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from functools import cached_property
from pathlib import Path
from typing import Annotated

from gpas_cli.errors import Exit
from gpas_cli.grid.declared import Entry
from gpas_cli.plan import machine as machines
from gpas_cli.plan.costs import (
    JobMemory,
    SizeCost,
    StageCost,
    Storage,
    by_size,
    by_stage,
    memory_of_jobs,
    overflows,
    size_names,
    storage,
)
from gpas_cli.plan.estimate import Estimate, estimate
from gpas_cli.plan.machine import Cluster, Machine, NamedGpus, ThisMachine
from gpas_cli.plan.stage_jobs import StageJob, chain_keys
from gpas_cli.plan.texts import Texts
from gpas_cli.plan.trunks import jobs_of
from gpas_cli.project import Project
from gpas_cli.spec.model import Size
from gpas_cli.spec.run import Resources
from gpas_cli.spec.stage import PRETRAIN
from gpas_cli.state.attempt import resumable
from gpas_cli.state.claim_set import CLAIMABLE
from gpas_cli.state.observe import cell_statuses, observe_all
from gpas_cli.state.outputs import checkpoint_code
from gpas_cli.state.status import RESULTS, CellStatus, StageStatus
from gpas_cli.store.snapshot import current_code
from gpas_cli.structure import FLAT, Frozen
from gpas_cli.words import count, verb

_ELSEWHERE = (("A100",), ("H100", "H200"), ("B200",))  # with equal peaks
_NODE_GPUS = 8  # that jobs share elsewhere, unless the largest asks for more


class PlanRow(Frozen):
    """One cell of a plan."""

    state: CellStatus
    action: str  # the state of the cell, "new" if it has no attempt, or "invalid" if this machine cannot complete it
    detail: str  # the reason of `action`
    will_run: bool  # whether `gpas run` would start a job for it
    refusals: tuple[str, ...] = ()  # why this machine cannot complete it

    @property
    def entry(self) -> Entry:
        return self.state.entry


class CostElsewhere(Frozen):
    """The cost on GPUs that this machine does not have."""

    gpus: Annotated[tuple[str, ...], "kinds of GPU with the same peak, and so the same estimate"]
    number: Annotated[int, "GPUs that the jobs share"]
    estimate: Estimate = field(metadata=FLAT)


class Plan(Frozen):
    """The actions of `gpas run` for some cells."""

    rows: tuple[PlanRow, ...]
    stages: Mapping[str, int]  # the number of unique stages by state
    uses: int  # how often cells, teachers and trunks refer to them
    jobs: tuple[StageJob, ...]
    """The jobs that a run would start, first those that tokenise, then the stages, parents first."""
    estimate: Estimate
    machine: Machine  # where they would run, or the machine that the estimate is for
    storage: Storage  # what the jobs add to the disks, also those that `machine` has too few GPUs for
    text_warnings: tuple[str, ...] = ()
    text_files: tuple[str, ...] = ()  # how many files and bytes the jobs to start read
    code_warnings: tuple[str, ...] = ()
    startable: bool = True  # whether every job can run on `machine`; `gpas run` starts all jobs or none
    elsewhere: tuple[CostElsewhere, ...] = ()  # of the jobs that ask for more GPUs than this machine has

    @property
    def exit_code(self) -> Exit:
        """The exit code of `gpas run` as far as it is known: USAGE if it refuses the cells, INCOMPLETE if some of them
        will have no result, else DONE."""
        if not self.startable or self.overflows:
            return Exit.USAGE
        return Exit.INCOMPLETE if self.refused else Exit.DONE

    @property
    def overflows(self) -> list[str]:
        """Why what the jobs write certainly does not fit on the disks."""
        return list(overflows(self.storage.uses, "least"))

    @property
    def warnings(self) -> list[str]:
        """Warnings about likely failures and surprises among jobs that can start."""
        sizes = [warning for one in self.memory if (warning := one.warning())]
        room = () if self.overflows else overflows(self.storage.uses, "peak")
        few = _with_one_core(self.jobs) if isinstance(self.machine, Cluster) else ()
        return [*few, *sizes, *room, *self.text_warnings, *self.code_warnings]

    @cached_property
    def memory(self) -> list[JobMemory]:
        """The predicted memory of each GPU of the jobs to start, by size; nothing if the kind of GPU is unknown."""
        return memory_of_jobs(self.jobs, self.machine, self.size_names)

    @property
    def texts(self) -> tuple[StageJob, ...]:
        """The jobs that tokenise; `estimate` does not include them."""
        return tuple(job for job in self.jobs if job.demand)

    @property
    def actions(self) -> Counter[str]:
        return Counter(row.action for row in self.rows)

    @property
    def sizes(self) -> list[SizeCost]:
        """The number of cells and the cost of their jobs, by size of network."""
        return by_size((row.entry.cell for row in self.rows), self.estimate.works, self.size_names)

    @cached_property
    def size_names(self) -> dict[Size, str]:
        """The labels of sizes that are not built in."""
        return size_names(row.entry for row in self.rows)

    @property
    def stage_costs(self) -> list[StageCost]:
        """The jobs to start and their cost, by kind of stage and by what they ask for."""
        return by_stage(self.jobs, self.estimate.works)

    @property
    def refused(self) -> Counter[str]:
        """The number of cells that cannot run here, by their reasons."""
        return Counter(row.detail for row in self.rows if row.action == "invalid")


def plan(
    runs: Path,
    entries: Sequence[Entry],
    *,
    retry: Collection[str] = (),
    machine: Machine | None = None,
    project: Project | None = None,
    prepare: Callable[[Iterable[StageJob]], Sequence[StageJob]] = tuple,
) -> Plan:
    """Return the plan of `gpas run` for these entries, with the same `retry`, on `machine`. Changes nothing.

    `project`: where to look for the texts; None skips that check.
    `prepare` adds the jobs that must run before others (`plan.texts.with_texts`).
    """
    machine = machine or machines.machine()
    alone: list[str] = []
    jobs = jobs_of(runs, entries, alone.append)
    seen = observe_all(runs, jobs)
    wanted = CLAIMABLE | frozenset(retry)
    needed = {key: job for key, job in jobs.items() if seen[key].state in wanted and _possible(job, seen, wanted)}
    # Compute nodes and other machines may have texts that this machine does not have.
    texts = Texts(project, (job.cell for job in needed.values()), entries=entries, elsewhere=not machine.here)
    fitting = {
        key: job
        for key, job in needed.items()
        if not _refusal(machine, job.resources, job.kind) and not texts.missing(job.cell)
    }
    resume = {key: step for key in needed if seen[key].attempt is not None and (step := resumable(runs, key))}
    starts = {key: job.trunk.update for key, job in needed.items() if job.trunk}
    rows = [
        _row(state, fitting, resume, _first_refusal(machine, state.entry, seen), texts)
        for state in cell_statuses(runs, entries, seen=dict(seen))
    ]
    jobs_to_start = prepare(fitting.values())
    too_few = [j for j in needed.values() if isinstance(machine, ThisMachine) and j.resources.gpus > len(machine.gpus)]
    number = max([_NODE_GPUS, *(job.resources.gpus for job in too_few)])
    return Plan(
        rows=tuple(rows),
        stages=Counter(status.state for status in seen.values()),
        uses=sum(len(chain_keys(entry.cell)) for entry in entries) + sum(job.is_trunk for job in jobs.values()),
        jobs=tuple(jobs_to_start),
        estimate=estimate(runs, fitting.values(), machine, starts | resume, texts.sized),
        machine=machine,
        storage=storage(project, [*needed.values()], machine, texts.sized) if project else Storage(),
        startable=len(fitting) == len(needed),
        elsewhere=tuple(
            CostElsewhere(gpus, number, estimate(runs, too_few, NamedGpus(gpus[0], number, None), resume, texts.sized))
            for gpus in _ELSEWHERE * bool(too_few)
        ),
        code_warnings=(*_other_code(runs, [fitting[key] for key in resume if key in fitting]), *alone),
        text_files=tuple(texts.files(job.cell for job in fitting.values())),
        text_warnings=tuple(texts.warnings(job.cell for job in fitting.values())),
    )


def _with_one_core(jobs: Iterable[StageJob]) -> Iterator[str]:
    """Yield a warning for trainings that ask a cluster for one core for each process and for no memory."""
    trainings = ((job.grid, job.resources) for job in jobs if job.kind == PRETRAIN)
    bare = Counter(
        (grid, asked.gpus)
        for grid, asked in trainings
        if asked.cpus_per_task == 1 and not asked.mem and "--mem-per" not in " ".join(asked.sbatch)
    )
    for (grid, gpus), number in bare.items():
        some = max(1, gpus)
        asks = f"{verb(number, 'asks', 'ask')} for {count(gpus, 'GPU') if gpus else 'no GPU'}, {count(some, 'core')}"
        remedy = f"resources: {{gpus: {some}, cpus: {8 * some}, mem: 48G, time: 1-00:00:00}}"
        yield f"{count(number, 'training')} of {grid} {asks} and no memory; write {remedy} into the grid"


def _other_code(runs: Path, resumed: Sequence[StageJob]) -> tuple[str, ...]:
    """Return a warning if jobs would resume from checkpoints of another version of the code."""
    if not resumed:
        return ()
    now = {uses: current_code(uses) for uses in {job.uses for job in resumed}}
    before = {job.id: code for job in resumed if (code := checkpoint_code(runs, job.key)) and code != now[job.uses]}
    if not before:
        return ()
    refused = sum(job.resources.resume == "same-code" for job in resumed if job.id in before)
    end = f"; resume: same-code refuses {refused} of them" if refused else "; their results will come from both"
    cells = count(len(before), "cell")
    made = f"from version {', '.join(sorted(set(before.values())))} to {', '.join(sorted(set(now.values())))}"
    return (f"{cells} would resume after the code has changed ({made}): {next(iter(before))}{end}",)


def _possible(job: StageJob, seen: Mapping[str, StageStatus], wanted: Collection[str]) -> bool:
    """Return whether every prerequisite of the stage has a result or may still get one."""
    return all(seen[parent].state in (*wanted, "done", "running", "queued") for parent in job.before)


def _row(
    state: CellStatus, jobs: Mapping[str, StageJob], resume: Mapping[str, int], refusal: str, texts: Texts
) -> PlanRow:
    mine = [stage.key for stage in state.entry.cell.stages if stage.key in jobs]
    entry = state.entry
    refusals = tuple(filter(None, (refusal, texts.missing(entry.cell))))
    if refusals and state.state not in ("done", "diverged"):
        return PlanRow(state, "invalid", "; ".join(refusals), bool(mine), refusals)
    action = "new" if state.state == "missing" else state.state
    return PlanRow(state, action, _detail(state, mine, resume), bool(mine))


def _refusal(machine: Machine, resources: Resources, kind: str) -> str:
    """Return why a job of this kind can never run on the machine, "" if it can."""
    return machine.check(resources, "the job" if kind == PRETRAIN else f"the job of {kind}")


def _first_refusal(machine: Machine, entry: Entry, seen: Mapping[str, StageStatus]) -> str:
    """Return why the first stage without a result that can never run cannot; "" if there is none."""
    open_stages = (s for s in entry.cell.stages if s.key in seen and seen[s.key].state not in RESULTS)
    return next(filter(None, (_refusal(machine, entry.resources_of(stage), stage.kind) for stage in open_stages)), "")


def _detail(state: CellStatus, mine: Sequence[str], resume: Mapping[str, int]) -> str:
    if mine and mine[0] in resume:
        return f"resumes at step {resume[mine[0]]} of {state.entry.cell.optim.updates}"
    if mine and state.stage != PRETRAIN:
        return f"the stage {state.stage} has no result yet"
    if state.state == "missing":
        return "" if mine else "a prerequisite is unavailable"
    return state.cause or ("" if state.source == "outcome" else state.evidence)

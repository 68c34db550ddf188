"""The records that jobs and schedulers exchange as JSON files: one class for each kind of file.

`rundir.read_record` and `rundir.write_record` read and write them. Times are unix times in seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, fields
from typing import Any, Self

from gpas_cli.spec.cell import Cell
from gpas_cli.spec.data import TextDemand
from gpas_cli.spec.norm import PluginOrigin
from gpas_cli.spec.parse_cell import Catalogue, cell_from
from gpas_cli.spec.plugins import known_schemes, known_stage_kinds, plugin_of
from gpas_cli.spec.run import Cadence, Monitoring, Resources
from gpas_cli.structure import ABSENT, Frozen, Record


class Author(Frozen):
    """The process that started an attempt or made a submission; `id` is its `Submitter.id` or the submission."""

    id: str
    host: str
    pid: int


class Trunk(Frozen):
    """The finished training from whose last checkpoint another one starts: its stage, its updates and its name."""

    key: str
    update: int
    name: str


class StageRecord(Record, kw_only=True):
    """One stage to be run: the part that attempt.json shares with the lines of elements.jsonl."""

    plugin: PluginOrigin | None = field(default=None, metadata=ABSENT)  # defines the cell's scheme
    stage_plugins: tuple[PluginOrigin, ...] = field(default=(), metadata=ABSENT)  # define the cell's stages
    title: str = field(default="", metadata=ABSENT)  # the title of a plugin's stage
    stage: str
    key: str
    parents: tuple[str, ...] = ()
    text: str = field(default="", metadata=ABSENT)
    """The key of the job that tokenises what this one reads, "" if no such job is needed."""
    trunk: Trunk | None = field(default=None, metadata=ABSENT)  # where it starts
    demand: TextDemand | None = field(default=None, metadata=ABSENT)  # what the job that tokenises prepares
    cell: Mapping[str, Any]  # what `Cell.to_mapping` returns; `resolve_cell` revives it
    grid: str
    name: str
    axes: Mapping[str, Any]
    resources: Resources  # never with the values of `spec.run.PRIVATE`, also when a file of an earlier version had them
    cadence: Cadence
    watch: Monitoring = field(default_factory=Monitoring)

    def __post_init__(self) -> None:
        object.__setattr__(self, "resources", self.resources.recorded)

    @classmethod
    def of(cls, stage: StageRecord, **more: Any) -> Self:
        """Return a record of this class about a stage. `more`: what the class has beyond `StageRecord`."""
        own = {one.name: getattr(stage, one.name) for one in fields(StageRecord) if one.name != "unread"}
        return cls(**own, **more)

    def resolve_cell(self) -> Cell:
        """Return the cell. Plugin files that it needs are executed from the text recorded here.

        Raises InvalidExperiments if a scheme or stage is unknown, or the scheme wires the layers otherwise than it did.
        """
        schemes, kinds = known_schemes(), known_stage_kinds()
        for recorded in (self.plugin, *self.stage_plugins):
            if recorded and recorded.source:
                plugin = plugin_of(recorded.name, recorded.source)
                schemes |= plugin.schemes
                kinds |= plugin.stage_kinds
        return cell_from(self.cell, Catalogue(schemes=schemes, stage_kinds=kinds))


class ElementRecord(StageRecord, kw_only=True):
    """One stage of an array element: a line of elements.jsonl is a list of them.

    In the file, `reduce` and `again` are about the first attempt.
    """

    threads: int
    larger: tuple[str, ...] = field(default=(), metadata=ABSENT)  # the resources of which a later attempt asks for more
    reduce: bool | str = field(default=False, metadata=ABSENT)
    """Asks for half the micro-batch of the last attempt, because memory ran out; it may say what shows that."""
    again: str = field(default="", metadata=ABSENT)
    """Why the stage is run once more with the same micro-batch: with more memory or time, or in the same job."""


class Folders(Frozen):
    """The project of a submission: the path of its experiments file, and its cache."""

    config: str
    cache: str


class SubmissionRecord(Record, kw_only=True):
    """submission.json. `time` is just before sbatch; `keys` has the stage keys of each element. `failures`: after how
    many for the same reason the rest is held back."""

    schema: int = 1
    name: str
    time: float
    submitter: Author
    code: str = ""
    git: Mapping[str, Any] = field(default_factory=dict)
    project: Folders
    keys: tuple[tuple[str, ...], ...]
    failures: int = field(default=3, metadata=ABSENT)


class JobRecord(Record, kw_only=True):
    """job.json: the job id that sbatch printed, and when."""

    job: str
    time: float


class Retry(Frozen):
    """Why an attempt was made after attempt number `of` of the same job. `reduced`: its micro-batch was cut down."""

    of: int
    why: str
    reduced: bool = True  # records of older versions have no other retries


class SlurmPlace(Frozen):
    """The array element that made an attempt. `port` is where several tasks meet, None for a single one."""

    submission: str
    index: int
    job: str
    restart: int
    nodes: str
    port: int | None = None


class AttemptRecord(StageRecord, kw_only=True):
    """attempt.json: what to run, which process started it, and with which devices.

    `code` is the version of the code snapshot, `root` the folder that relative data paths start from. The number is
    set as the attempt is created.
    """

    schema: int = 1
    executor: str
    created: float
    code: str = ""
    git: Mapping[str, Any] = field(default_factory=dict)
    submitter: Author
    slurm: SlurmPlace | None = field(default=None, metadata=ABSENT)
    devices: tuple[str, ...]
    cache: str
    root: str
    threads: int
    retry: Retry | None = field(default=None, metadata=ABSENT)
    number: int = 0


class BenchRequest(StageRecord, kw_only=True):
    """What the process that measures a cell reads."""

    threads: int
    seconds: float
    processes: int = 1  # how many share an update in the job
    profile: bool = False  # whether it also profiles updates


class ExitRecord(Record, kw_only=True):
    """exit.json: the exit code of an attempt's process, or the signal that ended it, and when that was seen.

    `node` is the node that could not run the job; `superseded`: another job runs the stage instead.
    """

    code: int | None = None
    signal: int | None = None
    t: float | None = None
    error: str = field(default="", metadata=ABSENT)
    node: str = field(default="", metadata=ABSENT)
    superseded: bool = field(default=False, metadata=ABSENT)


class RankExit(Record, kw_only=True):
    """rankN.json: how the process of rank N ended by itself; `memory` is what shows that memory ran out."""

    code: int | None
    signal: int | None
    memory: str = ""
    node: str = ""
    error: str = ""


class ProcessRecord(Record, kw_only=True):
    """process.json: the process of an attempt. `token` distinguishes it from a later process with the same id."""

    host: str
    pid: int
    token: str = ""


class ProjectRecord(Record, kw_only=True):
    """.project.json in the run directories: the id of their project, and when it was given."""

    id: str
    created: float = 0.0


class CancelRequest(Record, kw_only=True):
    """cancel.json. `signalled`: the process of the attempt has had its signal already."""

    t: float
    signalled: bool | None = field(default=None, metadata=ABSENT)


class RerunRequest(Record, kw_only=True):
    """rerun.json: attempts up to number `after` no longer decide whether the stage has a result."""

    t: float
    after: int


class Forgetting(Record, kw_only=True):
    """forgotten.json in a forgotten attempt: when its result was retired, by which user, and why.

    `others` are the stages that build on this one and were forgotten with it.
    """

    t: float
    user: str
    why: str = ""
    others: tuple[str, ...] = ()


class Imported(Record, kw_only=True):
    """imported.json: the attempt was copied from another project by `user` at `t`.

    `project` is the id of that project, `runs` where its run directories were, `number` the attempt's number there.
    """

    t: float
    user: str
    project: str
    runs: str
    number: int


class SubmitterRecord(Record, kw_only=True):
    """.submitters/ID.json: a process that runs cells. `boot`: the boot id of its kernel, "" if unknown."""

    id: str
    host: str
    pid: int
    time: float
    boot: str = ""


class RankFailure(Record, kw_only=True):
    """failed-N.json in an attempt: why the process of rank N, another than the first, failed."""

    rank: int
    cause: str


class ElementFailure(Record, kw_only=True):
    """failed-N.json in a submission: why element N failed, without the parts that differ between cells."""

    cause: str


class BreakerRecord(Record, kw_only=True):
    """breaker.json: the rest of a submission is held back, because so many `cells` failed for the same `cause`."""

    cause: str
    cells: int
    t: float


class Roster(Record, kw_only=True):
    """roster-*.json: the folders of the attempts whose processes all tasks of a job start; `over`: it is the last."""

    attempts: tuple[str, ...]
    over: bool

"""The scheduler of this machine: `gpas run` starts the jobs as processes and waits for them.

run          one `gpas run`: a queue of stages, free slots, one process per attempt
process      one attempt: its slots, its directory, its process, its exit
benchmark    measure how fast cells train here (`gpas bench`)
"""

from gpas_cli.plan.machine import Machine, machine
from gpas_cli.schedule.scheduler import Run, RunRequest, Scheduler


class LocalScheduler(Scheduler):
    """The scheduler of this machine. A claim counts while the `gpas run` that made it lives."""

    def machine(self) -> Machine:
        return machine()

    def submit(self, request: RunRequest) -> Run:
        from gpas_cli.schedule.local.run import LocalRun  # here, because `gpas status` needs no jobs

        run = LocalRun(request)
        run.submit()
        return run

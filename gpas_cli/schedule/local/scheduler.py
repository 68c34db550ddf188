"""The scheduler of this machine: `gpas run` starts the jobs as processes and waits for them."""

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

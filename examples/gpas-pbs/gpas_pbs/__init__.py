"""Runs the jobs of gpas on PBS: `gpas run grid quickstart --executor pbs`. This file is the head of the extension."""

from gpas_cli.extension import Extension

EXTENSION = Extension(name="pbs", schedulers={"pbs": "gpas_pbs.scheduler:PbsScheduler"})

"""Schedulers: where jobs run, and how they are submitted, followed and cancelled.

scheduler        the protocol, and the choice between schedulers
summary          how a run reports its progress, and how it ended
process          the process of an attempt: its identity, its environment, its libraries, the record of its exit
retry            what follows an attempt that ended without a result
cancel           cancel cells, whichever scheduler or process runs them
local/           slots and processes of this machine
slurm/           job arrays of a SLURM cluster
"""

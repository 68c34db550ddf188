"""Schedulers: where jobs run, and how they are submitted, followed and cancelled.

scheduler        the protocol, and the choice between schedulers
summary          how a run reports its progress, and how it ended
process          the process of an attempt: its identity, its environment, the record of its exit
out_of_memory    half the micro-batch for a stage that ran out of memory
process_cancel   cancel a stage that runs, or will run, as a process
cancel           cancel cells, whichever scheduler runs them
extras           optional libraries that a run needs
local/           slots and processes of this machine
slurm/           job arrays of a SLURM cluster
"""

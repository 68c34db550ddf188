"""Schedulers: where jobs run, and how they are submitted, followed and cancelled.

scheduler        the base class, the choice between schedulers, how a run reports its progress and ends, cancellation
process          the process of an attempt: its identity, its environment, its cancellation, the record of its exit
retry            what follows an attempt that ended without a result
local/           slots and processes of this machine
batch/           what any batch system needs
slurm/           job arrays of a SLURM cluster
"""

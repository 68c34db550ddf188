"""Chaos runs: seeded faults and commands against a toy grid, then a check of the result.

        plan.py       seed -> times and targets of the faults and commands
        project.py    the toy project, its undisturbed reference, and the commands run in it
        processes.py  processes and their lifetimes, sampled from /proc
        witness.py    answers of `gpas status` and squeue, and the files present, during the faults
        faults.py     faults of one machine, and the commands;  slurm_faults.py  faults of a SLURM cluster
        records.py    contents of the run directories at the end
        judge.py      the invariants: observations -> violations, without side effects
        storm.py      one round: inject faults, let everything finish, judge

See `python tools/chaos.py --help` for how to start one.
"""

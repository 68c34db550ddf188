"""A chaos run: faults and commands thrown at a toy grid by a seed, then a judgement of what is left.

    plan.py       the seed -> which faults and commands come when, and what each is to hit
    project.py    the toy project, its undisturbed reference, and the commands given in it
    processes.py  which processes live and when, sampled from /proc
    witness.py    what `gpas status` and squeue said and which files there were, while the faults came
    faults.py     the faults of this machine and the commands;  slurm_faults.py  those of a SLURM cluster
    records.py    what the run directories say when all is over
    judge.py      the invariants: facts -> violations, without any side effect
    storm.py      one round: throw faults, let everything finish, judge

`python tests/chaos.py --help` shows how to start it.
"""

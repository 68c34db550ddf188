"""The scheduler of a SLURM cluster. A submission is one job array; its folder lists what each element runs.

client       run sbatch, squeue, sacct, scontrol, scancel with a time limit; whether they are there, what they report
             about jobs, and what SLURM's job states mean
queue        one cached query for the jobs of all submissions; run directory + claim + queue -> the state of a stage
submission   runs/.slurm/<name>/, recorded before sbatch is called; the name is the array's job name
script       resources -> sbatch text, by submitit
submit       claims -> job arrays -> submissions -> sbatch
scheduler    SlurmScheduler: the protocol; cancellation; `gpas run --wait`
supervisor   the program of an array element, which supervises its attempts and their jobs
allocation   one start of an array element: its attempts, the files that its tasks exchange, its memory
findings     findings of `gpas doctor` about the cluster's configuration and its nodes
probe        the script that runs on a node for it; needs only Python

No job is lost and none runs twice, whichever process dies: the claim of a stage names the submission that may run it,
and an element whose cells another submission has claimed exits without touching them. A command that finds no trace of
a submission in the queue can therefore claim its cells again, even if the old call of sbatch may still take effect.
"""

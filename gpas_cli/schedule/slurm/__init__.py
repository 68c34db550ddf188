"""The scheduler of a SLURM cluster. A submission is one job array; its folder lists what each element runs.

client       run sbatch, squeue, sacct, scontrol, scancel with a time limit
submission   runs/.slurm/<name>/, recorded before sbatch is called; the name is the array's job name
script       resources -> sbatch text, by submitit
arrays       stage jobs -> job arrays
scheduler    SlurmScheduler: the protocol
view         SLURM's report during one look
submit       claims -> submissions -> sbatch
run          `gpas run --wait`: wait, fill the queue, resubmit
parsers      the output of squeue, scontrol and sacct -> jobs
array_task   one array element as SLURM reports it
job_states   the meaning of SLURM's job states
queue        one cached query for the jobs of all submissions
state        run directory + claim + queue -> the state of a stage
supervisor   the program of an array element, which supervises its attempts
allocation   one start of an array element: its attempts, and the files that its tasks exchange
child        the job of one attempt, as its supervisor sees it
retry        classes of failure, and the response to each
memory       evidence that a node ran out of memory
cancel       cancel one stage of an array
choice       whether jobs are submitted to SLURM by default
findings     findings of `gpas doctor` about the cluster's configuration and its nodes
preemption   how long jobs have to save before they are killed
nodes        short jobs that report what compute nodes see
probe        the script of such a job; needs only Python

No job is lost and none runs twice, whichever process dies: the claim of a stage names the submission that may run it,
and an element whose cells another submission has claimed exits without touching them. A command that finds no trace of
a submission in the queue can therefore claim its cells again, even if the old call of sbatch may still take effect.
"""

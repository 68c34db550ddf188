"""SLURM runs the jobs. A submission is one job array; its folder says what each element is to run.

commands     sbatch, squeue, sacct, scontrol, scancel: run, timed, their failures told apart
submission   runs/.slurm/<name>/: what was intended, on disk before sbatch; the name is the array's job name
script       resources -> sbatch text, by submitit
submit       claims -> submissions -> sbatch: the executor
queue        one cached question to the scheduler about all jobs
judge        run directory + claim + queue -> the state of a stage
element      what an array element runs: a supervisor of its cells' attempts
start        one start of an element: the attempts it makes, what its tasks tell each other
child        one job of a supervisor: alive, asked to leave, ended, and how
memory       evidence that memory ran out where a job was killed
nodes        short jobs that ask compute nodes what they see, for `gpas doctor --nodes`
notice       how long jobs have to save, for `gpas doctor`

No job is lost and none is doubled, whoever dies when: a stage's claim names the submission that may run it, and an
element whose cells are claimed by another submission leaves without touching them. So a command that finds no trace
of a submission in the queue claims its cells anew without having to know whether the old sbatch may still arrive.
"""

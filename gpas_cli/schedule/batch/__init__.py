"""What the scheduler of any batch system needs. `slurm/` uses it, and so can a package of your own.

view         BatchView: what a batch system gives; claim + run directory + queue -> the state of a stage; cancellation
submission   runs/.NAME/<submission>/: the stages of one array of jobs, recorded before it is submitted
scheduler    BatchScheduler: claims -> arrays -> submissions -> the batch system; `gpas run --wait`
script       what a job runs before its supervisor: variables, setup, the copy of the code
supervisor   the program of a job, which supervises its attempts and their processes
element      one start of a job: its attempts, the files that its tasks exchange, its memory

A scheduler without arrays has submissions of one element each.

No job is lost and none runs twice, whichever process dies: the claim of a stage names the submission that may run it,
and an element whose cells another submission has claimed exits without touching them. A command that finds no trace of
a submission in the queue can therefore claim its cells again, even if the old call that submits may still take effect.
"""

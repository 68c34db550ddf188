"""Cells that lack a result become jobs. The run directories are the truth; nothing here asks the database.

stages       the jobs that cells need, each once, parents first
text         what of their text is not tokenised yet: a job before them
told         what a stage is called, by whoever was to run it
watch        evidence in the run directories -> the state of each cell
submitters   which `gpas run` processes live, and which stages they claim
claims       taking and giving back claims, so that no stage runs twice
slots        accelerators or cores of this machine, shared by every `gpas run`
snapshot     an immutable copy of the code for the jobs
spawn        one attempt: its directory, its process, how it ended
local        the scheduler of this machine
slurm/       the scheduler of a cluster
executor     the choice between them
plan         what a run would do and cost
cancellation requests to cancel, which stand until a retry
control      cancelling
job          what a job's process runs
tokenise     what that is for a text
"""

"""The status of stages and cells, inferred from the run directories and from the schedulers that hold claims.

status       StageStatus and CellStatus: a state, its evidence and its age
observe      run directories -> the status of each stage and cell
attempt      one attempt -> its status: outcome, exit.json, alive.lock, age
progress     the last events of a journal -> step, loss, ETA
claims       claim.json: which submitter runs a stage next
claim_set    taking and releasing claims, so that no stage runs twice
view         what submitters and schedulers report about claims
schedulers   schedulers by name, built in or from entry points
job_exit     the exit codes of a job
logs         the last lines of logs
submitters   which `gpas run` processes are alive
locks        flock as evidence of a living process
cancellation requests to cancel
rerun        requests to run a stage again that has a result
outputs      the checkpoints of a training stage
usage        the seconds and device hours of an attempt
spent        the hours of a stage: in its result, repeated after interruptions, or without a result
describe     the grid, name and kind of a stage, from its newest attempt or its claim

This package never queries the database, and writes nothing to run directories except claims and requests.
"""

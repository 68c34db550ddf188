"""The status of stages and cells, inferred from the run directories and from the schedulers that hold claims.

status       StageStatus and CellStatus: a state, its evidence, its age; the end of a journal -> step, loss, ETA
observe      run directories -> the status of each stage and cell
attempt      one attempt -> its status: outcome, exit.json, alive.lock, age; exit codes of jobs
claims       claim.json: which submitter runs a stage next, and which submitters are alive
claim_set    taking and releasing claims, so that no stage runs twice
view         what submitters and schedulers report about claims; schedulers by name, built in or from entry points
locks        flock as evidence of a living process
cancellation requests to cancel
rerun        requests to run a stage again that has a result
outputs      the checkpoints of a training stage
cleanup      forgetting results, and deleting checkpoints
merging      copying the results of another project
usage        the seconds and device hours of attempts; a stage's hours in its result, repeated, or without a result

This package never queries the database, and writes nothing to run directories except claims and requests.
"""

"""What commands print: text for a terminal of any width, and JSON. A view imports no command.

columns      tables of many rows; every view that prints one uses it
progress     the progress of a run; `train` is that of `gpas train`, `tokenise` that of tokenising
states       states of cells
events       journal events as lines of text
plan         the plan of a run, with its `plan_tables`
submitted    what was submitted to a scheduler that runs jobs without this process
results      the results so far of a running grid
number       where a number of a table comes from
scores       scores at tasks
claims       verdicts on claims as text, `claims_json` as JSON
evidence     the evidence of the sequential test
merge        what `gpas db merge` prints
"""

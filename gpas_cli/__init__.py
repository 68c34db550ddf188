"""gpas_cli: reproduce the GPAS experiments, from a declared grid to the paper's tables.

The life of one cell, one package per step. Data flows down this list and never back up.

 1. experiments.yaml   a grid is named and its axes are listed
 2. grid/              the grid is expanded, excluded, overridden -> a list of `Cell`s
 3. spec/              a `Cell` is frozen data; its key is a hash of exactly what can change its result
 4. plan/              cells without a result become stage jobs, with their order, needs and cost
 5. schedule/          a `Scheduler` starts them: `local/` on this machine, `slurm/` as job arrays
 6. worker/            what one job executes: its processes, its inputs, its exit
 7. data/              the corpus, tokenised once into content-addressed shards, is served as batches
 8. model/             the `Cell` becomes an `nn.Module`
 9. train/             module + batches -> events (step, layer statistics, spike, evaluation, checkpoint, outcome)
10. evaluate/          finetuning, scores at tasks and on texts: later stages
11. store/             events are journalled in the run directory and ingested into SQL rows
12. report/            rows -> tables, beside the papers' numbers

Beside it: `state/` (what is true of a stage, concluded from evidence), `origin/` (where a number comes from),
`statistics/` (means, intervals, tests), `results/` (pandas frames), `doctor/` (diagnosis), `cli/` (the commands).
Around it, and unknown to it: `papers/` (one folder of data for each paper), `extensions/` (one for each capability).
"""

__version__ = "0.1.0"

"""gpas_cli: reproduce the GPAS experiments, from a declared grid to the paper's tables.

The life of one cell, one station per package. Data flows down this list and never back up.

 1. experiments.yaml   a grid is named and its axes are listed
 2. grid/              the grid is expanded, excluded, overridden -> a list of `Cell`s
 3. spec/              a `Cell` is frozen data; its key is a hash of exactly what can change its result
 4. launch/            cells that lack a result become jobs: SLURM arrays, or slots of this machine
 5. data/              the corpus, tokenised once into content-addressed shards, is served as batches
 6. model/             the `Cell` becomes an `nn.Module`
 7. train/             module + batches -> events (step, layer statistics, spike, evaluation, checkpoint, outcome)
 8. evaluate/          finetuning, downstream scores, layer importance: later stages on the checkpoint
 9. store/             events are journalled in the run directory and ingested into SQL rows
10. report/            rows -> table cells, figures, a report
"""

__version__ = "0.1.0"

"""The stages of a cell: one module per kind, with a function `run(stage: StageContext) -> Outcome`."""

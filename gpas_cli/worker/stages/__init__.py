"""The stages of a cell as jobs run them: one module with a function `run(stage: StageContext) -> Outcome` per kind."""

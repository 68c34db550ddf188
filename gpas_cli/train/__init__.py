"""Train a cell's network on its batches and report events. `run.train` is the only entry point."""

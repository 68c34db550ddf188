"""A cell's network and batches become events: `run.train` is the only entry."""

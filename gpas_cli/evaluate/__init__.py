"""Evaluate and export trained networks from their checkpoints; bounds of the papers for untrained ones."""

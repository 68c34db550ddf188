"""Evaluate trained networks from their checkpoints, and networks of others."""

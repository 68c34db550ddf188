"""The specification of a cell: frozen dataclasses and pure functions. Standard library only, no torch, no YAML."""

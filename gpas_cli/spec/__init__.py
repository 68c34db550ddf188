"""What a cell is: frozen dataclasses and pure functions over them. Standard library only; no torch, no YAML."""

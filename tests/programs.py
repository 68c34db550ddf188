"""Programs of tests: shell scripts in a folder that is on the PATH."""

from pathlib import Path


def program(path: Path, script: str = "") -> Path:
    """Make a program that runs this shell script; return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path

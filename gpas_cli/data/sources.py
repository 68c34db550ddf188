"""Open a corpus by the name of its source."""

from __future__ import annotations

from pathlib import Path

from gpas_cli.data.corpora import Source
from gpas_cli.data.files import Files
from gpas_cli.data.hub import C4, HfDataset
from gpas_cli.data.stdlib import Stdlib
from gpas_cli.spec.data import Data


def open_source(data: Data, cache: Path, root: Path) -> Source:
    """Return the `Source` of `data`. Relative paths start from `root`. Reads nothing yet."""
    if data.source == "files":
        return Files(data.path, data.text_field, root, data.validation)
    if data.source == "hf":
        return HfDataset(data.path, data.text_field, root)
    return C4(cache) if data.source == "c4" else Stdlib()

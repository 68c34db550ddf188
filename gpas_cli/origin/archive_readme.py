"""The README of an archive of tables."""

from __future__ import annotations

from collections.abc import Sequence

from gpas_cli import __version__
from gpas_cli.words import count

_TEXT = """\
# Tables {grids}

The numbers of {cells} in {attempts}, with everything behind them. Written by gpas_cli {version}.

## Print the tables

Install gpas_cli {version}, or take the code that made the numbers: name a folder of `runs/.code/` in `PYTHONPATH`.
Then, in this folder:

    sha256sum --check --quiet SHA256SUMS
    gpas db rebuild --yes
{commands}
`tables/` has the tables as they were printed when the archive was written. `gpas why 'GRID[ROW,COLUMN]'` shows the runs
behind a number, and `gpas diff A B` compares two cells.

## What is included

- `experiments.yaml`, with the plugins and the files of tasks that it names: the declared cells.
- `runs/`: for each attempt, what was asked for (`attempt.json`), what happened (`journal.jsonl`: losses, evaluations,
  final numbers, with a checksum for each line), how its process ended (`exit.json`), and the claims of schedulers.
- `runs/.code/`: the code that the attempts ran: {codes}.
- `published/`: the published numbers beside the tables.
- `SHA256SUMS`: a checksum for each file.

Checkpoints, logs and training texts are not included; journals have fingerprints of the texts. Forgotten attempts, and
networks that were scored but not trained here, are not included either.

{names}"""

_NAMED = """\
## Before you publish it

The records name the absolute paths of the project's folder and its cache, hosts, process ids, SLURM job ids, partitions
and accounts, times, and versions of libraries. Of the environment variables they have a fixed list of settings for
threads and numerical libraries, and no others. `gpas export --archive FILE GRID --anonymous` removes the names.
"""

_ANONYMOUS = """\
## What was removed

In records, journals, tables and `experiments.yaml`, hosts, users and jobs have substitutes (host-1, user-1, job-1), and
the folders of the project, of its cache and of the user are /project, /cache and /home/user. Process ids, git commits,
and the accounts, partitions, constraints and set-up commands of clusters are removed from records. Times, versions of
libraries and models of processors and GPUs are not. Copies of the code, plugins and files of tasks are unchanged.
"""


def readme(
    grids: Sequence[str], commands: Sequence[str], cells: int, attempts: int, codes: Sequence[str], *, anonymous: bool
) -> str:
    """Return the text of README.md; `commands` print the tables."""
    return _TEXT.format(
        grids=", ".join(grids),
        cells=count(cells, "cell"),
        attempts=count(attempts, "attempt"),
        version=__version__,
        commands="".join(f"    {command}\n" for command in commands),
        codes=", ".join(codes) or "no version is recorded",
        names=_ANONYMOUS if anonymous else _NAMED,
    )

"""The `gpas` command as forks of a process that has imported it, so that a test does not wait for the imports again.

A fork has its own working directory, environment and output, like a user's command. Only what Python does before it
imports the package needs a process of its own.
"""

import atexit
import json
import os
import select
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

REPOSITORY = Path(__file__).parents[1]
SECONDS = 240


class Forks:
    """A process that forks; `search_path` is its PYTHONPATH."""

    def __init__(self, search_path: str = str(REPOSITORY)):
        self._said = tempfile.TemporaryDirectory(prefix="gpas-forks-")
        self._process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONPATH": search_path},
        )  # fmt: skip

    def gpas(self, *words: str, folder: Path, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        request = {"words": words, "folder": str(folder), "environment": dict(environment), "said": self._said.name}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(request), file=self._process.stdin, flush=True)
        if not select.select([self._process.stdout], [], [], SECONDS)[0]:
            self._process.kill()
            raise TimeoutError(f"gpas {' '.join(words)} did not end")
        code = int(self._process.stdout.readline())
        out, err = (Path(self._said.name, name).read_text(errors="replace") for name in ("out", "err"))
        return subprocess.CompletedProcess(["gpas", *words], code, out, err)

    @property
    def descriptors(self) -> set[str]:
        """The numbers of its descriptors in this process."""
        return {str(pipe.fileno()) for pipe in (self._process.stdin, self._process.stdout) if pipe}

    def close(self) -> None:
        """End the process, whose forks have ended."""
        self._process.communicate()
        self._said.cleanup()


@cache
def forks() -> Forks:
    """Return the process that all tests of this one share."""
    from descriptors import KEPT

    made = Forks()
    KEPT.update(made.descriptors)
    atexit.register(made.close)
    return made


def _serve() -> None:
    """Answer each request on the standard input with an exit code."""
    from gpas_cli.cli.app import make_app

    make_app()  # imports every command
    for line in sys.stdin:
        pid = os.fork()
        if not pid:
            _run(**json.loads(line))
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


def _run(words: list[str], folder: str, environment: dict[str, str], said: str) -> NoReturn:
    """Be the command, in a fork."""
    from gpas_cli.__main__ import main

    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number, name in enumerate(("out", "err"), start=1):
        os.dup2(os.open(f"{said}/{name}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    sys.argv = ["gpas", *words]
    code: Any = 1
    try:
        main()
    except SystemExit as ended:
        code = ended.code or 0
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    _serve()

"""`gpas` and `python -m gpas_cli`: run the command line, turn errors into one message and an exit code."""

import gc
import io
import os
import sys
from pathlib import Path
from typing import NoReturn, TextIO

from gpas_cli.errors import Exit, GpasError, advise
from gpas_cli.words import printable

_EXIT_SIGINT = 130  # as shells report a process that Ctrl-C ended
_EXIT_SIGPIPE = 141  # and one that wrote to a closed pipe


def main() -> None:
    """Run the console script."""
    # Cells are many objects without cycles: the default thresholds cost 15 % of a command on 10,000 cells. With higher
    # ones than these a command that runs for long, such as `gpas report --serve`, grows by what it no longer needs.
    gc.set_threshold(100_000, 5, 5)
    sys.stdout, sys.stderr = _writable(sys.stdout), _writable(sys.stderr)
    try:
        from gpas_cli.cli.app import make_app, whole_words

        try:
            with whole_words():
                make_app("")()
        finally:
            sys.stdout.flush()  # here a closed pipe is an exception; at exit it would be a message
    except KeyboardInterrupt:  # during the imports; later each command handles Ctrl-C
        print("Aborted.", file=sys.stderr)
        sys.exit(_EXIT_SIGINT)
    except GpasError as error:
        print(printable(f"gpas: {error}"), file=sys.stderr)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        _end_of_pipe()
    except SystemExit as ended:
        # Click and Rich handle a closed pipe themselves, with exit code 1.
        if isinstance(ended.__context__, BrokenPipeError):
            _end_of_pipe()
        raise
    except MemoryError:
        print("gpas: not enough memory for this command; `ulimit -v` shows the limit of this shell", file=sys.stderr)
        sys.exit(Exit.USAGE)
    except OSError as error:
        # A full disk or a folder without permission is a problem of the machine, not a bug.
        print(printable(f"gpas: {advise(error)}"), file=sys.stderr)
        sys.exit(Exit.USAGE)
    finally:
        # Otherwise the interpreter runs a last collection over all objects at exit: 2 s after 100,000 cells.
        gc.freeze()


def _writable(stream: TextIO | None) -> TextIO:
    """Return a stream that any text can be written to: nowhere if it is closed, as of some daemons."""
    if stream is None:
        return Path(os.devnull).open("w", encoding="utf-8")
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="backslashreplace")  # characters that its encoding lacks
    return stream


def _end_of_pipe() -> NoReturn:
    """Exit without a message: the reader (`head`, a pager) has closed the pipe, and nothing may be flushed again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(_EXIT_SIGPIPE)


if __name__ == "__main__":
    main()

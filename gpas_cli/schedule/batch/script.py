"""The shell script of a job: its variables, its setup, the check of its code, its supervisor."""

import shlex
import sys
from pathlib import Path

from gpas_cli.project import Project
from gpas_cli.spec.run import Resources
from gpas_cli.store.snapshot import Snapshot

# A line of the setup that fails ends the job, as `set -e` does, and gives its number, because its text may be a secret.
# What fails inside a file that it sources does not count, unless the file fails as a whole. The shell's own messages
# quote the setup and the path of Python, so the log is the user's alone.
_CHECKED = (
    "[ ! -f /dev/stdout ] || chmod 600 /dev/stdout; above=$LINENO; trap 'code=$?; [ ${#BASH_SOURCE[@]} -gt 1 ] || "
    '{ echo "resources.setup failed with exit $code in its line $((LINENO - above))"; exit 1; }\' ERR'
)
# Compares the copy of the code with its name, a hash (`files.digest_of`), when the job starts and has imported
# nothing from it. The batch system keeps this text since the submission.
_VERIFY = """\
import hashlib, os, sys
root, code = sys.argv[1:]
lines = []
for folder, below, names in os.walk(root):
    for path in (os.path.join(folder, name) for name in below + names):
        regular = os.path.isfile(path) and not os.path.islink(path)
        content = open(path, "rb").read() if regular else b""
        empty = regular and not content and os.path.basename(path) == "__pycache__"
        if not empty and (os.path.islink(path) or not os.path.isdir(path)):
            name = os.path.relpath(path, os.path.join(root, "gpas_cli"))
            lines.append((name, hashlib.sha256(content).hexdigest() if regular else "not a file"))
text = "".join("%s\\0%s\\n" % line for line in sorted(lines))
if hashlib.sha256(text.encode()).hexdigest()[:16] != code:
    sys.exit(root + " has been changed since the job was submitted; delete it, and the next `gpas run` copies it again")
"""


def preamble(project: Project, asked: Resources, code: Snapshot | None) -> list[str]:
    """Return the lines, in bash, that a job runs first. Without `code`, it runs no code of this package."""
    pairs = [variable.partition("=")[::2] for variable in asked.environment]
    lines = [
        *([_CHECKED, *asked.setup, "trap - ERR"] if asked.setup or asked.python else []),
        *[f"export {name}={shlex.quote(value)}" for name, value in (*pairs, *project.variables.items())],
    ]
    if code:  # An empty entry of PYTHONPATH is the working directory, from which jobs import nothing.
        lines += [
            f"{python(asked)} -I -c {shlex.quote(_VERIFY)} {shlex.quote(str(code.path))} {code.code} || exit 1",
            f'PYTHONPATH=$(printf %s:%s {shlex.quote(str(code.path))} "${{PYTHONPATH:-}}" | tr -s :)',
            'export PYTHONSAFEPATH=1 PYTHONPATH="${PYTHONPATH%:}"',
        ]
    return lines


def python(asked: Resources) -> str:
    """Return the Python of a job, in bash."""
    return asked.python or shlex.quote(sys.executable)


def plain(project: Project, asked: Resources, place: Path, code: Snapshot) -> str:
    """Return the script of a job of one process, which writes its output itself: some systems bring it only when the
    job has ended."""
    lines = [
        f"exec >>{shlex.quote(str(place / 'job_0_0_log.out'))} 2>&1",
        f"cd {shlex.quote(str(project.config.parent))} || exit 1",
        *preamble(project, asked, code),
        f"exec {python(asked)} -u -P -m gpas_cli.schedule.batch.supervisor {shlex.quote(str(place))}",
    ]
    return "\n".join(("#!/bin/bash", *lines, ""))

"""The scheme of the guide as a plugin that leaves a trace when it is executed."""

from documentation import PYTHON

CODE = next(code for _, code in PYTHON if "class Faded" in code)
PLUGIN = "from pathlib import Path\nPath({trace!r}).touch()\n" + CODE.replace("{", "{{").replace("}", "}}")

"""The extension `glue`: finetuning on tasks of GLUE."""

from gpas_cli.extension import Extension

EXTENSION = Extension(name="glue", stages={"glue": "gpas_cli.extensions.glue.stage:GLUE"})

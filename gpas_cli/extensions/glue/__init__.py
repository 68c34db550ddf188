"""The extension `glue`: finetuning on tasks of GLUE."""

from gpas_cli.extension import Extension

EXTENSION = Extension(
    name="glue",
    about="finetuning on tasks of GLUE",
    page="how-to/finetuning.md",
    stages={"glue": "gpas_cli.extensions.glue.stage:GLUE"},
)

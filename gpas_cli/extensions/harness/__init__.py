"""The extension `harness`: tasks that lm-evaluation-harness reads and scores, by likelihoods of our networks.

scoring   reads a task, and turns the harness's results into scores
model     the model class through which the harness computes likelihoods
"""

from gpas_cli.extension import Extension

EXTENSION = Extension(
    name="harness", parts={"lm-evaluation-harness": "gpas_cli.extensions.harness.scoring:official_scorer"}
)

"""The extension `networks`: networks that were not trained here, measured like those that were.

network               how experiments.yaml declares one: a folder or a repository of the hub, pinned, and its shape
opening               finds its files, and loads it with transformers
transformers_network  the loaded network, called as one of ours
trained_cell          the network of a cell, to start another training from
start                 whether a training can start from the weights of either, with other norms, gates or factors
start_weights         puts them into the network that is trained
answers               questions that an encoder answers with spans of a passage
scoring               the scores of a network that no grid names, for `gpas evaluate`
"""

from gpas_cli.extension import Command, Extension

_PLACE = "gpas_cli.extensions.networks"
_ABOUT = "Score a network of others, and record it with its origin."

EXTENSION = Extension(
    name="networks",
    parts={
        "network": f"{_PLACE}.network:PinnedNetwork",
        "start": f"{_PLACE}.network:PinnedNetwork",
        "cell": f"{_PLACE}.trained_cell:TrainedCell",
        "squad": f"{_PLACE}.answers:answers_scorer",
        "transformers": f"{_PLACE}.opening:check",
    },
    commands={"evaluate": Command("More to run", f"{_PLACE}.command", _ABOUT)},
)

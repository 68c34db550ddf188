"""What the layers of a trained network do: what it loses without one of them, and the statistics of its stream.

stage       the sections and stages `importance` and `layers`
run         these stages in a job
blocks      the residual blocks of a network, and the network without some of them
removal     its loss without them, angular distances and stability
importance  what is lost without each layer: loss, and accuracy at tasks
statistics  of the stream at each layer, and of the outputs of sub-layers
"""

from gpas_cli.extension import Extension

_STAGE = "gpas_cli.extensions.layers.stage"

EXTENSION = Extension(name="layers", stages={"importance": f"{_STAGE}:IMPORTANCE", "layers": f"{_STAGE}:LAYERS"})

"""Normalisation schemes as data: the norm slots of a sub-layer, their initial weights, and the slot of the gate.

Every scheme is one instance of the residual formula (`gpas_cli.model.llama` computes it):

    x <- ENTRY(x)
    y  = OUT( out_norm( SUM( skip * SKIP(x) + branch * BRANCH( branch_norm( f( IN( in_norm(x) ) ) ) ) ) ) )

    Pre, LNS   y = G(x + f(N(x)))          Post       y = N(G(x) + f(x))
    Sandwich   y = G(x + N(f(N(x))))       DeepNorm   y = N(a G(x) + f(x)),  a = (2L)^(1/4)
    Peri       as Sandwich, and a norm after the embedding
    B2T        as Post, and FFN: y = N(b + G(x) + f(x)) with b the layer's input

    Rivals of the gate, which scale the branch or the stream by a constant or by learned numbers:
    ReZero, SkipInit     y = G(x + b f(x)), b = 0        LayerScale      y = G(x + b * f(N(x))), b a vector
    Scaled branches      y = G(x + f(N(x)) / sqrt(2L))   Learned scalars y = G(a x + b f(N(x))), a = b = 1
    Value residual       as Pre, and attention averages u v + u1 v1 with v1 the values of layer 1
    HybridNorm           attention, with norms of q, k and v: y = N(G(x) + f(x)), then FFN: y = G(x + f(x))

To add a scheme, write a frozen dataclass with `wiring` and add it to SCHEMES, here or in a file of your own that
experiments.yaml names under `plugins`. Layers count from 1, as in the papers.
"""

from __future__ import annotations

import math
from typing import ClassVar

from gpas_cli.spec.parse import setting
from gpas_cli.structure import Frozen

FACTORS = ("skip", "branch", "value", "first_value")  # the fields of a wiring that are constant or learned
# The slots for the gate, in capitals above.
GATE_SLOTS = ("entry", "in", "branch", "skip", "sum", "out")


class Norm(Frozen):
    """One norm slot: its weight is initialised to `init`, its output is multiplied by the constant `scale`."""

    init: float = 1.0
    scale: float = 1.0


class Factor(Frozen):
    """A learned factor, initialised to `init`: one number, or with `wide` one for each feature. With `shared` both
    sub-layers of the layer have the same. `scale` is a constant multiplier of it."""

    init: float = 1.0
    wide: bool = False
    shared: bool = False
    scale: float = 1.0


class Wiring(Frozen):
    """The slots of one layer's two sub-layers, or of attention's where the feed-forward network has an `ffn` of its
    own. An absent norm is the identity.

    skip, branch: the factors of the two terms of the sum: constants, or learned. value, first_value: the factors of
    what attention averages: the layer's own values and layer 1's, which are read unless the factor is 0.
    """

    in_norm: Norm | None = None
    branch_norm: Norm | None = None
    out_norm: Norm | None = None
    skip: float | Factor = 1.0
    branch: float | Factor = 1.0
    home: str = "sum"  # the slot where the GPAS paper puts the gate for this kind of sub-layer
    bottom: bool = False  # the layer's input, ungated, is added to the sum of its last sub-layer
    value: float | Factor = 1.0
    first_value: float | Factor = 0.0
    qkv_norm: str = "none"
    """Queries, keys and values have norms, over each `head` or over the `width` of all heads together; `none`: as the
    family says."""
    ffn: Wiring | None = None

    @property
    def norms(self) -> tuple[Norm | None, Norm | None, Norm | None]:
        """The norms, in the order of the formula."""
        return self.in_norm, self.branch_norm, self.out_norm

    @property
    def parts(self) -> tuple[Wiring, Wiring]:
        """The wirings of attention and of the feed-forward network."""
        return self, self.ffn or self


class PluginOrigin(Frozen):
    """Where a plugin scheme comes from: the name and text of a file, or the name of an installed package."""

    name: str
    source: str = ""


class Scheme:
    """Base class of normalisation schemes: frozen dataclasses that return the wiring of each layer.

    `init_preset` and `embedding` are the defaults of `init` and `embed` for cells with this scheme.
    """

    title: ClassVar[str]  # the label in tables
    init_preset: ClassVar[str] = "normal"
    embedding: ClassVar[str] = "plain"
    same_as: ClassVar[str] = ""  # the scheme with the same wiring, and therefore the same key
    origin: ClassVar[PluginOrigin | None] = None  # set by `gpas_cli.spec.plugins`

    def wiring(self, layer: int, depth: int) -> Wiring:
        """Return the wiring of layer `layer` (1 = first) of `depth` layers, as a pure function of the fields."""
        raise NotImplementedError

    def wiring_beside(self, layer: int, encoder: int, decoder: int) -> Wiring:
        """Return the wiring of a layer of a network with `encoder` and `decoder` layers; the encoder's come first."""
        return self.wiring(layer, encoder) if layer <= encoder else self.wiring(layer - encoder, decoder)


class Pre(Frozen, Scheme, kw_only=True):
    """x + f(N(x)) (Baevski and Auli 2019; Xiong et al. 2020)."""

    title: ClassVar[str] = "Pre-LN"

    def wiring(self, layer: int, depth: int) -> Wiring:
        return Wiring(in_norm=Norm())


class Post(Frozen, Scheme, kw_only=True):
    """N(x + f(x)) (Vaswani et al. 2017)."""

    title: ClassVar[str] = "Post-LN"

    def wiring(self, layer: int, depth: int) -> Wiring:
        return Wiring(out_norm=Norm(), home="skip")


class DeepNorm(Frozen, Scheme, kw_only=True):
    """N((2L)^(1/4) x + f(x)), with its own initialisation (Wang et al. 2022). `skip` is a factor in place of
    (2L)^(1/4): the code of The Curse of Depth has that of 32 layers at every depth."""

    skip: float | None = setting(None, above=0, high=100, omit_default_from_key=True)

    title: ClassVar[str] = "DeepNorm"
    init_preset: ClassVar[str] = "deepnorm"

    def wiring(self, layer: int, depth: int) -> Wiring:
        return Wiring(out_norm=Norm(), skip=self.skip or (2 * depth) ** 0.25, home="skip")

    def wiring_beside(self, layer: int, encoder: int, decoder: int) -> Wiring:
        # Table 1 of Wang et al. 2022.
        skip = 0.81 * (encoder**4 * decoder) ** (1 / 16) if layer <= encoder else (3 * decoder) ** 0.25
        return Wiring(out_norm=Norm(), skip=self.skip or skip, home="skip")


class Sandwich(Frozen, Scheme, kw_only=True):
    """x + N(f(N(x))) (Ding et al. 2021)."""

    title: ClassVar[str] = "Sandwich-LN"

    def wiring(self, layer: int, depth: int) -> Wiring:
        return Wiring(in_norm=Norm(), branch_norm=Norm())


class Peri(Sandwich, kw_only=True):
    """Sandwich with a norm after the embedding (Kim et al. 2025). Sandwich with that embedding is the same network and
    has the same key."""

    title: ClassVar[str] = "Peri-LN"
    embedding: ClassVar[str] = "rmsnorm"
    same_as: ClassVar[str] = "sandwich"


class B2T(Frozen, Scheme, kw_only=True):
    """Post-LN whose layers add their input again before their last norm (Takase et al. 2023, bottom-to-top)."""

    title: ClassVar[str] = "B2T"

    def wiring(self, layer: int, depth: int) -> Wiring:
        return Wiring(out_norm=Norm(), home="skip", bottom=True)


class Mix(Frozen, Scheme, kw_only=True):
    """Post-LN in the first floor(post_fraction * L) layers, Pre-LN after (Li et al. 2025)."""

    post_fraction: float = setting(0.25, above=0, high=1)

    title: ClassVar[str] = "Mix-LN"

    def post_layers(self, depth: int) -> int:
        # The tiny offset keeps 0.1 * 30 = 3.0000000000000004 and 0.3 * 10 = 2.9999999999999996 both at 3.
        return math.floor(self.post_fraction * depth + 1e-9)

    def wiring(self, layer: int, depth: int) -> Wiring:
        part: Scheme = Post() if layer <= self.post_layers(depth) else Pre()
        return part.wiring(layer, depth)


class LNS(Frozen, Scheme, kw_only=True):
    """Pre-LN whose norms have a factor 1/sqrt(l): as the initial weight ("init", the GPAS experiments) or as a constant
    multiplier of the output ("scale", equation 1 of The Curse of Depth)."""

    apply: str = setting("init", choices=("init", "scale"))

    title: ClassVar[str] = "LNS"

    def wiring(self, layer: int, depth: int) -> Wiring:
        factor = 1 / math.sqrt(layer)
        return Wiring(in_norm=Norm(init=factor) if self.apply == "init" else Norm(scale=factor))


class ReZero(Frozen, Scheme, kw_only=True):
    """x + b f(x) without norms in the layers, b = 0 at first, one number for each layer (Bachlechner et al. 2020)."""

    title: ClassVar[str] = "ReZero"

    def wiring(self, layer: int, depth: int) -> Wiring:
        return Wiring(branch=Factor(init=0.0, shared=True))


class SkipInit(Frozen, Scheme, kw_only=True):
    """x + b f(x) without norms in the layers, b = 0 at first, one number for each branch (De and Smith 2020)."""

    title: ClassVar[str] = "SkipInit"

    def wiring(self, layer: int, depth: int) -> Wiring:
        return Wiring(branch=Factor(init=0.0))


class LayerScale(Frozen, Scheme, kw_only=True):
    """x + b * f(N(x)) with a learned vector b (Touvron et al. 2021). By default it starts at 0.1 in networks of up to
    18 layers, at 1e-5 up to 24 and at 1e-6 in deeper ones."""

    start: float | None = setting(None, above=0, high=10)

    title: ClassVar[str] = "LayerScale"

    def wiring(self, layer: int, depth: int) -> Wiring:
        usual = 0.1 if depth <= 18 else 1e-5 if depth <= 24 else 1e-6
        return Wiring(in_norm=Norm(), branch=Factor(init=self.start or usual, wide=True))


class Scalars(Frozen, Scheme, kw_only=True):
    """a x + b f(N(x)) with learned numbers a and b, which start at 1, for each branch: the gate's freedom and more,
    without its stop-gradient."""

    title: ClassVar[str] = "learned scalars"

    def wiring(self, layer: int, depth: int) -> Wiring:
        return Wiring(in_norm=Norm(), skip=Factor(), branch=Factor())


class ScaledBranches(Frozen, Scheme, kw_only=True):
    """x + f(N(x)) / sqrt(2L): the constant by which GPT-2 initialises its output matrices, kept during training."""

    title: ClassVar[str] = "1/sqrt(2L)"

    def wiring(self, layer: int, depth: int) -> Wiring:
        return Wiring(in_norm=Norm(), branch=1 / math.sqrt(2 * depth))


class ValueResidual(Frozen, Scheme, kw_only=True):
    """Pre-LN whose attention averages 0.5 v + 0.5 v1 from layer 2 on, with v1 the values of layer 1 (Zhou et al. 2025,
    ResFormer): the paper's Identity-ResFormer. With `learned` both factors of a layer are learned, and start there
    (Learnable-ResFormer)."""

    learned: bool = setting(False)

    title: ClassVar[str] = "value residual"

    def wiring(self, layer: int, depth: int) -> Wiring:
        half = Factor(init=0.5, shared=True) if self.learned else 0.5
        return Wiring(in_norm=Norm()) if layer == 1 else Wiring(in_norm=Norm(), value=half, first_value=half)


class HybridNorm(Frozen, Scheme, kw_only=True):
    """Norms of queries, keys and values in attention, and a norm after its sum, which the feed-forward network and its
    skip path read: z = x + f(x), y = N(z) + g(N(z)) (Zhuo et al. 2025). `first: pre` has the network that the paper
    calls HybridNorm*: layer 1 is Pre-LN, with norms of queries, keys and values. The paper's initialisation is
    `init: small`. It does not say whether `qkv_norm` is over heads; its equation has them one by one."""

    first: str = setting("hybrid", choices=("hybrid", "pre"))
    qkv_norm: str = setting("head", choices=("head", "width"))

    title: ClassVar[str] = "HybridNorm"

    def wiring(self, layer: int, depth: int) -> Wiring:
        if layer == 1 and self.first == "pre":
            return Wiring(in_norm=Norm(), qkv_norm=self.qkv_norm)
        return Wiring(out_norm=Norm(), home="skip", qkv_norm=self.qkv_norm, ffn=Wiring())


SCHEMES: dict[str, type[Scheme]] = {
    "pre": Pre,
    "post": Post,
    "deepnorm": DeepNorm,
    "sandwich": Sandwich,
    "mix": Mix,
    "lns": LNS,
    "peri": Peri,
    "b2t": B2T,
    "rezero": ReZero,
    "skipinit": SkipInit,
    "layerscale": LayerScale,
    "scalars": Scalars,
    "scaled-branches": ScaledBranches,
    "value-residual": ValueResidual,
    "hybridnorm": HybridNorm,
}

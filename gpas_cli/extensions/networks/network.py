"""Networks that were not trained here: a folder that `transformers` loads, or a repository of the Hugging Face hub.

They are declared under `networks` in experiments.yaml, and pinned: a repository by its commit, a folder by a digest of
its files. The pin is the network's identity in the keys of stages, so a folder may be moved.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from gpas_cli.errors import Problem
from gpas_cli.events import Emit
from gpas_cli.files import parse_json
from gpas_cli.project import hub_cache
from gpas_cli.spec.cell import Cell
from gpas_cli.spec.model import Model
from gpas_cli.spec.parse import plain, setting
from gpas_cli.spec.section import Input
from gpas_cli.structure import Frozen
from gpas_cli.words import abbreviated

WEIGHTS = (".safetensors", ".bin")
OTHERS = (".json", ".py", ".model", ".spm", ".tiktoken", ".txt", ".jinja")  # configuration, code and tokenizer
_GGUF = (
    "; GGUF is not read: in transformers, AutoModelForCausalLM.from_pretrained(FOLDER, gguf_file=NAME) and its method "
    "save_pretrained convert it, and so do those of AutoTokenizer"
)
_COMMIT = re.compile(r"[0-9a-f]{40}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
# What the configurations of transformers call the numbers of a shape.
_SHAPE_NAMES = {
    "layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "hidden": ("hidden_size", "n_embd", "d_model", "dim"),
    "ffn": ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size", "hidden_dim"),
    "vocab": ("vocab_size",),
}
# What earlier versions recorded of every network, and what it was of those in folders and on the hub.
_RETIRED = {"made": "", "seed": 42, "updates": 600, "heads": 0}
_LARGEST_FFN = 262_144  # of a `Size`


def _fault(pattern: re.Pattern[str], what: str) -> Any:
    return lambda text: "" if not text or pattern.fullmatch(text) else f"'{text}' is not {what}"


class PinnedNetwork(Frozen, kw_only=True):
    """A network that was not trained here, a `spec.section.Network`.

    layers, hidden, ffn, vocab: its shape, by which plans estimate the cost; 0 is read from config.json. parameters,
    tied: their number, and whether the head is the table of embeddings; without them both are read from the weights.
    """

    hf: str = setting("")  # a repository of the hub
    revision: str = setting("", check=_fault(_COMMIT, "a commit (40 hex digits): a branch or tag can change"))
    """The commit of the repository."""
    path: str = setting("")  # a folder, relative to experiments.yaml
    sha256: str = setting("", check=_fault(_DIGEST, "a digest (64 hex digits)"))
    """The digest of the files of the folder."""
    dtype: str = setting("stored", choices=("stored", "fp32", "bf16"))
    """Of the weights; `stored` keeps bfloat16 and converts others to fp32."""
    trust_code: bool = setting(False)  # whether the code that comes with the network may run
    layers: int = setting(0, low=0, high=1024)
    hidden: int = setting(0, low=0, high=65_536)
    ffn: int = setting(0, low=0, high=262_144)
    vocab: int = setting(0, low=0, high=10_000_000)
    parameters: int = setting(0, low=0)
    tied: bool = setting(False)

    @staticmethod
    def completed(values: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return `values` without the settings that networks had when small ones were made at run time."""
        return {name: value for name, value in values.items() if name not in _RETIRED or value != _RETIRED[name]}

    @property
    def source(self) -> str:
        """The folder, or the name on the hub."""
        return self.path or self.hf

    def declared(self, root: Path, pack: Path | None) -> tuple[PinnedNetwork, list[Problem]]:
        """Return the network with the shape of its folder, and what is wrong with it. A pack's networks
        lie in its folder, others in `root`, the folder of experiments.yaml."""
        made = replace(self, path=str(pack / self.path)) if pack and self.path else self
        problems = list(made._problems(root))
        return made if problems else made.with_shape(root), problems

    def _problems(self, root: Path) -> Iterator[Problem]:
        """Yield what is wrong with the network as a whole; for a folder without a digest, its present one."""
        if bool(self.hf) == bool(self.path):
            yield Problem((), "needs one of hf (a name on the Hugging Face hub) and path (a folder)")
        if self.hf and not self.revision:
            yield Problem(("revision",), "is required: the commit of the repository, 40 hex digits")
        for own, source in (("revision", self.hf), ("sha256", self.path)):
            if getattr(self, own) and not source:
                yield Problem((own,), f"has no effect on {self.source}")
        if not self.path or self.sha256 or self.hf:
            return
        folder = self.folder(root)
        if fault := unusable(folder):
            yield Problem(("path",), fault)
        else:
            yield Problem(("sha256",), f"is required: the digest of the folder's files, now {pin_of(*digests(folder))}")

    def identity(self) -> dict[str, str]:
        """Return what identifies the network's numbers, for keys."""
        pin = {"hf": self.hf, "revision": self.revision} if self.hf else {"sha256": self.sha256}
        return {**pin, "dtype": self.dtype}

    @property
    def name(self) -> str:
        """Its name in events: what it is, and in which precision."""
        pin = f"{self.hf}@{self.revision[:12]}" if self.hf else f"sha256:{self.sha256[:16]}"
        return pin if self.dtype == "stored" else f"{pin} {self.dtype}"

    @property
    def cell(self) -> None:
        """No cell trained it."""

    @property
    def tokenizer(self) -> str:
        """The path of its tokenizer.json."""
        return str(self.folder(Path()) / "tokenizer.json")

    @property
    def precision(self) -> str | None:
        """The precision of its weights, None if that depends on how they are stored."""
        return {"fp32": "fp32", "bf16": "pure_bf16"}.get(self.dtype)

    def folder(self, root: Path) -> Path:
        """Return the folder of its files: for a repository that in the hub's cache, which may not exist yet."""
        cached = hub_cache() / f"models--{self.hf.replace('/', '--')}" / "snapshots" / self.revision
        return root / Path(self.path).expanduser() if self.path else cached

    def inputs(self) -> Iterator[Input]:
        """Yield the network itself."""
        yield Input(self, "gpas_cli.extensions.networks.network:absence")

    def warnings(self, parameters: int) -> Iterator[str]:
        """Yield a warning if its shape, and so its cost, is not known yet."""
        if not (self.layers and self.hidden):
            yield (
                f"{self.source}: its shape is unknown until it is on this machine, and the estimate is for "
                f"{abbreviated(parameters)} parameters; give it layers, hidden, ffn and vocab"
            )

    def open(self, stage: Any) -> Any:
        """Return the loaded network, and record what it is."""
        return resolve_name("gpas_cli.extensions.networks.opening:open_network")(self, stage)  # which imports torch

    def to_mapping(self) -> dict[str, Any]:
        """Return its settings."""
        return dict(plain(self))

    def problems_in(self, cell: Cell) -> tuple[Problem, ...]:
        """Return nothing: `start.absence` finds what is wrong in its files."""
        return ()

    def start_inputs(self, model: Model) -> Iterator[Input]:
        """Yield its files, for a training of `model` to start from it."""
        yield Input((self, model), "gpas_cli.extensions.networks.start:absence")

    def put_into(self, network: Any, place: Path, emit: Emit) -> None:
        """Replace the weights of an initialised network by its own."""
        # This module imports torch.
        resolve_name("gpas_cli.extensions.networks.start_weights:put_into")(self, network, place, emit)

    def with_shape(self, root: Path) -> PinnedNetwork:
        """Return the network with what config.json and the weights say of its shape, if they are on this machine."""
        folder, found = self.folder(root), dict[str, Any]()
        with suppress(OSError, ValueError, LookupError, TypeError, AttributeError):
            found = shape_in(parse_json((folder / "config.json").read_text("utf-8")))
            found |= _counted(folder, [found["vocab"], found["hidden"]])
        return replace(self, **{name: value for name, value in found.items() if not getattr(self, name)})

    def described(self) -> dict[str, Any]:
        """Return the parts of a cell that stand for the network in estimates of the cost: a plain network of its shape,
        by default that of 1B."""
        hidden, layers, ffn = self.hidden or 2048, self.layers or 24, self.ffn
        vocab = max(8, self.vocab or 32_000)
        if self.parameters:  # which other kinds of attention and feed-forward networks have, too
            matrices = (self.parameters - (2 - self.tied) * vocab * hidden) / layers
            ffn = min(max(1, round((matrices / hidden - 4 * hidden) / 3)), _LARGEST_FFN)
        shape = {"layers": layers, "hidden": hidden + hidden % 2, "ffn": ffn or 4 * hidden}
        model = {"size": {**shape, "vocab": vocab, "heads": 1}, "family": {"like": "llama", "tied": self.tied}}
        optim = {"lr": 1.0, "warmup": 0, "steps": 1, "batch": 1}
        return {**model, "optim": optim, "precision": self.precision or "pure_bf16"}


def shape_in(config: Mapping[str, Any]) -> dict[str, int]:
    """Return the numbers of a shape that a configuration of transformers has: layers, hidden, ffn, vocab."""
    found = {}
    for name, spellings in _SHAPE_NAMES.items():
        value = next((config[spelling] for spelling in spellings if config.get(spelling)), None)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            found[name] = value
    return found


def _counted(folder: Path, table: list[int]) -> dict[str, int]:
    """Return `parameters` and `tied` from the headers of the weights, which have one tensor of the shape `table` if the
    head is tied. A header has at most 100 MB. Raises OSError, ValueError, LookupError, TypeError or AttributeError for
    another content."""
    found = [*shapes(folder).values()]
    return {"parameters": sum(map(math.prod, found)), "tied": found.count(table) == 1}


def weight_files(folder: Path) -> list[Path]:
    """Return the files of the weights as safetensors."""
    return [*folder.glob("model-*-of-*.safetensors")] or [*folder.glob("model.safetensors")]


def shapes(folder: Path) -> dict[str, list[int]]:
    """Return the shapes of the tensors in a folder's safetensors by name. Raises as `_counted`."""
    found = dict[str, list[int]]()
    for path in weight_files(folder):
        with path.open("rb") as file:
            header = parse_json(file.read(min(int.from_bytes(file.read(8), "little"), 100_000_000)))
        found |= {name: about["shape"] for name, about in header.items() if name != "__metadata__"}
    return found


def absence(network: PinnedNetwork, cache: Path, root: Path) -> str:
    """Return why a network cannot be opened on this machine, "" if no reason is known."""
    if find_spec("transformers") is None:
        return "network: transformers, which opens it, is not installed: pip install 'gpas-cli[export]'"
    fault = unusable(network.folder(root)) if network.path else ""
    return f"network: {fault}" if fault else ""


def unusable(folder: Path) -> str:
    """Return why a folder holds no network that `transformers` loads, "" if it has a configuration and weights."""
    try:
        names = [path.name for path in folder.iterdir()]
    except FileNotFoundError:
        return f"there is no folder {folder}"
    except NotADirectoryError:
        return f"{folder} is a file, not the folder of a network{_GGUF if folder.suffix == '.gguf' else ''}"
    except OSError as error:
        return f"{folder} cannot be read: {error.strerror}"
    hint = _GGUF if any(name.endswith(".gguf") for name in names) else ""
    if "config.json" not in names:
        return f"{folder} has no config.json: it is not a folder that transformers loads (`gpas export`){hint}"
    return (
        ""
        if any(name.endswith(WEIGHTS) for name in names)
        else f"{folder} has no weights (*{', *'.join(WEIGHTS)}){hint}"
    )


def digests(folder: Path) -> tuple[str, str]:
    """Return the sha256 of the names and contents of the weights in a folder, and of the others. Raises OSError."""
    names = sorted(path for path in folder.iterdir() if path.is_file())
    weights, others = ([path for path in names if path.suffix in of] for of in (WEIGHTS, OTHERS))
    return _digest(weights), _digest(others)


def pin_of(weights: str, files: str) -> str:
    """Return the digest of a folder from the digests of its weights and of its other files."""
    return hashlib.sha256(f"{weights} {files}".encode()).hexdigest()


def _digest(paths: Iterable[Path]) -> str:
    whole = hashlib.sha256()
    for path in paths:
        state = path.stat()
        whole.update(f"{path.name}\0{_file_digest(path, state.st_size, state.st_mtime_ns)}\n".encode())
    return whole.hexdigest()


@cache
def _file_digest(path: Path, _size: int, _changed: int) -> str:
    """Return the sha256 of a file, read once in a process unless it changes: 14 GB take seconds."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

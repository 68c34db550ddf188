"""Load networks with `transformers`, from a folder or the Hugging Face hub."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from pickle import UnpicklingError
from types import SimpleNamespace
from typing import Any

import psutil
import torch

from gpas_cli.data.hub import offline_if_unreachable, unavailable
from gpas_cli.data.tokenizer import CONFIG, Tokenizer
from gpas_cli.errors import DataError, GpasError, first_line
from gpas_cli.evaluate.foreign import Opened
from gpas_cli.events import Phase
from gpas_cli.extensions.networks.network import OTHERS, WEIGHTS, PinnedNetwork, digests, pin_of, unusable
from gpas_cli.extensions.networks.transformers_network import CausalNetwork, Encoder, MaskedNetwork
from gpas_cli.files import parse_json
from gpas_cli.structure import Frozen
from gpas_cli.train.device import choose_device
from gpas_cli.train.precision import Precision
from gpas_cli.words import byte_size
from gpas_cli.worker.stages.context import StageContext

# Networks with these architectures are read as encoders: they have no head that predicts the next token.
_ENCODER = re.compile(
    r".*(?<!Head)(?<!Heads)Model|.*For(QuestionAnswering|MaskedLM|PreTraining|SequenceClassification|"
    r"TokenClassification|MultipleChoice|NextSentencePrediction)"
)


class ExternalModel(Frozen):
    """A network in a folder."""

    source: str  # the folder as it was named, or the hub's name
    folder: Path
    revision: str  # the commit on the hub, "" for a folder
    weights: str  # digest of the weights
    files: str  # digest of the configuration, the code and the tokenizer

    @property
    def config(self) -> dict[str, Any]:
        """The content of config.json. Raises GpasError if it is not a JSON object."""
        return self._read("config.json", "a network")

    @property
    def tokenizer_config(self) -> dict[str, Any]:
        """The content of tokenizer_config.json, if it is there. Raises GpasError if it is not a JSON object."""
        return self._read(CONFIG, "a tokenizer") if (self.folder / CONFIG).exists() else {}

    def _read(self, name: str, of: str) -> dict[str, Any]:
        path = self.folder / name
        try:
            found = parse_json(path.read_bytes().decode())
        except (OSError, ValueError) as error:
            raise GpasError(f"{path}: not the configuration of {of}: {error}") from error
        if not isinstance(found, dict):
            raise GpasError(f"{path}: not the configuration of {of} but a {type(found).__name__}")
        return found

    @property
    def architecture(self) -> str:
        """The class of transformers that its configuration names, "" if it names none."""
        named = self.config.get("architectures")
        return str(named[0]) if isinstance(named, list) and named else ""

    @property
    def positions(self) -> int | None:
        """The number of positions that the network has learned; None if they are rotary or unknown."""
        config = self.config
        if '"rope' in json.dumps(config):  # a name or a value, but not the end of "europe"
            return None
        found = config.get("max_position_embeddings") or config.get("n_positions")
        return found if isinstance(found, int) and found > 0 else None

    @property
    def pin(self) -> str:
        """The digest of all its files, by which experiments.yaml pins a folder."""
        return pin_of(self.weights, self.files)

    @property
    def has_code(self) -> bool:
        """Whether the network or its tokenizer consists of code in the folder."""
        return bool(self.config.get("auto_map") or self.tokenizer_config.get("auto_map"))

    def provenance(self) -> dict[str, str]:
        """Return where the network comes from, and digests of its content."""
        facts = {name: value for name, value in asdict(self).items() if name != "folder"}
        return {**facts, "architecture": self.architecture}


def _require_transformers() -> None:
    if find_spec("transformers") is None:
        raise GpasError("networks are loaded with transformers, which is not installed: pip install 'gpas-cli[export]'")


def find_model(source: str, revision: str = "") -> ExternalModel:
    """Return the network of a folder, or of a repository on the hub, which is downloaded if necessary.

    Raises GpasError if there is none, or if the extra `export` is not installed.
    """
    _require_transformers()
    folder = Path(source).expanduser()
    commit = ""
    if folder.is_dir() and revision:
        raise GpasError(f"--revision is for a repository on the hub; {source} is a folder")
    if not folder.exists() and not source.startswith((".", "/", "~")):
        folder, commit = _download(source, revision)
    return _model_in(folder, source, commit)


def _model_in(folder: Path, source: str, commit: str = "") -> ExternalModel:
    """Return the network in a folder. Raises GpasError if there is none."""
    if fault := unusable(folder):
        raise GpasError(fault)
    found = ExternalModel(source, folder, commit, *digests(folder))
    found.provenance()  # reads config.json before the network is loaded
    return found


def _download(name: str, revision: str) -> tuple[Path, str]:
    """Return the folder of a repository in the hub's cache, and its commit. Raises GpasError if it is unavailable."""
    from huggingface_hub import snapshot_download

    def fetched(*suffixes: str) -> Path:
        patterns = [f"*{suffix}" for suffix in suffixes]
        with offline_if_unreachable():
            return Path(snapshot_download(name, revision=revision or None, allow_patterns=patterns))

    try:
        best, *others = WEIGHTS
        folder = fetched(best, *OTHERS)
        if not any(path.suffix == best for path in folder.iterdir()):  # many repositories have the same weights twice
            folder = fetched(*others, *OTHERS)
    except Exception as error:
        # Network, hub and disk raise many classes of exceptions here, and so does a name that cannot be one.
        if "Gated" in type(error).__name__:
            remedy = "accept its licence on its page, and set HF_TOKEN to a token of that account"
            raise GpasError(f"{name} is for accounts that have accepted its licence: {remedy}") from error
        raise GpasError(unavailable(f"{name} is neither a folder nor a repository of the hub", error)) from error
    return folder, folder.name


def find_network(network: PinnedNetwork, root: Path, notify: Callable[[str], None]) -> ExternalModel:
    """Return the network that a cell names; `root` is the folder of experiments.yaml. `notify` gets what takes time.

    Raises GpasError as `find_model` does, and if the files of a folder are not those that are pinned.
    """
    if network.hf:
        notify(f"looking for {network.hf}")
        folder, commit = _download(network.hf, network.revision)
        return _model_in(folder, network.hf, commit)
    folder = network.folder(root)
    found = _model_in(folder, str(folder))
    if found.pin != network.sha256:
        raise GpasError(
            f"the files of {found.source} are not those of the network: their digest is {found.pin}, pinned is "
            f"{network.sha256}; restore them, or pin the new ones with sha256"
        )
    return found


def open_network(network: PinnedNetwork, stage: StageContext) -> Opened:
    """Open the network that a stage measures, and record what it is."""
    _require_transformers()
    stage.emit(Phase("reading the network", network.source))
    found = find_network(network, stage.root, lambda what: stage.emit(Phase(what)))
    opened = open_model(found, trust_code=network.trust_code, dtype=network.dtype)
    facts = found.provenance()
    what = f"{facts['architecture'] or 'a network'} with {opened.parameters:,} parameters in {opened.precision.name}"
    files = f"weights {facts['weights'][:12]}, other files {facts['files'][:12]}"
    tokens = f"texts begin with {opened.tokenizer.first}"
    stage.emit(Phase("opened the network", f"{what}, {files}; {tokens}"))
    return opened


def check(folder: Path) -> None:
    """Raise GpasError unless the network in a folder can be loaded."""
    open_model(find_model(str(folder)), trust_code=True)


def open_model(model: ExternalModel, *, trust_code: bool = False, dtype: str = "stored") -> Opened:
    """Load the network on the GPU, if there is one, and its tokenizer.

    `dtype`: fp32, bf16, or stored: weights in bfloat16 stay so, and others become float32. Raises GpasError if the
    folder has code and `trust_code` is false, or if it cannot be loaded or scored.
    """
    if model.has_code and not trust_code:
        raise GpasError(
            f"{model.source} contains code; --trust-code, or trust_code: true in experiments.yaml, runs "
            "it (read it first)"
        )
    if model.config.get("is_encoder_decoder"):
        raise GpasError(
            f"{model.source} is an encoder with a decoder, whose layers are no single list of residual blocks"
        )
    _require_memory(model, dtype)
    import transformers
    from transformers.utils import logging

    logging.disable_progress_bar()
    options: Mapping[str, Any] = {"local_files_only": True, "trust_remote_code": trust_code}
    try:
        encoder = _ENCODER.fullmatch(model.architecture) and not model.has_code
        kind = getattr(transformers, model.architecture, None) if encoder else transformers.AutoModelForCausalLM
        if kind is None:
            raise GpasError(f"{model.source}: transformers has no {model.architecture}")
        loaded, found = kind.from_pretrained(model.folder, output_loading_info=True, **options)
        if found["missing_keys"]:
            raise GpasError(f"{model.source}: its weights lack {', '.join(sorted(found['missing_keys'])[:3])}")
        words = _words(model, options)
        half = next(loaded.parameters()).dtype == torch.bfloat16 if dtype == "stored" else dtype == "bf16"
        precision = Precision("pure_bf16" if half else "fp32", choose_device())
        placed = loaded.to(dtype=precision.weights, device=precision.device)
        network: MaskedNetwork | Encoder | CausalNetwork
        if encoder and model.architecture.endswith("ForMaskedLM"):
            network = MaskedNetwork(placed, model.source, words.mask_token_id)
        else:
            network = Encoder(placed, model.source) if encoder else CausalNetwork(placed, model.source)
        tokenizer = _tokenizer(words, network.vocab, model)
    except GpasError:
        raise
    except UnpicklingError as error:
        code = "its weights are a pickle with code, which is not executed; ask for them as safetensors"
        raise GpasError(f"{model.source}: {code}") from error
    except Exception as error:
        # The code of a network may raise any exception, and so may its first forward pass under a wrong configuration.
        raise GpasError(
            f"transformers cannot load {model.source}: {type(error).__name__}: {first_line(error)}"
        ) from error
    parameters = sum(parameter.numel() for parameter in network.parameters())
    return Opened(network, precision, tokenizer, parameters, model.positions)


def _require_memory(model: ExternalModel, dtype: str) -> None:
    """Raise GpasError if the weights alone are larger than the memory that is free."""
    stored = sum(path.stat().st_size for path in model.folder.iterdir() if path.suffix in WEIGHTS)
    kept = model.config.get("dtype") or model.config.get("torch_dtype")
    halves = {"stored": kept == "bfloat16", "bf16": True, "fp32": False}[dtype]
    needed = stored * (1 if kept in ("bfloat16", "float16") else 0.5) * (1 if halves else 2)
    on_gpu = choose_device().type == "cuda"
    free = torch.cuda.mem_get_info()[0] if on_gpu else psutil.virtual_memory().available
    if needed > free:
        remedy = "" if halves else "; dtype: bf16 needs half of it"
        raise GpasError(
            f"{model.source}: its weights need {byte_size(needed)}, and {byte_size(free)} are free{remedy}; "
            "resources: mem and gpus are those of the job"
        )


def _words(model: ExternalModel, options: Mapping[str, Any]) -> Any:
    """Return the tokenizer of transformers in the network's folder. Raises GpasError if it cannot be loaded."""
    import transformers

    try:
        return transformers.AutoTokenizer.from_pretrained(model.folder, **options)
    except Exception as error:  # as in `open_model`
        raise GpasError(
            f"transformers cannot load the tokenizer of {model.source}: {type(error).__name__}: {first_line(error)}; "
            "it reads tokenizer.json, with sentencepiece and protobuf also tokenizer.model, with tiktoken *.tiktoken: "
            "pip install 'gpas-cli[export]'"
        ) from error


def _tokenizer(words: Any, vocab: int, model: ExternalModel) -> Tokenizer:
    """Return a tokenizer of transformers as ours. Raises GpasError if it has no end token."""
    declared = (words.bos_token_id, words.eos_token_id)
    bos, eos = (one if one is not None and one < vocab else None for one in declared)
    # transformers 5 does not apply this where it replaces the class that the file names.
    added = model.tokenizer_config.get("add_bos_token")
    backend: Any = words.backend_tokenizer if words.is_fast else _PythonBackend(words)
    start = (bos,) if bos is not None and (added or words("a").input_ids[:1] == [bos]) else ()
    try:
        return Tokenizer(backend, vocab, origin=model.source, start=start, bos=bos, eos=eos)
    except DataError as error:
        raise GpasError(f"the tokenizer of {error}") from error


class _PythonBackend:
    """A tokenizer of transformers that is Python code, such as one over tiktoken, with the methods of `tokenizers` that
    `Tokenizer` calls. Special tokens in a text are what its own code makes of them.
    """

    def __init__(self, words: Any):
        self._words = words

    def no_truncation(self) -> None: ...

    def no_padding(self) -> None: ...

    def to_str(self) -> str:
        return f"{type(self._words).__name__} {sorted(self.get_vocab().values())}"

    def token_to_id(self, token: str) -> int | None:
        found: int | None = self._words.convert_tokens_to_ids(token)  # that of the unknown token, for some
        return found if found is not None and self._words.convert_ids_to_tokens(found) == token else None

    def id_to_token(self, identity: int) -> str:
        return str(self._words.convert_ids_to_tokens(identity))

    def encode(self, text: str, *, add_special_tokens: bool) -> Any:
        return SimpleNamespace(ids=self._words.encode(text, add_special_tokens=add_special_tokens))

    def decode(self, ids: Sequence[int]) -> str:
        return str(self._words.decode(ids, skip_special_tokens=True))

    def get_vocab(self, *, with_added_tokens: bool = True) -> dict[Any, int]:
        return dict(self._words.get_vocab())

    def get_vocab_size(self, *, with_added_tokens: bool = True) -> int:
        return len(self._words)

"""Load networks with `transformers`, from a folder or the Hugging Face hub, for `likelihood.Scorer`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import torch

from gpas_cli.data.hub import offline_if_unreachable, unavailable
from gpas_cli.data.tokenizer import Tokenizer
from gpas_cli.errors import DataError, GpasError, first_line
from gpas_cli.evaluate.made import made_folder
from gpas_cli.evaluate.transformers_network import CausalNetwork, Encoder, TransformersNetwork
from gpas_cli.files import parse_json
from gpas_cli.spec.network import OTHERS, WEIGHTS, Network, digests, pin_of
from gpas_cli.train.precision import Precision, choose_device
from gpas_cli.words import byte_size

# Networks with these architectures are read as encoders: they have no head that predicts the next token.
_ENCODER = re.compile(
    r".*(?<!Head)(?<!Heads)Model|.*For(QuestionAnswering|MaskedLM|PreTraining|SequenceClassification|"
    r"TokenClassification|MultipleChoice|NextSentencePrediction)"
)


@dataclass(frozen=True)
class ExternalModel:
    """A network in a folder.

    source: the folder as it was named, or the hub's name. revision: the commit on the hub, "" for a folder. weights,
    files: digests of the weights, and of the configuration, the code and the tokenizer.
    """

    source: str
    folder: Path
    revision: str
    weights: str
    files: str

    @property
    def config(self) -> dict[str, Any]:
        """The content of config.json. Raises GpasError if it is not a JSON object."""
        path = self.folder / "config.json"
        try:
            found = parse_json(path.read_bytes().decode())
        except (OSError, ValueError) as error:
            raise GpasError(f"{path}: not the configuration of a network: {error}") from error
        if not isinstance(found, dict):
            raise GpasError(f"{path}: not the configuration of a network but a {type(found).__name__}")
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
        """Whether the network consists of code in the folder."""
        return bool(self.config.get("auto_map"))

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
    if not folder.is_dir():
        folder, commit = _download(source, revision)
    return _model_in(folder, source, commit)


def _model_in(folder: Path, source: str, commit: str = "") -> ExternalModel:
    """Return the network in a folder. Raises GpasError if there is none."""
    if not (folder / "config.json").is_file():
        raise GpasError(f"{source} has no config.json: it is not a folder that transformers loads (`gpas export`)")
    if not any(path.suffix in WEIGHTS for path in folder.iterdir()):
        raise GpasError(f"{source} has no weights (*{', *'.join(WEIGHTS)})")
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


def find_network(network: Network, root: Path, cache: Path, notify: Callable[[str], None]) -> ExternalModel:
    """Return the network that a cell names; `root` is the folder of experiments.yaml. `notify` gets what takes time.

    Raises GpasError as `find_model` does, and if the files of a folder are not those that are pinned.
    """
    _require_transformers()
    if network.hf:
        notify(f"looking for {network.hf}")
        folder, commit = _download(network.hf, network.revision)
        return _model_in(folder, network.hf, commit)
    if network.made:
        return _model_in(made_folder(network, cache, root, notify), network.made)
    if not (folder := network.folder(root)).is_dir():
        raise GpasError(f"there is no folder {folder}")
    found = _model_in(folder, str(folder))
    if found.pin != network.sha256:
        raise GpasError(
            f"the files of {found.source} are not those of the network: their digest is {found.pin}, pinned is "
            f"{network.sha256}; restore them, or pin the new ones with sha256"
        )
    return found


@dataclass(frozen=True)
class OpenedModel:
    """A loaded network with its tokenizer. `parameters`: their number. `positions`: as in `ExternalModel`."""

    network: TransformersNetwork
    precision: Precision
    tokenizer: Tokenizer
    parameters: int
    positions: int | None


def open_translator(model: ExternalModel) -> Any:
    """Return the network of transformers with an encoder and a decoder. Raises GpasError if it cannot be loaded."""
    import transformers
    from transformers.utils import logging

    logging.disable_progress_bar()
    try:
        kind = transformers.AutoModelForSeq2SeqLM
        loaded, found = kind.from_pretrained(model.folder, output_loading_info=True, local_files_only=True)
    except Exception as error:  # as in `open_model`
        raise GpasError(f"transformers cannot load {model.source}: {first_line(error)}") from error
    if wrong := sorted((*found["missing_keys"], *found["unexpected_keys"])):
        raise GpasError(f"{model.source}: its weights lack, or have besides, {', '.join(wrong[:3])}")
    return loaded.eval()


def open_model(model: ExternalModel, *, trust_code: bool = False, dtype: str = "stored") -> OpenedModel:
    """Load the network on the GPU, if there is one, and its tokenizer.

    `dtype`: fp32, bf16, or stored: weights in bfloat16 stay so, and others become float32. Raises GpasError if the
    folder has code and `trust_code` is false, or if it cannot be loaded or scored.
    """
    if model.has_code and not trust_code:
        raise GpasError(
            f"{model.source} contains the network's code; --trust-code, or trust_code: true in experiments.yaml, runs "
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
        words = transformers.AutoTokenizer.from_pretrained(model.folder, **options)
        half = next(loaded.parameters()).dtype == torch.bfloat16 if dtype == "stored" else dtype == "bf16"
        precision = Precision("pure_bf16" if half else "fp32", choose_device())
        placed = loaded.to(dtype=precision.weights, device=precision.device)
        network = Encoder(placed, model.source) if encoder else CausalNetwork(placed, model.source)
        tokenizer = _tokenizer(words, network.vocab, model.source)
    except GpasError:
        raise
    except Exception as error:
        # The code of a network may raise any exception, and so may its first forward pass under a wrong configuration.
        raise GpasError(
            f"transformers cannot load {model.source}: {type(error).__name__}: {first_line(error)}"
        ) from error
    parameters = sum(parameter.numel() for parameter in network.parameters())
    return OpenedModel(network, precision, tokenizer, parameters, model.positions)


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


def _tokenizer(words: Any, vocab: int, source: str) -> Tokenizer:
    """Return a tokenizer of transformers as ours. Raises GpasError if it has no counterpart."""
    if not getattr(words, "is_fast", False):
        raise GpasError(f"{source} has no tokenizer.json, and only those of the `tokenizers` library are read")
    begins = words("a").input_ids[:1] == [words.bos_token_id]
    try:
        return Tokenizer(words.backend_tokenizer, vocab, origin=source, start=(words.bos_token_id,) if begins else ())
    except DataError as error:
        raise GpasError(f"the tokenizer of {error}") from error

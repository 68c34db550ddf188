"""Tokenizers: a byte-level BPE trained on the corpus, T5's, GPT-2's, or the user's own tokenizer.json.

Ids are always below the model's vocabulary size. Special tokens never come from the text (a document with the
characters `</s>` is encoded as `<`, `/`, `s`, `>`), and no start token is added.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from gpas_cli.data import disk
from gpas_cli.data.corpora import Document, Notify, Source, Survey
from gpas_cli.errors import DataError, nearest
from gpas_cli.files import parse_json
from gpas_cli.structure import Frozen

if TYPE_CHECKING:
    from tokenizers import Encoding
    from tokenizers import Tokenizer as Backend


PAD, EOS, UNK = "<pad>", "</s>", "<unk>"
_OTHER_EOS = ("<|endoftext|>", "<eos>", "<|end_of_text|>", "[SEP]")
_SMALLEST_BPE = 259  # 256 bytes and three special tokens
# Merges are learned from at most this many bytes of the training text; more changes them little and takes longer.
_TRAINING_BYTES = 64_000_000
# Tokenizers of the Hugging Face hub, by the name of the setting: the repository that has their definition.
_HUB_REPOSITORIES = {"t5": "google-t5/t5-base", "gpt2": "openai-community/gpt2"}
_HUB_FILE = "tokenizer.json"
CONFIG = "tokenizer_config.json"
TOKENIZERS = ("bpe", *_HUB_REPOSITORIES)  # the settings that are no path
_RECIPE = "byte-bpe-1"
# Learning merges takes time quadratic in the length of a word: longer ones (encoded data) are divided.
_LONG = re.compile(r"\S{1000}")


def bytes_per_token(vocab: int) -> float:
    """Return about how many bytes of English text a token stands for: 2 with 512 ids, 4.4 with 32,000, 4.8 at most, as
    larger vocabularies are for several languages."""
    return max(1.0, 0.4 * (math.log2(min(vocab, 2**16)) - 4))


def id_bytes(vocab: int) -> int:
    """Return how many bytes an id of a vocabulary takes on disk."""
    return 2 if vocab <= 2**16 else 4


class _EncodedDocument(NamedTuple):
    """The ids of a document, end token included, and the UTF-8 bytes (`size`) of the text they stand for."""

    ids: list[int]
    size: int


class Tokenizer:
    """A `tokenizers` tokenizer bound to a model's vocabulary.

    `identity` is the sha256 of its definition; `eos_id` ends every document; `pad_id` fills short rows, and may be any
    id, as padding is masked by length. Ids not below the vocabulary size become `unk_id`. `start`: ids that stand
    before every text that the network is asked about; networks that are trained here have none. `first_id` stands
    before a text that has nothing else before it: `bos`, or without one the end token, as in lm-evaluation-harness.
    """

    def __init__(
        self,
        backend: Backend,
        vocab: int,
        *,
        origin: str,
        local: bool = False,
        start: tuple[int, ...] = (),
        bos: int | None = None,
        eos: int | None = None,
    ):
        """`local`: cutting the text after a word does not change the tokens before the cut. `bos`, `eos`: the first and
        the end token that its files declare; without `eos`, the end token is known by its name, or is `bos`.

        Raises DataError if the tokenizer has no end token, or ids that neither fit `vocab` nor can be replaced.
        """
        backend.no_truncation()
        backend.no_padding()
        self.backend = backend
        self.vocab = vocab
        self.origin = origin
        self.local = local
        self.start = start
        self.identity = hashlib.sha256(backend.to_str().encode()).hexdigest()
        # A setting of this program, not part of the definition: special tokens in the text are ordinary text.
        backend.encode_special_tokens = True
        by_name = next((one for one in map(self.id_of, (EOS, *_OTHER_EOS)) if one is not None), None)
        end = next((one for one in (eos, by_name, bos) if one is not None), None)
        if end is None:
            raise DataError(
                f"{origin} declares no end token, and has none of {', '.join((EOS, *_OTHER_EOS))} below {vocab}; "
                f'name it in {CONFIG} beside it: {{"eos_token": "..."}}'
            )
        self.eos_id = end
        self.first_id = end if bos is None else bos
        if end != by_name:
            self.identity = hashlib.sha256(f"{self.identity} {self.eos_id}".encode()).hexdigest()
        self.pad_id = self.id_of(PAD) or 0
        self.unk_id = self.id_of(UNK)
        size = backend.get_vocab_size(with_added_tokens=True)
        if size > vocab and self.unk_id is None:
            raise DataError(
                f"{origin} has {size} ids and the model's vocabulary only {vocab}, and there is no {UNK} below {vocab} "
                f"to replace the others; set size.vocab to {size}"
            )

    def encode(self, text: str) -> list[int]:
        """Return the ids of `text`, without `start` and without an end token."""
        return self._below(self.backend.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of `ids`, without special tokens."""
        return str(self.backend.decode(list(ids)))

    def encode_documents(self, texts: Sequence[str], limit: int | None = None) -> list[_EncodedDocument]:
        """Return the ids of each text and the end token, at most `limit` in all: later ids are dropped."""
        if limit is None:
            encodings = self.backend.encode_batch_fast(list(texts), add_special_tokens=False)
            return [self._whole(e, t) for e, t in zip(encodings, texts, strict=True)]
        heads = [_head(text, limit) if self.local else text for text in texts]
        # The fast variant returns no offsets, which are needed to find the text that the kept ids stand for.
        encodings = self.backend.encode_batch(heads, add_special_tokens=False)
        for i, encoding in enumerate(encodings):
            if len(encoding.ids) < limit - 1 and len(heads[i]) < len(texts[i]):
                # The tokenizer dropped some words, such as control characters: the head was too short.
                heads[i] = texts[i]
                encodings[i] = self.backend.encode(texts[i], add_special_tokens=False)
        return [self._cut(e, head, limit) for e, head in zip(encodings, heads, strict=True)]

    def id_of(self, token: str) -> int | None:
        """Return the id of a token by its name, None if there is none below the vocabulary size."""
        identity = self.backend.token_to_id(token)
        return identity if identity is not None and identity < self.vocab else None

    @property
    def first(self) -> str:
        """The token `first_id` and its id as text: "<s> (1)"."""
        return f"{self.backend.id_to_token(self.first_id)} ({self.first_id})"

    def special_ids(self) -> dict[str, int]:
        """Return the special ids by their names in `transformers`; without a padding token, the end token is used."""
        pad = self.id_of(PAD)
        ids = {"eos_token": self.eos_id}
        ids["pad_token"] = self.eos_id if pad is None else pad
        return ids if self.unk_id is None else {**ids, "unk_token": self.unk_id}

    def transformers_files(self, length: int) -> dict[str, str]:
        """Return the files with which `transformers.AutoTokenizer` is this tokenizer, for rows of `length`."""
        words = {name: self.backend.id_to_token(identity) for name, identity in self.special_ids().items()}
        config = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": length,
            "padding_side": "left",  # left: a batch of prompts is continued on the right
            "model_input_names": ["input_ids", "attention_mask"],
            "clean_up_tokenization_spaces": False,
            "split_special_tokens": True,
            **words,
        }
        return {"tokenizer.json": self.backend.to_str(pretty=True), CONFIG: json.dumps(config, indent=2)}

    def _whole(self, encoding: Encoding, text: str) -> _EncodedDocument:
        return _EncodedDocument([*self._below(encoding.ids), self.eos_id], _size(text))

    def _cut(self, encoding: Encoding, text: str, limit: int) -> _EncodedDocument:
        ids = encoding.ids[: limit - 1]
        kept = text if len(ids) == len(encoding.ids) else text[: encoding.offsets[len(ids) - 1][1]]
        return _EncodedDocument([*self._below(ids), self.eos_id], _size(kept))

    def _below(self, ids: list[int]) -> list[int]:
        if self._all_fit:
            return ids
        assert self.unk_id is not None
        return [i if i < self.vocab else self.unk_id for i in ids]

    @cached_property
    def _all_fit(self) -> bool:
        return max(self.backend.get_vocab(with_added_tokens=True).values()) < self.vocab


def make_tokenizer(
    setting: str, vocab: int, source: Source, survey: Survey, cache: Path, *, root: Path, notify: Notify
) -> Tokenizer:
    """Return the tokenizer of `data.tokenizer`: `bpe`, `t5`, `gpt2`, or the path of a tokenizer.json (from `root`).

    Trains or downloads it if necessary. Raises DataError if it is unavailable.
    """
    made = tokenizer_path(setting, vocab, source, survey, cache)
    if made is not None:
        if setting == "bpe":
            _train(made, vocab, source, notify)
        elif not made.is_file():
            _download(setting, made, notify)
        backend = _parse(made.read_bytes(), str(made))
        return Tokenizer(backend, vocab, origin=f"data.tokenizer: {setting}", local=True)
    path = root / Path(setting).expanduser()
    if not path.is_file():
        hint = nearest(setting, TOKENIZERS)
        raise DataError(f"data.tokenizer: '{setting}' is not one of {', '.join(TOKENIZERS)}, nor a file {path}; {hint}")
    backend = _parse(path.read_bytes(), str(path))
    return Tokenizer(backend, vocab, origin=str(path), eos=_declared_end(backend, vocab, path.with_name(CONFIG)))


def _declared_end(backend: Backend, vocab: int, config: Path) -> int | None:
    """Return the id of the `eos_token` of a tokenizer_config.json, None if it declares none or is not there.

    Raises DataError if the file cannot be read, or if the tokenizer does not have the token below `vocab`.
    """
    try:
        found = parse_json(config.read_bytes().decode()).get("eos_token")
    except FileNotFoundError:
        return None
    except (OSError, ValueError, AttributeError) as error:
        raise DataError(f"{config}: not the configuration of a tokenizer: {error}") from error
    name = found.get("content") if isinstance(found, dict) else found
    if name is None:
        return None
    identity = backend.token_to_id(name) if isinstance(name, str) else None
    if identity is None or identity >= vocab:
        raise DataError(f"{config}: eos_token: the tokenizer has no token {name!r} below {vocab}")
    return identity


def tokenizer_path(setting: str, vocab: int, source: Source, survey: Survey, cache: Path) -> Path | None:
    """Return the path in `cache` of a tokenizer that is trained or downloaded; None for the user's own file."""
    if setting == "bpe":
        recipe = {"recipe": _RECIPE, "vocab": vocab, "bytes": _TRAINING_BYTES, "text": source.normalisation}
        name = disk.digest({**recipe, "source": source.name, "fingerprint": survey.fingerprint})
    elif setting in _HUB_REPOSITORIES:
        name = disk.digest({"repository": _HUB_REPOSITORIES[setting], "file": _HUB_FILE})
    else:
        return None
    return cache / "tokenizers" / f"{name}.json"


def train_bpe(texts: Iterable[str], vocab: int) -> Backend:
    """Train a byte-level BPE of `vocab` ids: <pad>, </s>, <unk>, the 256 bytes, merges. It depends only on the text.

    Raises DataError if the vocabulary is too small for the bytes.
    """
    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders, models, pre_tokenizers, trainers

    if vocab < _SMALLEST_BPE:
        raise DataError(f"size.vocab: {vocab} is too small for a byte-level BPE; at least {_SMALLEST_BPE}")
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=[PAD, EOS, UNK],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    return backend


def _train(path: Path, vocab: int, source: Source, notify: Notify) -> None:
    if not path.is_file():
        with disk.locked(path.parent):
            if not path.is_file():
                notify(f"training a tokenizer of {vocab} ids on {source.title}")
                backend = train_bpe(_first(source.documents("train"), _TRAINING_BYTES), vocab)
                disk.write(path, backend.to_str(pretty=True).encode())


def _download(setting: str, path: Path, notify: Notify) -> None:
    from gpas_cli.data.hub import download

    repository = _HUB_REPOSITORIES[setting]
    notify(f"downloading {_HUB_FILE} of {repository}")
    disk.write(path, download(repository, _HUB_FILE, "main", kind="model").read_bytes())


def _parse(content: bytes, where: str) -> Backend:
    from tokenizers import Tokenizer as Backend

    try:
        return Backend.from_str(content.decode())
    except Exception as error:
        # `tokenizers` raises plain Exception for a definition it cannot read.
        raise DataError(f"{where}: not a tokenizer.json of the `tokenizers` library: {error}") from error


def _first(documents: Iterator[Document], budget: int) -> Iterator[str]:
    """Yield texts to learn merges from, until `budget` bytes are reached. The last one is not cut."""
    for document in documents:
        if budget <= 0:
            return
        budget -= _size(document.text)
        yield _LONG.sub(r"\g<0> ", document.text)


def _head(text: str, words: int) -> str:
    """Return `text` up to the end of its `words`-th word, with its white space unchanged.

    A word gives at least one token, so these words suffice, and the rest of a long document need not be encoded.
    """
    # With maxsplit the last item is the rest: its length gives the end of the head.
    pieces = text.split(maxsplit=words)
    return text[: len(text) - len(pieces[-1])].rstrip() if len(pieces) > words else text


def _size(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


class MaskToken(Frozen):
    """The token `name` of `data.tokenizer`."""

    tokenizer: str
    name: str


def absent_reason(token: MaskToken, cache: Path, root: Path) -> str:
    """Return why a tokenizer.json does not have the token; "" if it has, and for all other tokenizers."""
    path = root / Path(token.tokenizer).expanduser()
    try:
        definition = parse_json(path.read_text("utf-8"))
        model = definition.get("model", {}).get("vocab", ())
        pieces = {piece if isinstance(piece, str) else piece[0] for piece in model}
        names = pieces | {added["content"] for added in definition.get("added_tokens", ())}
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return ""  # loading the tokenizer reports what is wrong with it
    if token.name in names:
        return ""
    return no_such_token(token.tokenizer, f"'{token.name}'")


def no_such_token(tokenizer: str, token: str) -> str:
    """Return the error message for a tokenizer without the token of `objective.mask_token`."""
    remedy = "leave the setting out to use the last id of size.vocab"
    return f"objective.mask_token: {tokenizer} has no token {token}; {remedy}"

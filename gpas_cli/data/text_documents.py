"""The documents of the texts that trained networks are scored on, from the hub or from local files.

WikiText is prepared as perplexities by word are usually computed: its tokens are joined to ordinary text first (" @-@ "
to "-", " ." to "."), and words are counted before that.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from gpas_cli.data.files import Files
from gpas_cli.data.hub import load_rows
from gpas_cli.data.stdlib import Stdlib
from gpas_cli.errors import DataError, nearest
from gpas_cli.spec.downstream import KNOWN_TEXTS, KnownText, local_path
from gpas_cli.structure import Frozen

_SPLIT = "test"
_DIGEST_DIGITS = 12
_NUMBER = re.compile(r" @([-,.])@ ")
_BEFORE = re.compile(r" +([,.;:!?%)\]}])")  # a blank before these is removed
_AFTER = re.compile(r"([(\[{]) +")  # a blank after these is removed
_QUOTED = re.compile(r'" *([^"\n]*?) *"')
_ENDING = re.compile(r" ('(?:s|re|ve|ll|d|m)|n't)\b")
_HEADING = re.compile(r"(?<==) (?==)")


class TextDocument(Frozen):
    """One document: the text to predict after `context`, which may be empty, its words and its UTF-8 bytes."""

    context: str
    text: str
    words: int
    size: int


class ScoredText(Frozen):
    """The documents of one text. `digest`: of their content, 12 hexadecimal digits."""

    documents: tuple[TextDocument, ...]
    digest: str


def read_text(name: str, root: Path, limit: int = 0) -> ScoredText:
    """Return the documents of a text as `texts` names it, the first `limit` of them (0: all).

    Raises DataError if it cannot be read or is empty.
    """
    known = KNOWN_TEXTS.get(name)
    if known and not known.repo:
        raw = iter([document.text for document in Stdlib().documents("validation")])
    else:
        raw = _of_hub(known) if known else _of_files(local_path(name), root)
    chosen = list(islice(raw, limit or None))
    if not chosen:
        raise DataError(f"texts.texts: '{name}' has no document with text")
    content = hashlib.sha256()
    for one in chosen:
        content.update(hashlib.sha256(one.encode("utf-8", "surrogatepass")).digest())
    documents = tuple(_prepared(one, known) for one in chosen)
    return ScoredText(documents, content.hexdigest()[:_DIGEST_DIGITS])


def _prepared(raw: str, known: KnownText | None) -> TextDocument:
    if known is not None and known.scored == "last-word":
        context, _, word = raw.rstrip().rpartition(" ")
        return TextDocument(context, f" {word}", 1, len(f" {word}".encode()))
    text = joined(raw) if known is not None and known.name == "wikitext" else raw
    # The words of the document as it is stored: the length by which perplexities on WikiText are compared.
    return TextDocument("", text, max(1, len(raw.split())), len(raw.encode("utf-8", "surrogatepass")))


def _of_hub(known: KnownText) -> Iterator[str]:
    what = f"texts.texts: {known.name}: cannot load the split '{_SPLIT}' of {known.repo} from the Hugging Face hub"
    rows = load_rows(what, "name local files", path=known.repo, name=known.configuration, split=_SPLIT)
    if known.column not in rows.column_names:
        hint = nearest(known.column, rows.column_names)
        raise DataError(f"texts.texts: {known.name}: {known.repo} has no column '{known.column}'; {hint}")
    return (text for text in rows[known.column] if text and text.strip())


def _of_files(path: str, root: Path) -> Iterator[str]:
    try:
        for document in Files(path, "text", root).everything():
            if document.text.strip():
                yield document.text
    except DataError as error:
        raise DataError(
            str(error).replace("data.path", "texts.texts").replace("data.text_field", "texts.texts")
        ) from error


def joined(text: str) -> str:
    """Return tokenised text of WikiText as ordinary text: no blanks around hyphens, in numbers, quotes and brackets."""
    text = _NUMBER.sub(r"\1", text)
    text = _QUOTED.sub(r'"\1"', text)
    text = _AFTER.sub(r"\1", _BEFORE.sub(r"\1", text))
    text = _HEADING.sub("", _ENDING.sub(r"\1", text))
    return re.sub(r" *\n *", "\n", text)

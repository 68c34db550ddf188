"""The mask token that an objective takes from a tokenizer of the user's, looked up without loading the tokenizer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gpas_cli.files import parse_json


@dataclass(frozen=True)
class MaskToken:
    """The token `name` of `data.tokenizer`."""

    tokenizer: str
    name: str


def absent_reason(token: MaskToken, root: Path) -> str:
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

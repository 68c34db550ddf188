"""Content keys: a hash of a specification as canonical JSON."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

KEY_VERSION = "gpas-cell-1"


def digest(spec: Mapping[str, Any]) -> str:
    """Return the key of a specification: 16 hexadecimal digits."""
    return hashed(_text([KEY_VERSION, spec]))


def hashed(text: str) -> str:
    """Return the key of a specification's canonical text."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def text_around(spec: Mapping[str, Any], name: str) -> tuple[str, str]:
    """Return the canonical text before and after the value of `name`, which is neither the first nor the last name."""
    before = _text([KEY_VERSION, {other: value for other, value in spec.items() if other < name}])
    after = _text({other: value for other, value in spec.items() if other > name})
    return f"{before[:-2]},{_text(name)}:", f",{after[1:]}]"


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)

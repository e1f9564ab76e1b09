"""The test vectors of the present protocol version, with bytes for every "hex:..."."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dca_proto.protocol.params import PROTOCOL_VERSION

FILE = Path(__file__).parents[1] / "dca_proto" / "protocol" / "vectors" / f"v{PROTOCOL_VERSION}.json"
VECTORS = json.loads(FILE.read_text(encoding="utf-8"))


def parsed(value: Any) -> Any:
    """Return JSON with bytes for every "hex:..."."""
    if isinstance(value, str) and value.startswith("hex:"):
        return bytes.fromhex(value[4:])
    if isinstance(value, dict):
        return {name: parsed(item) for name, item in value.items()}
    return [parsed(item) for item in value] if isinstance(value, list) else value


def answer(what: str) -> tuple[dict[str, Any], Any]:
    """Return what is given for a key or hash, and what it must be."""
    (entry,) = [one for one in VECTORS["keys"] if one["what"] == what]
    return parsed(entry["given"]), parsed(entry["expected"])

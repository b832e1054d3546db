"""LoRA adapters of a simulated engine, which answers like vLLM with VLLM_ALLOW_RUNTIME_LORA_UPDATING. Pure.
An adapter computes like its base model; it differs in the KV blocks that a request may use, as with a salt. A source
that looks like a path must be a folder; a name counts as loaded.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import xxhash

from fleet.simengine.http.errors import ApiError


class Apart(bytes):
    """The fields that a request for an adapter, or with a salt, adds to KV events."""

    adapter = salt = ""


def content_of(data: bytes, adapter: str, salt: str) -> bytes:
    if not adapter and not salt:
        return data
    content = Apart(data)
    content.adapter, content.salt = adapter, salt
    return content


def keys_of(content: object) -> tuple[str, str]:
    """Return the adapter and the salt."""
    return (content.adapter, content.salt) if isinstance(content, Apart) else ("", "")


def seed_of(adapter: str, salt: str) -> int:
    """Return the seed for the hash chain of its blocks."""
    keys = f"{adapter}\0{salt}" if salt else adapter
    return xxhash.xxh64_intdigest(keys.encode()) if keys else 0


class Adapters:
    def __init__(self, slots: int) -> None:
        """Create an empty set. `slots` is 0 without LoRA."""
        self.slots = slots
        self.sources: dict[str, str] = {}  # sources by name

    def load(self, body: Mapping[str, Any]) -> str:
        """Load an adapter; return vLLM's answer. Raise ApiError."""
        name, source = body.get("lora_name"), body.get("lora_path")
        if not name or not source or not isinstance(name, str) or not isinstance(source, str):
            raise ApiError(400, "Both 'lora_name' and 'lora_path' must be provided.", kind="InvalidUserInput")
        if name in self.sources and not body.get("load_inplace"):
            raise ApiError(400, f"The lora adapter '{name}' has already been loaded.", kind="InvalidUserInput")
        if source.startswith(("/", ".")) and not Path(source).is_dir():
            raise ApiError(404, f"Loading lora {name} failed: No adapter found for {source}", kind="NotFoundError")
        self.sources[name] = source
        return f"Success: LoRA adapter '{name}' added successfully."

    def unload(self, body: Mapping[str, Any]) -> str:
        name = body.get("lora_name")
        if not isinstance(name, str) or not name:
            raise ApiError(400, "'lora_name' needs to be provided to unload a LoRA adapter.", kind="InvalidUserInput")
        if self.sources.pop(name, None) is None:
            raise ApiError(404, f"The lora adapter '{name}' cannot be found.", kind="NotFoundError")
        return f"Success: LoRA adapter '{name}' removed successfully."

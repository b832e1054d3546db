"""LoRA adapters of a simulated engine, which answers as vLLM does with VLLM_ALLOW_RUNTIME_LORA_UPDATING. Pure.

An adapter computes as its base model does: what differs is whose KV blocks a request may use. A source that looks like
a path must be a folder; a name is taken as loaded.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import xxhash

from fleet.simengine.http.errors import ApiError


class OfAdapter(bytes):
    """The content of a request for an adapter, as KV events carry it."""

    adapter = ""


def content_of(data: bytes, adapter: str) -> bytes:
    if not adapter:
        return data
    made = OfAdapter(data)
    made.adapter = adapter
    return made


def adapter_of(content: object) -> str:
    return content.adapter if isinstance(content, OfAdapter) else ""


def seed_of(adapter: str) -> int:
    """Begins the chain of its blocks."""
    return xxhash.xxh64_intdigest(adapter.encode()) if adapter else 0


class Adapters:
    def __init__(self, slots: int) -> None:
        """`slots`: 0 without LoRA."""
        self.slots = slots
        self.sources: dict[str, str] = {}  # by name

    def load(self, body: Mapping[str, Any]) -> str:
        """vLLM's answer. Raises ApiError."""
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

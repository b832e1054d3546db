"""Write published.json: KV events encoded with the structs of released engines.

`python -m router.tests.kv_events.encode_published WHEEL...` takes wheels of vLLM and SGLang and runs only the
definitions of their events, so that the engines need not be installed.
"""

import ast
import enum
import json
import sys
import typing
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

GOLDEN = Path(__file__).parent / "published.json"
TOKENS = list(range(32))
_CLASSES = ("EventBatch", "KVCacheEvent", "StorageMedium", "BlockStoredMetadata", "BlockStored", "BlockRemoved")
_ALL = (*_CLASSES, "BlockStoredWithMetadata", "AllBlocksCleared", "KVEventBatch")
_STORED = {"parent_block_hash": None, "token_ids": TOKENS, "block_size": 16, "lora_id": None, "medium": "GPU"}
_FULL = {"kv_cache_spec_kind": "full_attention"}

Fields = Mapping[str, Any]
VLLM: Fields = _STORED | _FULL | {"block_hashes": [b"a" * 32, b"b" * 32], "lora_name": None, "group_idx": 0}
SGLANG: Fields = _STORED | {"block_hashes": [-5, 6]}
# Per engine: the file that defines its events, the fields that all events have, and the extra fields of each case
ENGINES: Mapping[str, tuple[str, Fields, Mapping[str, Fields]]] = {
    "vllm": (
        "vllm/distributed/kv_events.py",
        VLLM,
        {
            "plain": {},
            "salted": {"extra_keys": [("tenant-a",), None]},
            "adapter": {"lora_name": "ad", "extra_keys": [("ad",), ("ad",)]},
            "sink": {"kv_cache_spec_kind": "sink_full_attention"},
            "window": {"group_idx": 1, "kv_cache_spec_kind": "sliding_window"},
            "window, masked": {"group_idx": 1, "kv_cache_spec_kind": "sliding_window", "block_hashes": [b"b" * 32]},
            "part": {
                "block_hashes": [b"c" * 32],
                "parent_block_hash": b"b" * 32,
                "token_ids": TOKENS[:8],
                "block_size": 8,
            },
            "store": {"medium": "cpu", "kv_cache_spec_kind": None},
            "removed": {},
        },
    ),
    "sglang": (
        "sglang/srt/disaggregation/kv_events.py",
        SGLANG,
        {
            "plain": {},
            "pinned": {"medium": "CPU_PINNED"},
            "remote": {"medium": "EXTERNAL"},
            "disk": {"medium": "DISK"},
            "salted": {"cache_salt": "tenant-a", "session_id": "s", "metadata": {"cache_salt": "tenant-a"}},
            "adapter": {"cache_salt": "tenant-a", "lora_name": "ad"},
            "removed": {},
        },
    ),
}


def definitions(source: str) -> dict[str, Any]:
    """Return the event classes, without the module's other imports."""
    tree = ast.parse(source)
    tree.body = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name in _ALL]
    names: dict[str, Any] = {"msgspec": msgspec, "enum": enum, "ExternalBlockHash": bytes | int, **vars(typing)}
    exec(compile(tree, "kv_events.py", "exec"), names)
    return names


def batch(names: Mapping[str, Any], case: str, fields: Fields) -> bytes:
    kind = "BlockRemoved" if case == "removed" else "BlockStored"
    if "metadata" in fields and "BlockStoredWithMetadata" in names:
        kind = "BlockStoredWithMetadata"
        fields = {**fields, "metadata": names["BlockStoredMetadata"](**fields["metadata"])}
    media = {medium.value: medium for medium in names.get("StorageMedium", ())}
    struct = names[kind]
    given = {**fields, "medium": media.get(fields["medium"], fields["medium"])}
    event = struct(**{name: value for name, value in given.items() if name in struct.__struct_fields__})
    return msgspec.msgpack.encode(names["KVEventBatch"](1.0, [event], 0))


def encoded(wheel: Path) -> dict[str, str]:
    """Return a release's batches in hex, by case."""
    with zipfile.ZipFile(wheel) as archive:
        path, common, cases = next(engine for engine in ENGINES.values() if engine[0] in archive.namelist())
        names = definitions(archive.read(path).decode())
    return {case: batch(names, case, {**common, **fields}).hex() for case, fields in cases.items()}


def main(wheels: list[str]) -> None:
    golden = {" ".join(Path(wheel).name.split("-")[:2]): encoded(Path(wheel)) for wheel in wheels}
    GOLDEN.write_text(json.dumps(golden, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])

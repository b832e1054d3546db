"""Write played_sglang.json: run requests through SGLang's own radix cache; record its events and its hits.

Run `python play_sglang.py WHEEL` in an environment with the CPU build of PyTorch and the packages that
`sglang.srt.managers.schedule_batch` imports (SGLang itself needs a GPU's packages). It takes a minute. Requests share
beginnings, come one after another, some with a salt, and evict each other.
"""

import base64
import json
import random
import sys
import tempfile
import unittest
import zipfile
import zlib
from array import array
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

GOLDEN = Path(__file__).parent / "played_sglang.json"
SALT = "tenant-a"
WINDOW = 64  # tokens
# Kinds of layers, tokens per page
MODELS = {
    "full": (("FULL",), 16),
    "full, pages of one token": (("FULL",), 1),
    "full, window": (("FULL", "SWA"), 16),
    "full, state": (("FULL", "MAMBA"), 16),
}


class Player:
    """The cache of one engine without a model, built as SGLang's own tests build it."""

    def __init__(self, kinds: Sequence[str], page: int) -> None:
        from sglang.srt.mem_cache import base_prefix_cache, radix_cache
        from sglang.srt.mem_cache.unified_cache.components.base import ComponentType
        from sglang.test.kits.unified_radix_cache import config, fixtures, mixins

        fixtures.get_device = lambda: "cpu"
        fixtures.TREE_CORE_TEST_BACKEND = "python"
        self.params, self.key = base_prefix_cache, radix_cache.RadixKey
        self.page, self.window, self.swa = page, "SWA" in kinds, ComponentType.SWA
        made = config.CacheConfig(
            page_size=page,
            components=tuple(ComponentType[kind] for kind in kinds),
            sliding_window_size=WINDOW if self.window else None,
            enable_mamba_extra_buffer=True,
            mamba_cache_size=300,
            max_num_reqs=200,
            kv_size=3072 if self.window else 1536,
            max_context_len=1024,
        )
        self.cache, self.allocator, self.requests = fixtures.build_fixture(made, enable_kv_cache_events=True)
        self.fixtures, self.states = mixins.UnifiedRadixCacheFixtures(), "MAMBA" in kinds
        self.fixtures.cfg = made

    def hit(self, tokens: Sequence[int], salt: str) -> int:
        """Return the number of cached tokens of the prompt; the engine always computes at least one."""
        key = self.key(array("q", tokens[:-1]), cache_salt=salt or None)
        return int(self.cache.match_prefix(self.params.MatchPrefixParams(key=key)).device_prefix_len)

    def make_room(self, tokens: int) -> None:
        while self._free() < tokens:
            self.cache.evict(self.params.EvictParams(num_tokens=tokens, swa_num_tokens=tokens if self.window else 0))

    def _free(self) -> int:
        if not self.window:
            return int(self.allocator.available_size())
        return int(min(self.allocator.full_available_size(), self.allocator.swa_available_size()))

    def keep(self, tokens: Sequence[int], salt: str) -> None:
        """Cache the complete pages; of windows and states, only those that the next token needs."""
        whole = len(tokens) // self.page * self.page
        value = self.fixtures._alloc(self.allocator, whole)
        key = self.key(array("q", tokens[:whole]), cache_salt=salt or None)
        given = self.params.InsertParams(key=key, value=value)
        if self.window and (gone := max(0, (whole - WINDOW) // self.page * self.page)):
            self.allocator.free_swa(value[:gone])
            given.set_evicted_seqlen(self.swa, gone)
        if self.states:
            given.mamba_value = self.fixtures._make_req(self.requests).kv.mamba_pool_idx.unsqueeze(0)
        self.cache.insert(given)


def played(kinds: Sequence[str], page: int, seed: int) -> list[list[Any]]:
    """Return the record, in order: "events" with a batch, or "request" with its tokens, salt and hit."""
    import msgspec
    from play_managers import prompts  # play_managers.py is in the same folder
    from sglang.srt.disaggregation.kv_events import KVEventBatch

    draw, player, log = random.Random(seed), Player(kinds, page), list[list[Any]]()
    for tokens in prompts(draw):
        salt = SALT if draw.random() < 0.3 else ""
        answer = [draw.randrange(3) for _ in range(draw.randrange(1, 40))]
        player.make_room(2 * (len(tokens) + len(answer)) + page)
        log.append(["events", player.cache.take_events()])
        log.append(["request", tokens, salt, player.hit(tokens, salt)])
        player.keep(tokens, salt)
        player.keep(tokens + answer, salt)
        log.append(["events", player.cache.take_events()])
    encode = msgspec.msgpack.encode
    batches = (
        [kind, encode(KVEventBatch(ts=1.0, events=rest[0]))] if kind == "events" else [kind, *rest]
        for kind, *rest in log
    )
    return list(batches)


def main(wheel: str) -> None:
    import msgspec

    made = ModuleType("sglang.test.test_utils")  # the real module's imports load datasets
    made.CustomTestCase = unittest.TestCase  # type: ignore[attr-defined]
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
        sys.path.insert(0, folder)
        sys.modules[made.__name__] = made
        logs = {name: played(kinds, page, seed=1) for name, (kinds, page) in MODELS.items()}
    encode = msgspec.msgpack.encode
    golden = {name: base64.b85encode(zlib.compress(encode(log), 9)).decode() for name, log in logs.items()}
    GOLDEN.write_text(json.dumps(golden, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])

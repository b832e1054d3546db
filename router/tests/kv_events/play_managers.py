"""Write played.json: run requests through vLLM's own KV cache manager; record its events and its hits.

`.engines/bin/python router/tests/kv_events/play_managers.py [FILE]` runs no model and takes seconds. Requests share
beginnings, run side by side, generate answers, are computed in chunks and evict each other.

With the unpacked wheel of vLLM 0.33 on PYTHONPATH it writes played_ahead.json: in that version, the hashes of a
speculating engine's blocks cover the next token as well.
"""

import base64
import json
import math
import random
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from inspect import signature
from pathlib import Path
from typing import Any

GOLDEN = Path(__file__).parent / "played.json"
GOLDEN_AHEAD = Path(__file__).parent / "played_ahead.json"
REQUESTS = 36
CHUNK = 96  # tokens computed in one step
AT_ONCE = 3
BLOCKS = 60  # blocks in the cache


def names_ahead() -> bool:
    """Return whether a speculating vLLM hashes the next token into its blocks' names, as since 0.33."""
    from vllm.v1.core.kv_cache_manager import KVCacheManager

    return "num_hash_lookahead_tokens" in signature(KVCacheManager).parameters


def specs() -> Mapping[str, Callable[..., Any]]:
    import torch
    from vllm.v1 import kv_cache_interface as kv

    heads = {"num_kv_heads": 1, "head_size": 8, "dtype": torch.float16}
    state = {"shapes": ((8,),), "dtypes": (torch.float16,), "mamba_cache_mode": "align"}
    return {
        "full": lambda size: kv.FullAttentionSpec(block_size=size, **heads),
        "window": lambda size, tokens: kv.SlidingWindowSpec(block_size=size, sliding_window=tokens, **heads),
        "chunk": lambda size, tokens: kv.ChunkedLocalAttentionSpec(
            block_size=size, attention_chunk_size=tokens, **heads
        ),
        "state": lambda size: kv.MambaSpec(block_size=size, **state),
    }


# Groups of layers in the engine's order: kind, block size in tokens, and window or chunk in tokens
MODELS: Mapping[str, Sequence[tuple[Any, ...]]] = {
    "full": [("full", 16)],
    "full, window": [("full", 16), ("window", 16, 40)],
    "windows, full": [("window", 16, 64), ("window", 16, 64), ("full", 16)],
    "two windows, full": [("window", 16, 20), ("full", 16), ("window", 16, 100)],
    "coarse window": [("full", 16), ("window", 32, 70)],
    "fine window": [("full", 32), ("window", 16, 70)],
    "two full": [("full", 16), ("full", 16), ("window", 16, 40)],
    "states, full": [("state", 32), ("state", 32), ("full", 32)],
    "full, state, window": [("full", 16), ("state", 16), ("window", 16, 40)],
    "full, chunk": [("full", 16), ("chunk", 16, 64)],
    "window only": [("window", 16, 60)],
    "two windows only": [("window", 16, 30), ("window", 16, 90)],
    "full; images": [("full", 16)],
    "full; EAGLE": [("full", 16)],
    "full, window; EAGLE": [("full", 16), ("window", 16, 40)],
    "full, window; MTP": [("full", 16), ("window", 16, 40)],
    "two windows, full; EAGLE": [("window", 16, 20), ("full", 16), ("window", 16, 100)],
    "coarse window; EAGLE": [("full", 16), ("window", 32, 70)],
    "fine window; EAGLE": [("full", 32), ("window", 16, 70)],
    "fine window; MTP": [("full", 32), ("window", 16, 70)],
    "states, full; MTP": [("state", 32), ("state", 32), ("full", 32)],
    "full, state; MTP": [("full", 16), ("state", 16)],
    "full, state, window; MTP": [("full", 16), ("state", 16), ("window", 16, 40)],
    "window only; EAGLE": [("window", 16, 60)],
}
# Groups whose last matching block the engine computes again for the drafter: those with full attention, or all
MTP, EAGLE = "; MTP", "; EAGLE"
IMAGES = "; images"  # each conversation has one of two images, always at the same place
IMAGE = (25, 37)  # index of its first token, number of tokens


class Player:
    """The cache of one engine, without a model."""

    def __init__(self, groups: Sequence[tuple[Any, ...]], blocks: int, drafts: str = "") -> None:
        from vllm.utils.hashing import sha256
        from vllm.v1.core import kv_cache_manager, kv_cache_utils
        from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec

        made = specs()
        kinds = [made[kind](*rest) for kind, *rest in groups]
        sizes = [size for _, size, *_ in groups]
        self.size, self.states = math.lcm(*sizes), any(kind == "state" for kind, *_ in groups)
        kv_cache_utils.init_none_hash(sha256)
        config = KVCacheConfig(
            num_blocks=blocks,
            kv_cache_tensors=[],
            kv_cache_groups=[
                KVCacheGroupSpec([f"layer {n}"], kind, is_eagle_group=drafts == MTP and groups[n][0] == "full")
                for n, kind in enumerate(kinds)
            ],
        )
        ahead = {"num_hash_lookahead_tokens": 1} if drafts and names_ahead() else {}
        self.drops = self.size if drafts and not ahead else 0
        speculates = {"use_eagle": not ahead, "num_prefill_lookahead": 1, **ahead} if drafts else {}
        self.manager = kv_cache_manager.KVCacheManager(
            *(config, 8192, self.size, math.gcd(*sizes)), enable_caching=True, enable_kv_cache_events=True, **speculates
        )
        self.hasher = kv_cache_utils.get_request_block_hasher(math.gcd(*sizes), sha256, **ahead)

    def request(self, name: str, tokens: list[int], image: str = "") -> Any:
        from vllm import SamplingParams
        from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
        from vllm.v1.request import Request

        seen = [MultiModalFeatureSpec(None, "image", image, PlaceholderRange(*IMAGE))] if image else None
        return Request(name, tokens, SamplingParams(max_tokens=64), None, mm_features=seen, block_hasher=self.hasher)

    def chunk(self, request: Any) -> int:
        """Return the tokens to compute next; a step that stores states must end at the end of a block."""
        left = request.num_tokens - request.num_computed_tokens
        start, size = request.num_computed_tokens, self.size
        end, last = start + min(left, CHUNK), request.num_tokens // size * size - self.drops
        if self.states and left > 1 and start < last:
            end = min(last, max(end // size * size, start + size))
        return int(end - start)

    def begin(self, request: Any) -> int:
        """Begin a request. Return how many tokens of its prompt were cached."""
        blocks, hit, *more = self.manager.get_computed_blocks(request)
        if more:
            request.shared_prefix_boundary = more[0]
        request.num_computed_tokens = hit
        new = self.chunk(request)
        request.num_computed_tokens = 0
        if self.manager.allocate_slots(request, new, hit, blocks) is not None:
            request.num_computed_tokens = hit + new
        return int(hit)

    def answer(self, request: Any, left: int, draw: random.Random) -> int:
        """Compute one step of a request. Return the number of tokens that its answer still lacks."""
        new = self.chunk(request)
        if not request.num_computed_tokens or (new and self.manager.allocate_slots(request, new) is None):
            self.manager.free(request)  # no block is left for it
            return 0
        request.num_computed_tokens += new
        if request.num_computed_tokens < request.num_tokens:
            return left
        if left == 1:
            self.manager.free(request)
        else:
            request.append_output_token_ids(draw.randrange(3))
        return left - 1


def prompts(draw: random.Random) -> Iterator[tuple[int, list[int]]]:
    """Return numbered conversations that grow, or that start again from a shared beginning."""
    shared = [[draw.randrange(3) for _ in range(draw.randrange(20, 200))] for _ in range(4)]
    open_ones: list[tuple[int, list[int]]] = []
    for begun in range(REQUESTS):
        if open_ones and draw.random() < 0.6:
            number, talk = open_ones[draw.randrange(len(open_ones))]
            talk += [draw.randrange(3) for _ in range(draw.randrange(5, 90))]
        else:
            talk = draw.choice(shared)[: draw.randrange(20, 200)] + [draw.randrange(3) for _ in range(30)]
            number = begun
            open_ones.append((number, talk))
        if len(talk) > 450:
            open_ones = [one for one in open_ones if one[1] is not talk]
        yield number, list(talk)


def shown(number: int, tokens: list[int]) -> str:
    """Put a conversation's image into its prompt, if it fits; return its name."""
    start, length = IMAGE
    if len(tokens) < start + length:
        return ""
    tokens[start : start + length] = [3] * length
    return ("cat", "dog")[number % 2]


def played(model: str, seed: int) -> list[list[Any]]:
    """Return the record, in order: "events" with a batch, or "request" with its tokens, image and hit."""
    groups, images = MODELS[model], IMAGES in model
    drafts = next((each for each in (MTP, EAGLE) if each in model), "")
    draw, player, log = random.Random(seed), Player(groups, BLOCKS * len(groups), drafts), list[list[Any]]()
    waiting, running = prompts(draw), dict[Any, int]()
    for number in range(10_000):
        if len(running) < AT_ONCE and (asked := next(waiting, None)) is not None:
            talk, tokens = asked
            image = shown(talk, tokens) if images else ""
            request = player.request(str(number), tokens, image)
            player.manager.new_step_starts()
            hit = player.begin(request)
            log.append(["request", tokens, *([[[*IMAGE, image]]] if image else []), hit])
            running[request] = draw.randrange(1, 40)
        if not running:
            break
        player.manager.new_step_starts()
        for request in list(running):
            running[request] = player.answer(request, running[request], draw)
        running = {request: left for request, left in running.items() if left}
        if events := player.manager.take_events():
            log.append(["events", events])
    return log


def packed(log: list[list[Any]]) -> str:
    import msgspec
    from vllm.distributed.kv_events import KVEventBatch

    encode = msgspec.msgpack.encode
    lines = [[kind, encode(KVEventBatch(1.0, *rest))] if kind == "events" else [kind, *rest] for kind, *rest in log]
    return base64.b85encode(zlib.compress(encode(lines), 9)).decode()


def main(path: str = "") -> None:
    ahead = names_ahead()
    names = [name for name in MODELS if not ahead or name.endswith((MTP, EAGLE))]
    golden = {name: packed(played(name, seed=1)) for name in names}
    Path(path or (GOLDEN_AHEAD if ahead else GOLDEN)).write_text(json.dumps(golden, indent=1) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])

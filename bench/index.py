"""Cost of the exact prefix index: `python -m bench.index [--blocks 10000000]`.

Memory per block of 100 instances that share nothing (the worst case), then the CPU time of storing, removing, decoding
and looking up, and of tokenising: by the sim's tokenizer and by a byte-level BPE trained here (all threads together).
Prompts of 4 KB and of 80 KB (20,000 tokens). Medians; the garbage collector is off. In the end the calls of our
functions that it takes to learn by what rule engines speculate.
"""

import argparse
import gc
import json
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import msgpack

from router.kv_events.batch import decode
from router.prefix.blocks import block_hashes
from router.prefix.exact.index import ExactIndex
from router.tests.prefix.test_asked_rules import learning
from router.tokenize.prompt import read
from router.tokenize.sim import SimTokenizer
from router.tokenize.tokenizer import Tokenizer

SIZE = 16  # tokens per block
WIDTH = SIZE * 4
INSTANCES = 100
CHUNK = 512  # blocks per event
SIZES = {"4 KB": 4_096, "80 KB": 81_920}
CHAT = "/v1/chat/completions"


def measured(call: Callable[[], object], rounds: int, clock: Callable[[], int] = time.thread_time_ns) -> float:
    """Return the median in µs."""
    times = []
    gc.disable()
    for _ in range(rounds):
        began = clock()
        call()
        times.append(clock() - began)
    gc.enable()
    return sorted(times)[rounds // 2] / 1e3


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4_096


def filled(blocks: int, rng: random.Random) -> ExactIndex:
    gc.collect()
    before = resident_bytes()
    index = ExactIndex(seed=rng.getrandbits(64))
    for number in range(INSTANCES):
        index.limit(f"demo-{number}", blocks // INSTANCES)
    worst_s = 0.0
    for number in range(blocks // CHUNK):
        names = [rng.getrandbits(64) for _ in range(CHUNK)]
        tokens = rng.randbytes(CHUNK * WIDTH)
        began = time.thread_time()
        index.store(f"demo-{number % INSTANCES}", names, None, tokens, SIZE)
        worst_s = max(worst_s, time.thread_time() - began)
    held = len(index)
    print(f"{held:,} blocks on {INSTANCES} instances: {(resident_bytes() - before) / 1e6:,.0f} MB resident,", end=" ")
    print(
        f"{(resident_bytes() - before) / held:.0f} bytes a block; by its own count {index.bytes / held:.0f};", end=" "
    )
    print(f"the longest of {CHUNK} at once: {worst_s * 1e3:.0f} ms")
    return index


def events(index: ExactIndex, rng: random.Random) -> None:
    names = [[rng.getrandbits(64) for _ in range(CHUNK)] for _ in range(100)]
    texts = [rng.randbytes(CHUNK * WIDTH) for _ in names]
    stored, removed = [], []
    for chain, tokens in zip(
        names, texts, strict=True
    ):  # removes as many blocks as are stored, from chain ends, like a full cache
        stored.append(measured(lambda: index.store("demo-0", chain, None, tokens, SIZE), 1))  # noqa: B023
        removed.append(measured(lambda: index.drop("demo-0", chain[::-1]), 1))  # noqa: B023
    for what, times in (("store", stored), ("remove", removed)):
        print(f"{what}, per block of {CHUNK}: {sorted(times)[50] / CHUNK:.2f} µs, at best {min(times) / CHUNK:.2f}")
    ids = list(range(50_000, 50_000 + CHUNK * SIZE))
    event = {"type": "BlockStored", "block_hashes": names[0], "parent_block_hash": None, "token_ids": ids}
    payload = msgpack.packb([1.0, [{**event, "block_size": SIZE, "medium": "GPU"}], 0])
    print(f"decode, per block: {measured(lambda: decode(payload), 100) / CHUNK:.2f} µs")


def lookups(index: ExactIndex, rng: random.Random) -> None:
    for name, size in SIZES.items():
        prompt = rng.randbytes(size)
        hashes = block_hashes(prompt, SIZE, index.seed)
        for number in range(50):  # half of the pool holds a system prompt, one instance the whole prompt
            upto = len(hashes) if number == 0 else min(128, len(hashes) // 4)
            index.store(
                f"demo-{number}", [rng.getrandbits(64) for _ in range(upto)], None, prompt[: upto * WIDTH], SIZE
            )
        hashing = measured(lambda prompt=prompt: block_hashes(prompt, SIZE, index.seed), 500)  # type: ignore[misc]
        looking = measured(lambda hashes=hashes: index.match(hashes, SIZE), 500)  # type: ignore[misc]
        print(f"{name}: hash {hashing:.0f} µs, look up {looking:.0f} µs")


def asking() -> None:
    for instances in (1, 8, 100):
        looked_up, asked, learnt = learning(instances, 64)
        print(
            f"64 requests to {instances} that speculate: {looked_up} calls to look up, {asked} to ask; {learnt} learn"
        )


def tokenising() -> None:
    source = " ".join(f"{word} of the weir" for word in range(30_000))
    with tempfile.TemporaryDirectory() as folder:
        for title, tokenizer in (("sim", SimTokenizer()), ("trained BPE", trained(Path(folder), source))):
            for name, size in SIZES.items():
                print(f"tokenise by {title}, {name}: {growing(tokenizer, source[:size])}")


def growing(tokenizer: Tokenizer, text: str) -> str:
    """Tokenise a new prompt, the same again, and its next turn, a tenth longer."""
    messages = [{"role": "user", "content": text[start : start + 2_048]} for start in range(0, len(text), 2_048)]
    turns = [messages, messages, [*messages, {"role": "user", "content": "and " + text[: len(text) // 10]}]]
    prompts = [read(json.dumps({"messages": turn}).encode(), CHAT) for turn in turns]
    clock = time.process_time_ns
    times = [measured(lambda prompt=prompt: tokenizer.tokens(prompt, CHAT), 1, clock) for prompt in prompts]  # type: ignore[misc]
    return ", ".join(f"{what} {took:,.0f} µs" for what, took in zip(("first", "again", "grown"), times, strict=True))


def trained(folder: Path, source: str) -> Tokenizer:
    from tokenizers import Tokenizer as Trained
    from tokenizers import models, pre_tokenizers, trainers

    from router.tokenize.folder import FolderTokenizer

    made = Trained(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    special = ["<|im_start|>", "<|im_end|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        [source[:100_000]],
        trainers.BpeTrainer(vocab_size=2_000, special_tokens=special, initial_alphabet=alphabet, show_progress=False),
    )
    made.save(str(folder / "tokenizer.json"))
    template = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>"
    (folder / "chat_template.jinja").write_text(template)
    return FolderTokenizer(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description="Cost of the exact prefix index")
    parser.add_argument("--blocks", type=int, default=10_000_000)
    options = parser.parse_args()
    rng = random.Random(1)
    index = filled(options.blocks, rng)
    events(index, rng)
    lookups(index, rng)
    tokenising()
    asking()


if __name__ == "__main__":
    main()

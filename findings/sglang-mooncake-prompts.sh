#!/usr/bin/env bash
# SGLang's benchmark client plays a prompt of a Mooncake trace with less than a third of its tokens.
#
# Expected before the run: 1,300 tokens a row, as input_length says, of which two rows share two blocks of 512. Seen: the
# client writes each id of a block and then the word "hi" 128 times, whatever input_length says: 400 tokens, of which 258
# are shared, and 14 where a row has no ids, which it takes without a word; its arrivals and output lengths are right. So
# caches that overflow under the trace need not overflow under its replay.
# The function is the wheel's own, over words for tokens. A download of 39 MB; no GPU.
set -euo pipefail
VERSION=0.5.23
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
timeout 300 python3 -m pip --quiet --disable-pip-version-check --no-input download --no-deps --only-binary :all: --dest . \
  "sglang==$VERSION" 2>/dev/null
python3 -m zipfile -e sglang-*.whl .
cat > play.py <<'PY'
import asyncio
import re
import sys
import types

LATER = {"transformers": "PreTrainedTokenizerBase", "sglang.benchmark.utils": "download_and_cache_file"}
for name, part in LATER.items():  # what the function does not need
    sys.modules[name] = types.ModuleType(name)
    setattr(sys.modules[name], part, None)
common = sys.modules["sglang.benchmark.datasets.common"] = types.ModuleType("common")
common.MOONCAKE_DATASET_URL, common.BaseDataset, common.DatasetRow = {}, object, types.SimpleNamespace
for name in ("sglang", "sglang.benchmark", "sglang.benchmark.datasets"):  # without their own first lines
    module = sys.modules[name] = types.ModuleType(name)
    module.__path__ = [name.replace(".", "/")]
from sglang.benchmark.datasets.mooncake import get_mooncake_request_over_time

ROWS = [
    {"timestamp": 0, "input_length": 1300, "output_length": 10, "hash_ids": [0, 1, 2]},
    {"timestamp": 3000, "input_length": 1300, "output_length": 10, "hash_ids": [0, 1, 3]},
    {"timestamp": 3000, "input_length": 1300, "output_length": 10},
]
WORDS = types.SimpleNamespace(encode=lambda text: re.findall(r"\d+|[A-Za-z]+|[^\w\s]", text))


def shared(one, other):
    """Length of the common beginning."""
    return next((place for place, (a, b) in enumerate(zip(one, other)) if a != b), min(len(one), len(other)))


async def play():
    began, prompts = asyncio.get_running_loop().time(), []
    async for row in get_mooncake_request_over_time(ROWS, WORDS, 1.0, 1):
        prompts.append(WORDS.encode(row.prompt))
        print(f"  after {asyncio.get_running_loop().time() - began:.0f} s:", row.prompt_len, "tokens of 1300")
    return prompts


first, second, bare = asyncio.run(play())
common = shared(first, second) - 5  # the first five are "user: Round 1:"
print("  shared by the first two:", common, "of 1024")
sys.exit(0 if (len(first), len(second), len(bare), common) == (400, 400, 14, 258) else "CHANGED: other lengths")
PY
echo "version: sglang $VERSION"
timeout 60 python3 play.py
echo "As seen: short prompts."

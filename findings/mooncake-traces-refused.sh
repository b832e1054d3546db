#!/usr/bin/env bash
# AIPerf and Dynamo, both NVIDIA's, each refuse a Mooncake trace that the other one plays.
#
# Expected before the run: whoever reads Mooncake's format takes each file that another reader takes. Seen: a row whose
# hash_ids cover only its beginning (2,048 tokens, one id of 512) is a prompt with a tail of its own to AIPerf and an error
# to Dynamo's mocker; an id that ends one prompt within its block and another behind it is an error to AIPerf and a shared
# block to Dynamo. The format names no block size and no reader, so a trace does not say for which it was made.
# AIPerf's function is the wheel's own, over a corpus of numbers. A download of 80 MB; no GPU.
set -euo pipefail
AIPERF=0.13.0
DYNAMO=1.6.1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
pip() { timeout 400 python3 -m pip --quiet --disable-pip-version-check --no-input "$@" 2>/dev/null; }
pip install --no-deps --no-compile --target packages "ai-dynamo-runtime==$DYNAMO"
pip download --no-deps --only-binary :all: --dest . "aiperf==$AIPERF"
cat > play.py <<'PY'
import ast
import json
import random
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace

from dynamo._core import run_mocker_trace_replay

(wheel,) = Path().glob("aiperf-*.whl")
source = ast.parse(zipfile.ZipFile(wheel).read("aiperf/dataset/generator/prompt.py").decode())
names = {"sample_tokens_from_corpus", "_build_token_sequence"}
functions = [node for node in ast.walk(source) if isinstance(node, ast.FunctionDef) and node.name in names]
assert {node.name for node in functions} == names
scope = {"ConfigurationError": ValueError}
exec(compile(ast.Module(functions, []), "prompt.py", "exec"), scope)


def by_aiperf(rows):
    """Tokens that the second prompt shares with the first, or the error."""
    draw = random.Random(1)
    seeded = SimpleNamespace(reseed_for_hash_id=draw.seed, randrange=draw.randrange)
    corpus, drawn = list(range(100_000)), random.Random(2)
    generator = SimpleNamespace(
        _cache={}, _tokenized_corpus=corpus, _hash_id_corpus_rng=seeded,
        tokenizer=SimpleNamespace(block_separation_token_id=None),
        _sample_tokens=lambda tokens: [drawn.randrange(100_000) for _ in range(tokens)],
    )
    try:
        prompts = [scope["_build_token_sequence"](generator, row["input_length"], row["hash_ids"], 512) for row in rows]
    except ValueError as error:
        return str(error)
    assert [len(prompt) for prompt in prompts] == [row["input_length"] for row in rows]
    first, second = prompts
    return next((at for at, (one, other) in enumerate(zip(first, second)) if one != other), min(len(first), len(second)))


def by_dynamo(rows):
    Path("trace.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    try:
        summary = run_mocker_trace_replay(["trace.jsonl"], trace_block_size=512).summary
    except Exception as error:
        return str(error)
    return round(summary["prefix_cache_reused_ratio"] * summary["total_input_tokens"])


def row(at_ms, tokens, ids):
    return {"timestamp": at_ms, "input_length": tokens, "output_length": 4, "hash_ids": ids}


CASES = {
    "ids of the beginning only": [row(0, 2048, [1]), row(1000, 2048, [1])],
    "one id within and at the end of its block": [row(0, 700, [1, 2]), row(1000, 1024, [1, 2])],
    "ids of all whole blocks": [row(0, 1024, [1, 2]), row(1000, 1536, [1, 2, 3])],
}
seen = []
for says, rows in CASES.items():
    found = by_aiperf(rows), by_dynamo(rows)
    print(f"{says}:\n  AIPerf: {found[0]}\n  Dynamo: {found[1]}")
    seen.append(tuple(one if isinstance(one, int) else "refused" for one in found))
as_seen = [(512, "refused"), ("refused", 640), (1024, 1024)]
sys.exit(0 if seen == as_seen else f"CHANGED: {seen}")
PY
echo "versions: aiperf $AIPERF, ai-dynamo-runtime $DYNAMO"
PYTHONPATH=packages timeout 100 python3 play.py 2>log || { tail -n 3 log; exit 1; }
echo "As seen: each refuses what the other plays."

#!/usr/bin/env bash
# GuideLLM plays Mooncake's traces a thousand times too slowly: it takes their milliseconds for seconds.
#
# Expected before the run: two rows with timestamps 0 and 3000, as in Mooncake's public files, are sent three seconds
# apart, as AIPerf and SGLang send them. Seen: the format named `mooncake` hands the number on as it is, and the
# strategy waits 3,000 s; an hour's trace takes six weeks, and no option names a unit (time_scale=0.001 helps). Ended by a
# limit of time, a run has the first burst, then an idle engine. Blocks and lengths of prompts are right.
# The classes are the wheel's own, over numbers for tokens. A download of 20 MB; no GPU.
set -euo pipefail
VERSION=0.8.1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
pip() { timeout 300 python3 -m pip --quiet --disable-pip-version-check --no-input "$@" 2>/dev/null; }
pip install --no-compile --target packages numpy==2.4.6 pydantic-settings==2.16.3
pip download --no-deps --only-binary :all: --dest . "guidellm==$VERSION"
python3 -m zipfile -e guidellm-*.whl .
cat > play.py <<'PY'
import asyncio
import importlib.abc
import itertools
import sys
import types
from importlib.machinery import ModuleSpec

ABSENT = tuple("transformers datasets torch sanic httpx ftfy culsans rich faker loguru more_itertools msgpack yaml".split())


class Stub:
    """Any class or object of an absent package; keeps what it is made with."""

    __init__ = lambda self, *_, **given: vars(self).update(given)
    remove = add = enable = disable = classmethod(lambda *_, **__: None)


class Absent(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    find_spec = lambda self, name, *_: ModuleSpec(name, self, is_package=True) if name.startswith(ABSENT) else None
    exec_module = lambda self, module: setattr(module, "__getattr__", lambda name: Stub)


for name in ("guidellm", "guidellm.data", "guidellm.data.deserializers", "guidellm.scheduler"):  # without their first lines
    module = sys.modules[name] = types.ModuleType(name)
    module.__path__ = [name.replace(".", "/")]
sys.meta_path.insert(0, Absent())
from guidellm.data.deserializers.trace_mooncake import MooncakeTraceFormat
from guidellm.scheduler.strategies import TraceReplayStrategy
from guidellm.schemas.data.deserializers import MooncakeTraceFormatArgs

fresh = itertools.count()
TOKENS = types.SimpleNamespace(encode=str.split, decode=lambda ids, **_: " ".join(ids))
FAKER = types.SimpleNamespace(text=lambda length: " ".join(str(next(fresh)) for _ in range(length)))


class Trace(list):  # sorted, and read a row at a time
    sort = lambda self, column: Trace(sorted(self, key=lambda row: row[column]))
    select = lambda self, places: Trace(self[place] for place in places)


async def play(rows):
    form = MooncakeTraceFormat(MooncakeTraceFormatArgs.model_construct(), rows)
    TraceReplayStrategy.get_processes_start_time = lambda self: asyncio.sleep(0, 0.0)
    for conversation in form:
        columns = form.build_conversation_graph(conversation, TOKENS, FAKER).turns[0].columns
        settings = types.SimpleNamespace(relative_timestamp=columns["relative_timestamp_column"][0])
        yield len(columns["text_column"][0].split()), await TraceReplayStrategy()._absolute_target(settings)


async def played(rows):
    return [one async for one in play(rows)]


rows = [{"timestamp": 0, "hash_ids": [0, 1, 2]}, {"timestamp": 3000, "hash_ids": [0, 1, 3]}]
seen = asyncio.run(played(Trace(row | {"input_length": 1300, "output_length": 10} for row in rows)))
print("  tokens and seconds, expected:", [(1300, 0), (1300, 3)], "seen:", seen)
sys.exit(0 if seen == [(1300, 0), (1300, 3000)] else "CHANGED: another length, or another time")
PY
echo "version: guidellm $VERSION"
PYTHONPATH=packages timeout 60 python3 play.py 2>log || { tail -n 5 log; exit 1; }
echo "As seen: milliseconds are seconds."

#!/usr/bin/env bash
# SGLang's /health takes a second however idle its engine is, and asks it for a token each time; /ready does neither.
#
# Expected before the run: a health page answers within milliseconds, and a probe each second costs the engine nothing.
# Seen: it sends a request of one token and first looks for an answer a second later, so probes with a limit of one
# second, Kubernetes' default, never see it well. The functions are the wheel's own, the engine behind them is a stand-in
# that answers at once. A download of 39 MB; no GPU.
set -euo pipefail
SGLANG=0.5.23
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
timeout 300 python3 -m pip --quiet --disable-pip-version-check download --no-deps --only-binary :all: \
  --python-version 3.11 --platform manylinux_2_34_x86_64 --dest . "sglang==$SGLANG"
cat > ask.py <<'PY'
import ast
import asyncio
import logging
import sys
import time
import uuid
import zipfile
from pathlib import Path
from types import SimpleNamespace

(wheel,) = Path().glob("sglang-*.whl")
source = zipfile.ZipFile(wheel).read("sglang/srt/entrypoints/http_server.py").decode()
PAGES = {"ready", "health_generate"}
found = [one for one in ast.parse(source).body if isinstance(one, ast.AsyncFunctionDef) and one.name in PAGES]
for one in found:
    one.decorator_list = []


class Engine:
    """Answers each request at once."""

    gracefully_exit, server_status, is_generation = False, "up", True
    last_receive_tstamp = 0.0
    rid_to_state = {}
    asked = 0

    def is_ready(self):
        return True

    async def generate_request(self, asked, request):
        self.asked += 1
        self.last_receive_tstamp = time.time()
        yield {}


def off():
    return SimpleNamespace(get=lambda: False)


def on():
    return SimpleNamespace(get=lambda: True)


engine = Engine()
scope = {
    "asyncio": asyncio, "time": time, "uuid": uuid, "logger": logging.getLogger(), "Request": object,
    "Response": SimpleNamespace, "GenerateReqInput": SimpleNamespace,
    "_global_state": SimpleNamespace(tokenizer_manager=engine),
    "ServerStatus": SimpleNamespace(Starting="starting", Up="up", UnHealthy="unhealthy"),
    "envs": SimpleNamespace(SGLANG_DIAG_BYPASS_HEALTH_GENERATE=off(), SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION=on()),
    "HEALTH_CHECK_RID_PREFIX": "HEALTH_CHECK", "HEALTH_CHECK_TIMEOUT": 20,
    "get_disagg": lambda: SimpleNamespace(disaggregation_mode="null"),
    "DisaggregationMode": SimpleNamespace(NULL=SimpleNamespace(value="null")),
}
exec(compile(ast.Module(found, []), "http_server.py", "exec"), scope)


def ask(page, *given):
    asked, began = engine.asked, time.monotonic()
    answer = asyncio.run(scope[page](*given))
    seconds = time.monotonic() - began
    print(f"{page}: {answer.status_code} after {seconds:.3f} s, requests to the engine: {engine.asked - asked}")
    return answer.status_code, seconds, engine.asked - asked


health = ask("health_generate", SimpleNamespace(url=SimpleNamespace(path="/health")))
ready = ask("ready")
as_seen = health[0] == ready[0] == 200 and health[1] >= 1.0 > ready[1] and (health[2], ready[2]) == (1, 0)
sys.exit(0 if as_seen else "CHANGED: it answers sooner, or asks for no token")
PY
timeout 60 python3 ask.py
echo "SGLang $SGLANG: /health takes a second and a token, /ready neither"

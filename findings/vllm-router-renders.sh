#!/usr/bin/env bash
# vllm-router asks the engine twice to render each chat before it routes it by prefix, and without that routes it by load.
#
# Expected before the run: `cache_aware` compares the texts of prompts in the router, as sglang-router's does, and moves a
# prompt only when loads differ by more than 64 requests. Seen: two POSTs to /v1/chat/completions/render with the whole
# chat, then the request itself. Engines that do not serve that path (SGLang, older vLLM, most routers) get equal prompts
# in turn as soon as one is in flight; the log has nothing of it, only vllm_router_kv_routing_inputs_total counts it.
# The engines are two servers on the loopback. A download of 24 MB; no GPU.
set -euo pipefail
folder=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null || true; wait 2>/dev/null || true; rm -rf "$folder"' EXIT
cd "$folder"
timeout 300 python3 -m pip --quiet --disable-pip-version-check --no-input install --no-deps --no-compile --target packages \
  vllm-router==0.1.17 2>/dev/null
export PYTHONPATH=$folder/packages PYTHONDONTWRITEBYTECODE=1
cat > engine.py <<'PY'
import http.server
import json
import sys
import time

PORT, RENDERS = int(sys.argv[1]), sys.argv[2] == "renders"
RENDERED = {"request_id": "r", "model": "tiny", "token_ids": list(range(1000)), "sampling_params": {}, "stream": False}
MESSAGE = {"role": "assistant", "content": str(PORT)}
ANSWER = {
    "id": "c", "object": "chat.completion", "created": 1, "model": "tiny",
    "choices": [{"index": 0, "message": MESSAGE, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 1000, "completion_tokens": 1, "total_tokens": 1001},
}


class Engine(http.server.BaseHTTPRequestHandler):
    def answer(self, status, document):
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        model = {"id": "tiny", "object": "model", "owned_by": "vllm", "max_model_len": 4096}
        self.answer(200, {"object": "list", "data": [model]} if self.path == "/v1/models" else {"model_path": "tiny"})

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        print(self.path, flush=True)
        if self.path.endswith("/render"):
            self.answer(200, RENDERED) if RENDERS else self.answer(404, {"detail": "Not Found"})
        else:
            time.sleep(3)
            self.answer(200, ANSWER)

    def log_message(self, *_):
        pass


http.server.ThreadingHTTPServer(("127.0.0.1", PORT), Engine).serve_forever()
PY
cat > route.py <<'PY'
import sys

from vllm_router.router import Router
from vllm_router.router_args import RouterArgs

port, *engines = map(int, sys.argv[1:])
urls = [f"http://127.0.0.1:{engine}" for engine in engines]
place = {"host": "127.0.0.1", "port": port, "prometheus_host": "127.0.0.1", "prometheus_port": port + 1}
Router.from_args(RouterArgs(**place, policy="cache_aware", worker_urls=urls)).start()
PY
for port in 22201 22202; do python3 engine.py $port renders >>posts-22210 2>/dev/null & done
for port in 22203 22204; do python3 engine.py $port plain >>posts-22220 2>/dev/null & done
python3 route.py 22210 22201 22202 >log-renders 2>&1 &
python3 route.py 22220 22203 22204 >log-plain 2>&1 &
timeout 120 python3 - <<'PY' || { tail -n 3 log-*; exit 1; }
import collections
import concurrent.futures
import json
import sys
import time
import urllib.request
from importlib.metadata import version

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "one prompt of many " * 200}], "max_tokens": 1}


def chat(port, delay=0.0):
    """The engine that answered."""
    time.sleep(delay)
    url, kind = f"http://127.0.0.1:{port}/v1/chat/completions", {"content-type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(CHAT).encode(), kind), timeout=30) as answer:
        return json.load(answer)["choices"][0]["message"]["content"]


def until_ready(port):
    for _ in range(60):
        try:
            return chat(port)
        except OSError:
            time.sleep(0.5)
    return sys.exit(f"the router on {port} does not answer")


def routed(port):
    """Chats of each engine, and how often they were rendered, of twelve equal ones that begin 50 ms apart."""
    until_ready(port)
    posts = open(f"posts-{port}").read().count("/render\n")
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        engines = collections.Counter(pool.map(lambda n: chat(port, n * 0.05), range(12)))
    return sorted(engines.values()), open(f"posts-{port}").read().count("/render\n") - posts


def inputs(port):
    with urllib.request.urlopen(f"http://127.0.0.1:{port + 1}/metrics", timeout=10) as page:
        return [line for line in page.read().decode().splitlines() if line.startswith("vllm_router_kv_routing_inputs")]


print("version:", version("vllm-router"))
renders, plain = routed(22210), routed(22220)
print("engines that render: chats of each engine", renders[0], "requests to /render", renders[1], inputs(22210))
print("engines that do not: chats of each engine", plain[0], "requests to /render", plain[1], inputs(22220))
as_seen = max(renders[0]) >= 10 and renders[1] > 12 and max(plain[0]) < 10 and plain[1] > 12
sys.exit(0 if as_seen else "CHANGED: it renders, or routes, otherwise")
PY
echo "As seen: two renders for each chat, and no affinity without them."

#!/usr/bin/env bash
# sglang-router's cache_aware sends prompts that share nothing to one engine of four, as long as none waits.
#
# Expected before the run: a prompt without a match goes to the engine that holds least, so that forty unlike prompts fill
# four caches alike; smg, its successor, spreads them. Seen: of forty prompts that share no beginning and come one after
# another all go to one engine, and its cache evicts while three stay empty. Only requests in flight tell engines apart:
# with four at a time the same prompts go to several. Chats that differ in their tools alone go together in both, as only
# the messages are compared. The engines are servers on the loopback. A download of 68 MB; no GPU.
set -euo pipefail
folder=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null || true; wait 2>/dev/null || true; rm -rf "$folder"' EXIT
cd "$folder"
timeout 400 python3 -m pip --quiet --disable-pip-version-check --no-input install --no-deps --no-compile --target packages \
  sglang-router==0.3.2 smg==1.13.0 2>/dev/null
export PYTHONPATH=$folder/packages PYTHONDONTWRITEBYTECODE=1
cat > engines.py <<'PY'
import http.server
import json
import sys
import threading
import time

ANSWER = {
    "id": "c", "object": "chat.completion", "created": 1, "model": "tiny",
    "usage": {"prompt_tokens": 9, "completion_tokens": 1, "total_tokens": 10},
}


class Engine(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        model = {"id": "tiny", "object": "model", "owned_by": "vllm", "max_model_len": 4096}
        self.answer({"object": "list", "data": [model]} if self.path == "/v1/models" else {"model_path": "tiny"})

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        time.sleep(0.3 if asked["messages"][0]["content"].endswith("slow") else 0)
        message = {"role": "assistant", "content": str(self.server.server_port)}
        self.answer({**ANSWER, "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})

    def answer(self, document):
        body = json.dumps(document).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


for port in map(int, sys.argv[1:]):
    threading.Thread(target=http.server.ThreadingHTTPServer(("127.0.0.1", port), Engine).serve_forever).start()
PY
cat > route.py <<'PY'
import importlib
import sys

name, port = sys.argv[1], int(sys.argv[2])
options = importlib.import_module(f"{name}.router_args").RouterArgs(
    host="127.0.0.1", port=port, prometheus_host="127.0.0.1", prometheus_port=port + 1, policy="cache_aware",
    worker_urls=[f"http://127.0.0.1:{engine}" for engine in range(port + 2, port + 6)],
)
importlib.import_module(f"{name}.router").Router.from_args(options).start()
PY
python3 engines.py {22612..22615} {22622..22625} &
python3 route.py sglang_router 22610 >log-sglang 2>&1 &
python3 route.py smg 22620 >log-smg 2>&1 &
timeout 200 python3 - <<'PY' || { tail -n 3 log-*; exit 1; }
import collections
import concurrent.futures
import json
import sys
import time
import urllib.request


def chat(port, text, **fields):
    """The engine that answered."""
    body = {"model": "tiny", "messages": [{"role": "user", "content": text}], "max_tokens": 1, **fields}
    url, kind = f"http://127.0.0.1:{port}/v1/chat/completions", {"content-type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), kind), timeout=30) as answer:
        return json.load(answer)["choices"][0]["message"]["content"]


def until_all_answer(port):
    """Wait for the router and, since unlike prompts need not find them, for all four engines."""
    for _ in range(120):
        try:
            chat(port, "ready?")
            return time.sleep(5)
        except OSError:
            time.sleep(0.5)
    return sys.exit(f"the router on {port} does not answer")


def tool(number):
    parameters = {"type": "object", "properties": {}}
    function = {"name": f"f{number}", "description": f"{number} looks up. " * 300, "parameters": parameters}
    return [{"type": "function", "function": function}]


def spread(engines):
    return sorted(collections.Counter(engines).values(), reverse=True)


seen = {}
for name, port in {"sglang-router 0.3.2": 22610, "smg 1.13.0": 22620}.items():
    until_all_answer(port)
    apart = spread(chat(port, f"{number:02d} asks for something else. " * 100) for number in range(40))
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        texts = [f"{number:02d} comes with others. " * 100 + "slow" for number in range(50, 90)]
        together = spread(pool.map(lambda text, port=port: chat(port, text), texts))
    tools = spread(chat(port, "go", tools=tool(number)) for number in range(12))
    print(f"version: {name}; unlike prompts by engine, one at a time {apart}, four at a time {together};", end=" ")
    print("chats with unlike tools", tools, flush=True)
    seen[name] = len(apart), len(together) > 1, len(tools)
as_seen = seen["sglang-router 0.3.2"] == (1, True, 1) and seen["smg 1.13.0"] == (4, True, 1)
sys.exit(0 if as_seen else f"CHANGED: {seen}")
PY
echo "As seen: one of four engines gets all prompts that come one after another."

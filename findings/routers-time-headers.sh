#!/usr/bin/env bash
# Three routers time a streamed answer up to its headers: four seconds of tokens are a request of a millisecond.
#
# Expected before the run: the histogram of a request's duration ends with the answer, so that its quantiles can be
# compared with an SLO. Seen: a stream of 4 s adds one request of some milliseconds to smg_http_request_duration_seconds,
# smg_router_request_duration_seconds and vllm_router_generate_duration_seconds, and no other histogram has the rest;
# unary answers are timed whole. As an engine sends headers before it computes, that is neither E2E nor TTFT.
# The engine is a server on the loopback. A download of 92 MB; no GPU.
set -euo pipefail
folder=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null || true; wait 2>/dev/null || true; rm -rf "$folder"' EXIT
cd "$folder"
timeout 400 python3 -m pip --quiet --disable-pip-version-check --no-input install --no-deps --no-compile --target packages \
  sglang-router==0.3.2 vllm-router==0.1.17 smg==1.13.0 2>/dev/null
export PYTHONPATH=$folder/packages PYTHONDONTWRITEBYTECODE=1
cat > engine.py <<'PY'
import http.server
import json
import sys
import time

CHUNK = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "tiny"}
MESSAGE = {"role": "assistant", "content": "done"}
UNARY = {
    **CHUNK, "object": "chat.completion", "choices": [{"index": 0, "message": MESSAGE, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 9, "completion_tokens": 1, "total_tokens": 10},
}


class Engine(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        model = {"id": "tiny", "object": "model", "owned_by": "vllm", "max_model_len": 4096}
        self.answer({"object": "list", "data": [model]} if self.path == "/v1/models" else {"model_path": "tiny"})

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if not asked.get("stream"):
            time.sleep(2)
            return self.answer(UNARY)
        self.begin("text/event-stream", "transfer-encoding", "chunked")
        for number in range(20):
            time.sleep(0.2)
            choice = {"index": 0, "delta": {"content": "a"}, "finish_reason": "stop" if number == 19 else None}
            self.send(f"data: {json.dumps({**CHUNK, 'choices': [choice]})}\n\n".encode())
        self.send(b"data: [DONE]\n\n")
        self.send(b"")

    def answer(self, document):
        body = json.dumps(document).encode()
        self.begin("application/json", "content-length", str(len(body)))
        self.wfile.write(body)

    def begin(self, kind, name, value):
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header(name, value)
        self.end_headers()

    def send(self, data):
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    def log_message(self, *_):
        pass


http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Engine).serve_forever()
PY
cat > route.py <<'PY'
import importlib
import sys

name, port = sys.argv[1], int(sys.argv[2])
options = importlib.import_module(f"{name}.router_args").RouterArgs(
    host="127.0.0.1", port=port, prometheus_host="127.0.0.1", prometheus_port=port + 1, policy="round_robin",
    worker_urls=["http://127.0.0.1:22401"],
)
importlib.import_module(f"{name}.router").Router.from_args(options).start()
PY
python3 engine.py 22401 &
python3 route.py sglang_router 22410 >log-sglang 2>&1 &
python3 route.py vllm_router 22420 >log-vllm 2>&1 &
python3 route.py smg 22430 >log-smg 2>&1 &
timeout 200 python3 - <<'PY' || { tail -n 3 log-*; exit 1; }
import json
import re
import sys
import time
import urllib.request

TIMED = re.compile(r"(\w*request_duration_seconds|\w*generate_duration_seconds)_(sum|count)\S* (\S+)")
ROUTERS = {"sglang-router 0.3.2": 22410, "vllm-router 0.1.17": 22420, "smg 1.13.0": 22430}


def chat(port, stream):
    """How long the answer took."""
    body = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 20, "stream": stream}
    url, kind = f"http://127.0.0.1:{port}/v1/chat/completions", {"content-type": "application/json"}
    began = time.monotonic()
    urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), kind), timeout=30).read()
    return time.monotonic() - began


def durations(port):
    with urllib.request.urlopen(f"http://127.0.0.1:{port + 1}/metrics", timeout=10) as page:
        found = [match.groups() for line in page.read().decode().splitlines() if (match := TIMED.match(line))]
    sums = {}
    for name, kind, value in found:
        sums[name, kind] = sums.get((name, kind), 0.0) + float(value)
    return sums


def growth(port, stream):
    """Seconds of one more answer, and of those by the histograms that count it."""
    before, took = durations(port), chat(port, stream)
    time.sleep(0.5)
    after = durations(port)
    counted = [name for name, kind in after if kind == "count" and after[name, kind] == before.get((name, kind), 0) + 1]
    return took, {name: after[name, "sum"] - before.get((name, "sum"), 0.0) for name in sorted(counted)}


def until_ready(port):
    for _ in range(120):
        try:
            return chat(port, False)
        except OSError:
            time.sleep(0.5)
    return sys.exit(f"the router on {port} does not answer")


changed = []
for name, port in ROUTERS.items():
    until_ready(port)
    whole, streamed = growth(port, False), growth(port, True)
    for kind, (took, timed) in {"unary": whole, "streamed": streamed}.items():
        print(f"version: {name}; {kind} answer of {took:.1f} s:", {one: f"{s:.4f} s" for one, s in timed.items()})
    as_seen = whole[1].keys() == streamed[1].keys() != set() and streamed[0] >= 4
    as_seen = as_seen and min(whole[1].values()) >= 2 and max(streamed[1].values()) < 1
    changed += [] if as_seen else [name]
sys.exit(f"CHANGED: {changed}" if changed else 0)
PY
echo "As seen: the duration of a stream ends with its headers."

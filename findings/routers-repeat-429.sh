#!/usr/bin/env bash
# sglang-router, vllm-router and smg send a request that an engine refuses with 429 five times, whatever Retry-After says.
#
# Expected before the run: the refusal goes to the client at once. Seen: five attempts within half a second, at engines
# that asked for seven seconds and said x-should-retry: false; then the client gets the refusal, Retry-After included. In
# front of a router with limits each refused request counts five times, and the client's own attempts multiply that.
# The engines are two servers on the loopback that answer as vLLM does. A download of 95 MB; no GPU.
set -euo pipefail
folder=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null || true; wait 2>/dev/null || true; rm -rf "$folder"' EXIT
cd "$folder"
timeout 300 python3 -m pip --quiet --disable-pip-version-check --no-input install --no-deps --no-compile --target packages \
  sglang-router==0.3.2 vllm-router==0.1.17 smg==1.13.0 2>/dev/null
export PYTHONPATH=$folder/packages PYTHONDONTWRITEBYTECODE=1
cat > engine.py <<'PY'
import http.server
import json
import sys


class Engine(http.server.BaseHTTPRequestHandler):
    def answer(self, status, document, **headers):
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        model = {"id": "tiny", "object": "model", "owned_by": "vllm", "max_model_len": 4096}
        self.answer(200, {"object": "list", "data": [model]} if self.path == "/v1/models" else {"model_path": "tiny"})

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        print(self.path, flush=True)
        error = {"message": "busy", "type": "rate_limit_error", "code": 429}
        self.answer(429, {"error": error}, retry_after="7", x_should_retry="false")

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
    worker_urls=["http://127.0.0.1:22101", "http://127.0.0.1:22102"],
)
importlib.import_module(f"{name}.router").Router.from_args(options).start()
PY
for port in 22101 22102; do python3 engine.py $port >>attempts & done
python3 route.py sglang_router 22110 >log-sglang 2>&1 &
python3 route.py vllm_router 22120 >log-vllm 2>&1 &
python3 route.py smg 22130 >log-smg 2>&1 &
timeout 120 python3 - <<'PY' || { tail -n 3 log-*; exit 1; }
import json
import sys
import time
import urllib.error
import urllib.request

BODY = json.dumps({"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}).encode()


def attempts():
    return open("attempts").read().count("/v1/chat/completions\n")


def asked(port):
    """Status, Retry-After, attempts and seconds of one request."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/chat/completions", BODY)
    request.add_header("content-type", "application/json")
    before, begun = attempts(), time.monotonic()
    try:
        urllib.request.urlopen(request)
    except urllib.error.HTTPError as refused:
        return refused.code, refused.headers["retry-after"], attempts() - before, time.monotonic() - begun
    except urllib.error.URLError:
        pass
    return 0, None, 0, 0.0


changed = []
for name, port in {"sglang-router 0.3.2": 22110, "vllm-router 0.1.17": 22120, "smg 1.13.0": 22130}.items():
    for _ in range(60):
        status, after, tried, seconds = asked(port)
        if status == 429:
            break
        time.sleep(0.5)
    print(f"version: {name}; answer {status}, Retry-After {after}, attempts {tried} in {seconds:.2f} s", flush=True)
    changed += [name] * ((status, after, tried) != (429, "7", 5))
sys.exit(f"CHANGED: {changed}" if changed else 0)
PY
echo "As seen: five attempts at engines that asked for seven seconds."

#!/usr/bin/env bash
# sglang-router and vllm-router tell an engine that a stream's client has left only once the engine sends something.
#
# Expected before the run: a router closes its connection to the engine as soon as the client closes its own, as both do
# for an unary answer and smg does always, so that the engine drops a prompt which it queues or computes. Seen: a client
# that leaves two seconds after a stream's headers and before its first token keeps the engine busy until it sends, here
# after ten seconds; vLLM and SGLang send headers before they compute. So impatient clients of a full fleet, who come
# back, fill its queues with prompts that nobody waits for. The engine is a server on the loopback. A download of 92 MB.
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
import select
import socket
import sys
import time

CHUNK = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "tiny"}
MESSAGE = {"role": "assistant", "content": "done"}
UNARY = {
    **CHUNK, "object": "chat.completion", "choices": [{"index": 0, "message": MESSAGE, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 9, "completion_tokens": 1, "total_tokens": 10},
}
EVENT = f"data: {json.dumps({**CHUNK, 'choices': [{'index': 0, 'delta': {'content': 'a'}, 'finish_reason': None}]})}\n\n"


class Engine(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        model = {"id": "tiny", "object": "model", "owned_by": "vllm", "max_model_len": 4096}
        self.answer({"object": "list", "data": [model]} if self.path == "/v1/models" else {"model_path": "tiny"})

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if asked["messages"][0]["content"] == "ready?":
            return self.answer(UNARY)
        if asked.get("stream"):
            self.begin("text/event-stream", "transfer-encoding", "chunked")
        self.began, self.close_connection = time.monotonic(), True
        while self.took < 10:
            readable, _, _ = select.select([self.connection], [], [], 0.2)
            if readable and not self.connection.recv(1, socket.MSG_PEEK):
                return self.left(0)
        try:
            for sent in range(50):
                self.wfile.write(f"{len(EVENT):x}\r\n{EVENT}\r\n".encode())
                time.sleep(0.2)
        except OSError:
            self.left(sent)

    @property
    def took(self):
        return time.monotonic() - self.began

    def left(self, sent):
        print(json.dumps([round(self.took, 1), sent]), flush=True)

    def answer(self, document):
        body = json.dumps(document).encode()
        self.begin("application/json", "content-length", str(len(body)))
        self.wfile.write(body)

    def begin(self, kind, name, value):
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header(name, value)
        self.end_headers()

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
    worker_urls=[f"http://127.0.0.1:{port + 2}"],
)
importlib.import_module(f"{name}.router").Router.from_args(options).start()
PY
for port in 22510 22520 22530; do python3 engine.py $((port + 2)) >left-$port & done
python3 route.py sglang_router 22510 >log-sglang 2>&1 &
python3 route.py vllm_router 22520 >log-vllm 2>&1 &
python3 route.py smg 22530 >log-smg 2>&1 &
timeout 200 python3 - <<'PY' || { tail -n 3 log-*; exit 1; }
import json
import sys
import time
import urllib.request

ROUTERS = {"sglang-router 0.3.2": (22510, True), "vllm-router 0.1.17": (22520, True), "smg 1.13.0": (22530, False)}


def chat(port, content, stream, patience):
    body = {"model": "tiny", "messages": [{"role": "user", "content": content}], "max_tokens": 20, "stream": stream}
    url, kind = f"http://127.0.0.1:{port}/v1/chat/completions", {"content-type": "application/json"}
    urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), kind), timeout=patience).read()


def until_ready(port):
    for _ in range(120):
        try:
            return chat(port, "ready?", False, 30)
        except OSError:
            time.sleep(0.5)
    return sys.exit(f"the router on {port} does not answer")


def noticed(port, stream):
    """Seconds after which the engine learns that the client left after two, and the events that it had sent."""
    before = len(open(f"left-{port}").readlines())
    try:
        chat(port, "hi", stream, 2)
    except TimeoutError:
        pass
    for _ in range(100):
        found = open(f"left-{port}").readlines()[before:]
        if found:
            return json.loads(found[0])
        time.sleep(0.2)
    return [30, 0]


changed = []
for name, (port, late) in ROUTERS.items():
    until_ready(port)
    unary, streamed = noticed(port, False), noticed(port, True)
    print(f"version: {name}; the engine learns that a client left after 2 s: of an unary answer after {unary[0]} s,", end="")
    print(f" of a stream without a token after {streamed[0]} s and {streamed[1]} events", flush=True)
    changed += [] if unary[0] < 8 and (10 <= streamed[0] < 30 if late else streamed[0] < 8) else [name]
sys.exit(f"CHANGED: {changed}" if changed else 0)
PY
echo "As seen: two of three let an engine compute on for a stream whose client has left."

#!/usr/bin/env bash
# sglang-router keeps a client's priority, salt, KV transfer and session to itself; smg and vllm-router keep less.
#
# Expected before the run: a router in front of OpenAI's API passes a body on as it came, or at least what it does not
# know, and headers that it does not use. Seen: sglang-router writes the body anew from the fields it knows, so an engine
# never sees priority, cache_salt, kv_transfer_params, structured_outputs, rid or documents, and gets
# max_completion_tokens for max_tokens. It and smg drop x-session-id, as most headers; vllm-router drops a tool's
# `strict`, all three the name in a tool's answer, which templates print. No answer says so. The engine is a server on
# the loopback; the request is a valid one for vLLM and SGLang. A download of 92 MB; no GPU.
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

MESSAGE = {"role": "assistant", "content": "done"}
ANSWER = {
    "id": "c", "object": "chat.completion", "created": 1, "model": "tiny",
    "choices": [{"index": 0, "message": MESSAGE, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 9, "completion_tokens": 1, "total_tokens": 10},
}


class Engine(http.server.BaseHTTPRequestHandler):
    def answer(self, document):
        body = json.dumps(document).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        model = {"id": "tiny", "object": "model", "owned_by": "vllm", "max_model_len": 4096}
        self.answer({"object": "list", "data": [model]} if self.path == "/v1/models" else {"model_path": "tiny"})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        with open("got", "w") as file:
            json.dump({"body": body, "headers": sorted(name.lower() for name in self.headers)}, file)
        self.answer(ANSWER)

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
    worker_urls=["http://127.0.0.1:22301"],
)
importlib.import_module(f"{name}.router").Router.from_args(options).start()
PY
python3 engine.py 22301 & # its file `got` has the newest request
python3 route.py sglang_router 22310 >log-sglang 2>&1 &
python3 route.py vllm_router 22320 >log-vllm 2>&1 &
python3 route.py smg 22330 >log-smg 2>&1 &
timeout 150 python3 - <<'PY' || { tail -n 3 log-*; exit 1; }
import json
import sys
import time
import urllib.request

FUNCTION = {"name": "f", "description": "d", "strict": True, "parameters": {"type": "object", "properties": {}}}
CALL = {"id": "t", "type": "function", "function": {"name": "f", "arguments": "{}"}}
BODY = {
    "model": "tiny",
    "messages": [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "t", "name": "f", "content": "x"},
    ],
    "tools": [{"type": "function", "function": FUNCTION}],
    "max_tokens": 5, "temperature": 0.0, "top_k": 5, "chat_template_kwargs": {"enable_thinking": False},
    "priority": 3, "cache_salt": "s", "kv_transfer_params": {"do_remote_decode": True}, "rid": "r", "documents": [],
    "structured_outputs": {"regex": "a"},
}
HEADERS = {"content-type": "application/json", "authorization": "Bearer k", "x-request-id": "r", "x-session-id": "s"}
LOST = ["cache_salt", "documents", "kv_transfer_params", "max_tokens", "priority", "rid", "structured_outputs"]
EXPECTED = {  # fields that are gone, whether the session's header came, a tool's name and strictness
    "sglang-router 0.3.2": (22310, (LOST, False, False, True)),
    "vllm-router 0.1.17": (22320, ([], True, False, False)),
    "smg 1.13.0": (22330, ([], False, False, True)),
}


def passed_on(port):
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/chat/completions", json.dumps(BODY).encode(), HEADERS)
    for _ in range(120):
        try:
            urllib.request.urlopen(request, timeout=30).read()
            break
        except OSError:
            time.sleep(0.5)
    else:
        sys.exit(f"the router on {port} does not answer")
    with open("got") as file:
        got = json.load(file)
    body = got["body"]
    print("  added:", {name: body[name] for name in sorted(body.keys() - BODY.keys())}, "headers:", got["headers"])
    strict = "strict" in body["tools"][0]["function"]
    return sorted(BODY.keys() - body.keys()), "x-session-id" in got["headers"], "name" in body["messages"][2], strict


changed = []
for name, (port, expected) in EXPECTED.items():
    print("version:", name, flush=True)
    lost, session, named, strict = found = passed_on(port)
    print(f"  lost: {lost}; x-session-id passed: {session}; name of the tool's answer: {named}; strict: {strict}")
    changed += [name] * (found != expected)
sys.exit(f"CHANGED: {changed}" if changed else 0)
PY
echo "As seen: fields and headers that the engine knows do not reach it."

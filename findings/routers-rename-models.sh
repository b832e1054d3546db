#!/usr/bin/env bash
# Three routers ask engines to rerank with a model that nobody named, and two set every stored response's temperature.
#
# Expected before the run: a request that names a model reaches the engine with that name and without values that the
# client left to the engine. Seen: /v1/rerank arrives with the model `unknown` (sglang-router, smg) or `default`
# (vllm-router), which vLLM answers with 404, and vLLM's document of results, taken from an engine that does not mind the
# name, becomes a 500 even in vllm-router; SGLang's list passes. /v1/responses arrives from sglang-router and smg with
# temperature, top_k, min_p and repetition_penalty, so a model's own generation_config no longer holds. Both refuse a
# prompt of token ids. The engine is a server on the loopback. A download of 92 MB; no GPU.
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

TEXT = {"type": "output_text", "text": "done", "annotations": []}
RESPONSE = {
    "id": "resp_1", "object": "response", "created_at": 1, "model": "tiny", "status": "completed", "tools": [],
    "output": [{"type": "message", "id": "m", "status": "completed", "role": "assistant", "content": [TEXT]}],
    "parallel_tool_calls": True, "tool_choice": "auto", "usage": {"input_tokens": 2, "output_tokens": 1, "total_tokens": 3},
}
COMPLETION = {
    "id": "c", "object": "text_completion", "created": 1, "model": "tiny",
    "choices": [{"index": 0, "text": "done", "finish_reason": "stop", "logprobs": None}],
    "usage": {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4},
}
BY_VLLM = {
    "id": "r", "model": "tiny", "usage": {"prompt_tokens": 5, "total_tokens": 5},
    "results": [{"index": 0, "document": {"text": "b", "multi_modal": None}, "relevance_score": 0.9}],
}
BY_SGLANG = [{"score": 0.9, "document": "b", "index": 0, "meta_info": {"id": "r", "prompt_tokens": 5}}]


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
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        with open("got", "w") as file:
            json.dump(asked, file)
        ranked = BY_VLLM if asked.get("query") == "vllm" else BY_SGLANG
        self.answer({"/v1/responses": RESPONSE, "/v1/completions": COMPLETION}.get(self.path, ranked))

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
    worker_urls=["http://127.0.0.1:22701"],
)
importlib.import_module(f"{name}.router").Router.from_args(options).start()
PY
python3 engine.py 22701 & # its file `got` has the newest request
python3 route.py sglang_router 22710 >log-sglang 2>&1 &
python3 route.py vllm_router 22720 >log-vllm 2>&1 &
python3 route.py smg 22730 >log-smg 2>&1 &
timeout 150 python3 - <<'PY' || { tail -n 3 log-*; exit 1; }
import json
import sys
import time
import urllib.error
import urllib.request

FILLED = ["min_p", "priority", "repetition_penalty", "store", "temperature", "top_k"]
EXPECTED = {  # model, statuses for vLLM's and SGLang's results; what is filled in; status of a prompt of token ids
    "sglang-router 0.3.2": (22710, ("unknown", 500, 200, True, 422)),
    "vllm-router 0.1.17": (22720, ("default", 500, 200, False, 200)),
    "smg 1.13.0": (22730, ("unknown", 500, 200, True, 400)),
}


def asked(port, path, **fields):
    """The status, and what the engine got."""
    with open("got", "w") as file:
        file.write("{}")
    url, body = f"http://127.0.0.1:{port}{path}", json.dumps({"model": "tiny", **fields}).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(url, body, {"content-type": "application/json"})) as answer:
            status = answer.status
    except urllib.error.HTTPError as error:
        status = error.code
    with open("got") as file:
        return status, json.load(file)


def until_ready(port):
    for _ in range(120):
        try:
            if asked(port, "/v1/completions", prompt="ready?")[0] == 200:
                return None
        except OSError:
            pass
        time.sleep(0.5)
    return sys.exit(f"the router on {port} does not answer")


changed = []
for name, (port, expected) in EXPECTED.items():
    until_ready(port)
    by_vllm, got = asked(port, "/v1/rerank", query="vllm", documents=["b"])
    by_sglang, _ = asked(port, "/v1/rerank", query="sglang", documents=["b"])
    _, response = asked(port, "/v1/responses", input="hi")
    of_ids, _ = asked(port, "/v1/completions", prompt=[1, 2, 3], max_tokens=1)
    added = {field: response[field] for field in sorted(response.keys() - {"model", "input"})}
    found = got.get("model"), by_vllm, by_sglang, added.keys() >= set(FILLED), of_ids
    print(f"version: {name}; rerank with the model {found[0]}, {by_vllm} for vLLM's results, {by_sglang} for SGLang's;")
    print(f"  added to a response: {added}; prompt of token ids: {of_ids}", flush=True)
    changed += [] if found == expected else [name]
sys.exit(f"CHANGED: {changed}" if changed else 0)
PY
echo "As seen: no router reranks by the name of its client."

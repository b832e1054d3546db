#!/usr/bin/env bash
# SGLang's benchmark client of the OpenAI API counts the tokens that it asked for, however few come.
#
# Expected before the run: the tokens of the usage, or of the text. Seen: its streams of single turns ask for no usage, so
# neither SGLang nor vLLM sends any, and max_completion_tokens stands for the answer's: 3 tokens in 0.8 s are 100, TPOT
# 6 ms instead of 300, throughput 33 times too high; only total_output_retokenized says 3. The count
# is right where engines obey ignore_eos, wrong with --disable-ignore-eos, with stop strings and behind gateways that know
# no such field. Usage that --extra-request-body asks for is counted. The functions are the wheel's own; the engine is a
# server on the loopback. A download of 75 MB; no GPU.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
pip() { timeout 300 python3 -m pip --quiet --disable-pip-version-check --no-input "$@" 2>/dev/null; }
pip install --no-compile --target packages aiohttp==3.14.5 requests==2.34.2 numpy==2.4.6 tqdm==4.70.1 orjson==3.13.0 \
  msgspec==0.23.0
pip download --no-deps --only-binary :all: --dest . sglang==0.5.23
python3 -m zipfile -e sglang-*.whl sglang
cat > count.py <<'PY'
import asyncio
import http.server
import importlib.abc
import importlib.machinery
import json
import sys
import threading
import time
import types

WORDS, USAGE = ["It ", "is ", "blue."], {"prompt_tokens": 20, "completion_tokens": 3, "total_tokens": 23}


class Engine(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        for text in WORDS:
            time.sleep(0.2)
            self.send(choices=[{"index": 0, "delta": {"content": text}, "finish_reason": None}])
        time.sleep(0.2)
        self.send(choices=[{"index": 0, "delta": {}, "finish_reason": "stop"}])
        if asked.get("stream_options", {}).get("include_usage"):
            self.send(choices=[], usage=USAGE)
        self.wfile.write(b"data: [DONE]\n\n")

    def send(self, **fields):
        chunk = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "tiny", **fields}
        self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
        self.wfile.flush()

    def log_message(self, *_):
        pass


class Absent(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Stands in for packages that counts do not need."""

    def find_spec(self, name, path, target=None):
        absent = name.startswith(("transformers", "datasets", "sglang.srt", "sglang.benchmark.datasets"))
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if absent else None

    def create_module(self, spec):
        module = types.ModuleType(spec.name)
        module.__getattr__ = lambda name: type(name, (), {})
        return module

    def exec_module(self, module):
        pass


for name in ("sglang", "sglang.benchmark"):  # without their own first lines, which import the rest
    module = sys.modules[name] = types.ModuleType(name)
    module.__path__ = [f"sglang/{name.replace('.', '/')}"]
sys.meta_path.insert(0, Absent())
from sglang.benchmark import serving

server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Engine)
threading.Thread(target=server.serve_forever, daemon=True).start()
url = f"http://127.0.0.1:{server.server_port}/v1/chat/completions"
serving.args = types.SimpleNamespace(disable_stream=False, disable_ignore_eos=True, header=None)
words = types.SimpleNamespace(encode=lambda text, **_: text.split())
seen = []
for extra in ({}, {"stream_options": {"include_usage": True}}):
    request = serving.RequestFuncInput(
        "hi", url, 20, 100, "tiny", lora_name="", image_data=None, extra_request_body=extra
    )
    answer = asyncio.run(serving.async_request_openai_chat_completions(request))
    figures, _ = serving.calculate_metrics(None, [answer], answer.latency, words, "sglang-oai-chat")
    print(f"  {extra}: tokens {figures.total_output}, of the text {figures.total_output_retokenized}, ", end="")
    print(f"TPOT {figures.mean_tpot_ms:.0f} ms, {figures.output_throughput:.0f} tokens/s")
    seen.append((figures.total_output, figures.total_output_retokenized, figures.mean_tpot_ms < 20))
sys.exit(0 if seen == [(100, 3, True), (3, 3, False)] else f"CHANGED: {seen}")
PY
echo "version: sglang 0.5.23"
PYTHONPATH=packages timeout 60 python3 count.py 2>log || { tail -n 5 log; exit 1; }
echo "As seen: what was asked for is counted."

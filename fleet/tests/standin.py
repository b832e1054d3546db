"""A stand-in for an engine: the three endpoints that the fleet reads, and POST /set to make it misbehave.

Tests start hundreds of them, so it imports little: http.server and argparse take longer than everything else here.
"""

from __future__ import annotations

import json
import sys
import time
from socketserver import StreamRequestHandler, ThreadingTCPServer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

behaviour: dict[str, Any] = {"running": 0, "waiting": 0, "health": 200, "health_delay_s": 0.0, "metrics_delay_s": 0.0}
METRICS = """# HELP vllm:num_requests_running Number of requests
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{engine="0",model_name="m"}} {running}
vllm:num_requests_waiting{{engine="0",model_name="m"}} {waiting}
vllm:kv_cache_usage_perc{{engine="0",model_name="m"}} 0.25
vllm:prefix_cache_queries_total{{engine="0"}} 100.0
vllm:prefix_cache_hits_total{{engine="0"}} 50.0
vllm:cache_config_info{{block_size="16",num_gpu_blocks="1024"}} 1.0
"""


class Handler(StreamRequestHandler):
    def handle(self) -> None:
        """Serve the requests of one connection."""
        while line := self.rfile.readline():
            method, self.path, _ = line.decode().split()
            fields = (field.decode().partition(":") for field in iter(self.rfile.readline, b"\r\n"))
            headers = {name.lower(): value.strip() for name, _, value in fields}
            body = self.rfile.read(int(headers.get("content-length") or 0))
            if method == "GET":
                self.get()
            else:
                self.post(body)
            if headers.get("connection") == "close":
                return

    def get(self) -> None:
        if self.path == "/health":
            time.sleep(behaviour["health_delay_s"])
            self.answer(behaviour["health"], "")
        elif self.path == "/metrics":
            time.sleep(behaviour["metrics_delay_s"])
            self.answer(200, METRICS.format(**behaviour) + behaviour.get("more", "") * behaviour.get("times", 1))
        elif self.path == "/orders":
            self.answer(200, json.dumps(behaviour.get("orders", [])))
        elif self.path == "/is_sleeping":
            self.answer(200, json.dumps({"is_sleeping": behaviour.get("asleep", False)}))
        else:
            names = [f"{model}-{n}" for n in range(behaviour.get("models", 0))]
            cards = [{"id": name} for name in names] + [{"id": model, "max_model_len": 32_768}]
            self.answer(200, json.dumps({"data": cards}))

    def post(self, body: bytes) -> None:
        if self.path != "/set":
            self.order(self.path, body.decode())
            return
        behaviour.update(json.loads(body))
        self.answer(200, "")

    def order(self, path: str, body: str) -> None:
        """Carry out a sleep-mode order, and add it to the `orders` that the models page lists."""
        behaviour.setdefault("orders", []).append(f"{path} {body}".strip())
        time.sleep(behaviour.get("sleep_delay_s", 0.0))
        status = behaviour.get("sleep_status", 200) if path.startswith(behaviour.get("fails", "/")) else 200
        if path.startswith(("/sleep", "/wake_up")) and status == 200 and "tags=weights" not in path:
            behaviour["asleep"] = path.startswith("/sleep")
        self.answer(status, "")

    def answer(self, status: int, text: str) -> None:
        body = text.encode()
        self.wfile.write(f"HTTP/1.1 {status} Told\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)


class Server(ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True


options = dict(zip(sys.argv[1::2], sys.argv[2::2], strict=True))
model = options["--model"]
behaviour["models"] = int(options.get("--models", 0))
if last_words := options.get("--dies"):
    raise SystemExit(last_words)
Server(("127.0.0.1", int(options["--port"])), Handler).serve_forever()

"""A stand-in for an engine: the three endpoints that the fleet reads, and POST /set to make it behave badly."""

import argparse
import json
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
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


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
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
            names = [f"{options.model}-{n}" for n in range(behaviour.get("models", 0))]
            cards = [{"id": name} for name in names] + [{"id": options.model, "max_model_len": 32_768}]
            self.answer(200, json.dumps({"data": cards}))

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        if self.path != "/set":
            self.order(self.path, body.decode())
            return
        behaviour.update(json.loads(body))
        self.answer(200, "")

    def order(self, path: str, body: str) -> None:
        """Of sleep mode; `orders` lists them on the page of models."""
        time.sleep(behaviour.get("sleep_delay_s", 0.0))
        status = behaviour.get("sleep_status", 200) if path.startswith(behaviour.get("fails", "/")) else 200
        behaviour.setdefault("orders", []).append(f"{path} {body}".strip())
        if path.startswith(("/sleep", "/wake_up")) and status == 200 and "tags=weights" not in path:
            behaviour["asleep"] = path.startswith("/sleep")
        self.answer(status, "")

    def answer(self, status: int, text: str) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *words: object) -> None:
        pass


parser = argparse.ArgumentParser()
parser.add_argument("--port", type=int, required=True)
parser.add_argument("--model", required=True)
parser.add_argument("--dies", default="")
parser.add_argument("--models", type=int, default=0)
options = parser.parse_args()
behaviour["models"] = options.models
if options.dies:
    raise SystemExit(options.dies)
ThreadingHTTPServer(("127.0.0.1", options.port), Handler).serve_forever()

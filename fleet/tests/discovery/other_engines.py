"""Engines as others start them, each with the pages of its server, on loopback."""

import json
import ssl
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

VLLM_PAGE = """vllm:kv_cache_usage_perc{engine="0"} 0.1
vllm:num_requests_running{engine="0"} 0
vllm:num_requests_waiting{engine="0"} 0
"""
SGLANG_PAGE = """# TYPE sglang:token_usage gauge
sglang:token_usage{model_name="m",tp_rank="0"} 0.25
sglang:num_running_reqs{model_name="m",tp_rank="0"} 3.0
sglang:num_queue_reqs{model_name="m",tp_rank="0"} 1.0
sglang:page_size{model_name="m"} 64.0
sglang:num_pages{model_name="m"} 2048.0
sglang:prompt_tokens_total{model_name="m",is_streaming="true"} 900.0
sglang:prompt_tokens_total{model_name="m",is_streaming="false"} 100.0
sglang:cached_tokens_total{model_name="m",cache_source="device"} 400.0
sglang:cached_tokens_total{model_name="m",cache_source="host"} 100.0
sglang:generation_tokens_total{model_name="m",is_streaming="true"} 70.0
"""
TRTLLM_PAGE = """trtllm_kv_cache_utilization{model_name="m",engine_type="trtllm"} 0.5
trtllm_num_requests_running{model_name="m",engine_type="trtllm"} 2.0
trtllm_num_requests_waiting{model_name="m",engine_type="trtllm"} 0.0
trtllm_kv_cache_tokens_per_block{model_name="m",engine_type="trtllm"} 32.0
trtllm_kv_cache_max_blocks{model_name="m",engine_type="trtllm"} 512.0
trtllm_prompt_tokens_total{model_name="m",engine_type="trtllm"} 10.0
trtllm_kv_cache_config_info{model_name="m",enable_block_reuse="True",enable_partial_reuse="True",pid="7"} 1.0
"""

NO_REUSE = TRTLLM_PAGE.replace('block_reuse="True"', 'block_reuse="False"')


def models(owner: str = "") -> str:
    return json.dumps({"object": "list", "data": [{"id": "m", "object": "model", "owned_by": owner}]})


def sglang_info(**events: object) -> str:
    told = {"publisher": "zmq", "endpoint_host": "*", "endpoint_port_base": 5557, "topic": "kv", "dp_size": 1}
    return json.dumps({"version": "0.5.23", "kv_events": {**told, "replay_endpoint_port_base": 5558, **events}})


SERVERS: Mapping[str, Mapping[str, str]] = {
    "vllm": {
        "/v1/models": models(),
        "/health": "",
        "/metrics": VLLM_PAGE,
        "/version": '{"version": "0.32.0"}',
        "/kv_event_sources": json.dumps({"0": {"endpoint": "tcp://*:5557", "publisher": "zmq"}}),
    },
    # The server's /health computes a token and takes longer than a probe's second, so nothing here may request it.
    "sglang": {"/v1/models": models(), "/ready": "", "/metrics": SGLANG_PAGE, "/server_info": sglang_info()},
    "sglang without metrics": {"/v1/models": models(), "/server_info": sglang_info(dp_size=2)},  # nor /ready: older
    "trtllm": {
        "/v1/models": models(),
        "/health": "",
        "/metrics": "[]",
        "/prometheus/metrics": TRTLLM_PAGE,
        "/version": '{"version": "1.3.0"}',
    },
    "owned by sglang": {"/v1/models": models("sglang"), "/ready": ""},
    "openai": {"/v1/models": models("someone")},
}


class OtherEngine:
    """An engine with these pages. `base` is a path before them, as in vLLM with --root-path behind a proxy."""

    def __init__(
        self,
        pages: Mapping[str, str],
        address: tuple[str, int] = ("127.0.0.1", 0),
        base: str = "",
        secure: ssl.SSLContext | None = None,
    ) -> None:
        self.base, self.scheme = base, "http" if secure is None else "https"
        self.pages = {base + path: page for path, page in pages.items()}
        self.asked: list[str] = []
        self.redirect = ""  # target of every page's redirect; empty: none
        self.key = ""  # a key that the server requires on /v1
        self.closed = False
        handler = type("Handler", (_Handler,), {"engine": self})
        self._server = ThreadingHTTPServer(address, handler)
        self._server.daemon_threads = True
        if secure is not None:
            socket = self._server.socket
            self._server.socket = secure.wrap_socket(socket, server_side=True, do_handshake_on_connect=False)
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self._server.server_address[0]!s}:{self.port}{self.base}"

    def close(self) -> None:
        self.closed = True
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    engine: OtherEngine

    def _shows_the_key(self) -> bool:
        return self.headers.get("authorization") == f"Bearer {self.engine.key}"

    def do_GET(self) -> None:
        if self.engine.closed:
            self.close_connection = True
            return
        self.engine.asked.append(self.path)
        if self.engine.key and self.path.startswith("/v1") and not self._shows_the_key():
            self.send_response(401)
            self.send_header("content-length", "0")
            self.end_headers()
            return
        page = self.engine.pages.get(self.path)
        body = (page or "").encode()
        self.send_response(302 if self.engine.redirect else 404 if page is None else 200)
        if self.engine.redirect:
            self.send_header("location", self.engine.redirect)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *words: object) -> None:
        pass

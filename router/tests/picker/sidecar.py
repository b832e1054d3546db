"""A stand-in for llm-d's routing sidecar (v0.10, connector nixlv2), a Go program: how it changes requests.

It listens at a decoder's address. A request to a path in `DIVIDED` that names a prefill instance goes there first, for
one token and without a stream; the KV location in that answer goes with the request to the decoder. If the prefill
fails, its answer is returned. Everything else is passed on.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import orjson

PREFILLER = "x-prefiller-host-port"
# Since v0.9; v0.8 passes /v1/messages on. The sidecar also divides /inference/v1/generate, which Weir does not route.
DIVIDED = ("/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses")
LIMITS = {"/v1/responses": ("max_output_tokens",)}
HOLD = {
    **{"do_remote_decode": True, "do_remote_prefill": False},
    **dict.fromkeys(("remote_engine_id", "remote_block_ids", "remote_host", "remote_port")),
}
ENDS_HERE = ("connection", "transfer-encoding", "content-length", "host", "keep-alive")


class Sidecar(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, decoder: int) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.decoder = decoder
        self.prefillers: list[tuple[str, str]] = []  # path and prefill instance of each divided request
        self.client = httpx.Client(timeout=30)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Sidecar

    def do_GET(self) -> None:
        self._pass_on(b"")

    def do_POST(self) -> None:
        body = self._body()
        prefiller = self.headers.get(PREFILLER)
        if prefiller is not None and self.path in DIVIDED:
            self.server.prefillers.append((self.path, prefiller))
            document = orjson.loads(body)
            answer = self._prefilled(prefiller, document)
            if answer.status_code != 200:
                self._begin(answer.status_code, answer.headers)
                self._chunk(answer.content)
                self._chunk(b"")
                return
            body = orjson.dumps(document | {"kv_transfer_params": answer.json()["kv_transfer_params"]})
        self._pass_on(body)

    def _body(self) -> bytes:
        if "chunked" not in self.headers.get("transfer-encoding", ""):
            return self.rfile.read(int(self.headers.get("content-length", 0)))
        whole = b""
        while size := int(self.rfile.readline(), 16):
            whole += self.rfile.read(size + 2)[:size]
        self.rfile.readline()
        return whole

    def _prefilled(self, prefiller: str, document: dict[str, Any]) -> httpx.Response:
        limits = LIMITS.get(self.path, ("max_tokens", "max_completion_tokens"))
        asked = document | {"stream": False, "kv_transfer_params": HOLD} | dict.fromkeys(limits, 1)
        asked.pop("stream_options", None)
        try:
            return self.server.client.post(f"http://{prefiller}{self.path}", json=asked, headers=self._kept())
        except httpx.HTTPError as error:
            return httpx.Response(502, text=str(error))

    def _kept(self) -> dict[str, str]:
        return {name: value for name, value in self.headers.items() if name.lower() not in (*ENDS_HERE, PREFILLER)}

    def _pass_on(self, body: bytes) -> None:
        url = f"http://127.0.0.1:{self.server.decoder}{self.path}"
        with self.server.client.stream(self.command, url, content=body, headers=self._kept()) as answer:
            self._begin(answer.status_code, answer.headers)
            for data in answer.iter_raw():
                self._chunk(data)
            self._chunk(b"")

    def _begin(self, status: int, headers: httpx.Headers) -> None:
        self.send_response(status)
        for name, value in headers.items():
            if name.lower() not in ENDS_HERE:
                self.send_header(name, value)
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))

    def log_message(self, *said: object) -> None:
        pass


@contextmanager
def sidecar(decoder: int) -> Iterator[Sidecar]:
    with Sidecar(decoder) as made:
        thread = threading.Thread(target=made.serve_forever, daemon=True)
        thread.start()
        try:
            yield made
        finally:
            made.shutdown()
            thread.join(10)
            made.client.close()

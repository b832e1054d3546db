"""The ASGI application: vLLM's HTTP API over the services of its data-parallel ranks, usually one."""

import asyncio
import hmac
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Any
from urllib.parse import parse_qs

import msgspec
import orjson

from fleet.simengine import generation
from fleet.simengine.http import media
from fleet.simengine.http.body import Body, messages, parse
from fleet.simengine.http.errors import ApiError, bad_sleep
from fleet.simengine.http.formats.anthropic import MESSAGES
from fleet.simengine.http.formats.chat import CHAT
from fleet.simengine.http.formats.completions import COMPLETIONS
from fleet.simengine.http.formats.format import ApiFormat
from fleet.simengine.http.formats.openai import error_body, model_of
from fleet.simengine.http.formats.responses import RESPONSES
from fleet.simengine.job import EngineJob
from fleet.simengine.ranks import Ranks
from fleet.simengine.service import Service

Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

VERSION = "0.24.0+weir.sim"  # release that the step-time law was fitted to

FORMATS = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": COMPLETIONS,
    "/v1/messages": MESSAGES,
    "/v1/responses": RESPONSES,
}

_JSON = (b"content-type", b"application/json")
_EVENTS = (b"content-type", b"text/event-stream; charset=utf-8")
_PAGE = (b"content-type", b"text/plain; version=0.0.4; charset=utf-8")


class ClientDisconnected(Exception):
    """The client disconnected before its request was complete."""


Query = Mapping[str, list[str]]


class App:
    def __init__(self, *services: Service, api_key: str = "") -> None:
        """Create the application. `api_key` is required on /v1, as with vLLM's --api-key; if it is empty, no key is."""
        self._api_key = f"Bearer {api_key}".encode() if api_key else b""
        self._ranks = ranks = Ranks(services)
        self._service = service = services[0]  # serves requests that concern no particular rank
        self._reads: dict[str, Callable[[], tuple[bytes, tuple[bytes, bytes]]]] = {
            "/health": lambda: (b"", _JSON),
            "/ping": lambda: (b"", _JSON),
            "/version": lambda: (orjson.dumps({"version": VERSION}), _JSON),
            "/load": lambda: (orjson.dumps({"server_load": ranks.load}), _JSON),
            "/v1/models": lambda: (self._models(), _JSON),
            "/is_sleeping": lambda: (orjson.dumps({"is_sleeping": service.sleep_mode.is_sleeping}), _JSON),
            "/kv_event_sources": lambda: (ranks.sources(), _JSON),
            "/metrics": lambda: (ranks.metrics_page(), _PAGE),
        }
        for path, read in service.connector_reads.items():
            self._reads[path] = partial(lambda read: (read(), _JSON), read)
        self._writes: dict[str, Callable[[bytes], bytes]] = {
            "/tokenize": self._tokenize,
            "/detokenize": self._detokenize,
            "/reset_prefix_cache": lambda raw: orjson.dumps({"success": ranks.reset_cache()}),
            "/v1/embeddings": self._embed,
            "/collective_rpc": self._collective_rpc,
        }
        self._writes |= {f"{path}/render": partial(self._render, shape) for path, shape in FORMATS.items()}
        if service.adapters.slots:
            self._writes |= {
                "/v1/load_lora_adapter": lambda raw: service.adapters.load(parse(raw)).encode(),
                "/v1/unload_lora_adapter": lambda raw: service.adapters.unload(parse(raw)).encode(),
            }
        self._posts = {path: partial(self._exchange, path) for path in service.connector_writes}
        self._posts |= {path: partial(self._make, path) for path in media.ANSWERS}
        # Handlers by path, called with the query; paths as in vLLM with --enable-sleep-mode.
        self._orders: dict[str, Callable[[Query], None]] = {
            "/sleep": lambda query: ranks.sleep(_level(query)),
            "/wake_up": lambda query: ranks.wake(query.get("tags", [])),
        }

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"unexpected ASGI scope {scope['type']}")
        path, method = scope["path"], scope["method"]
        if self._api_key and path.startswith("/v1") and method != "OPTIONS" and not self._may(scope["headers"]):
            await respond(send, 401, b'{"error":"Unauthorized"}')
            return
        await self._route(path, method, scope, receive, send)

    def _may(self, headers: Iterable[tuple[bytes, bytes]]) -> bool:
        shown = next((value for name, value in headers if name == b"authorization"), b"")
        return hmac.compare_digest(shown, self._api_key)

    async def _route(self, path: str, method: str, scope: Message, receive: Receive, send: Send) -> None:
        answer_with = FORMATS.get(path)
        if answer_with is not None and method == "POST":
            await self._generate(answer_with, scope, receive, send)
        elif method == "GET" and path in self._reads:
            body, kind = self._reads[path]()
            await respond(send, 200, body, kind)
        elif method == "POST" and path in self._orders:
            order, query = self._orders[path], parse_qs(scope.get("query_string", b"").decode("latin-1"))
            await self._write(lambda raw: order(query) or b"", receive, send)
        elif method == "POST" and path in self._writes:
            await self._write(self._writes[path], receive, send)
        elif method == "POST" and path in self._posts:
            await self._posts[path](scope, receive, send)
        elif path in {*self._reads, *self._writes, *self._orders, *media.ANSWERS, *FORMATS}:
            await respond(send, 405, b'{"detail":"Method Not Allowed"}')
        else:
            await respond(send, 404, b'{"detail":"Not Found"}')

    async def _generate(self, shape: ApiFormat, scope: Message, receive: Receive, send: Send) -> None:
        try:
            raw = await read_body(receive)
            # Parsing and hashing count as part of the law's API time.
            service = self._ranks.chosen(scope["headers"])
            arrived_s = service.now_s()
            params = shape.parse(parse(raw))
            job = service.start(params, self._id(shape, scope["headers"]), arrived_s)
        except ClientDisconnected:
            return
        except ApiError as error:
            await respond(send, error.status, shape.error_body(error))
            return
        watch = asyncio.create_task(_watch(receive, job))
        try:
            await (_stream if job.params.stream else _whole)(shape, job, send)
        finally:
            watch.cancel()
            service.finish(job)

    async def _write(self, make: Callable[[bytes], bytes], receive: Receive, send: Send) -> None:
        try:
            body = make(await read_body(receive))
        except ClientDisconnected:
            return
        except ApiError as error:
            await respond(send, error.status, error_body(error))
            return
        await respond(send, 200, body)

    async def _make(self, path: str, scope: Message, receive: Receive, send: Send) -> None:
        """Answer with audio or images."""
        try:
            raw = await read_body(receive)
            form = media.read(raw, [value for name, value in scope["headers"] if name == b"content-type"])
            self._service.check_model(form.model)
            made = media.ANSWERS[path](form)
        except ClientDisconnected:
            return
        except ApiError as error:
            await respond(send, error.status, error_body(error))
            return
        await respond(send, 200, made.body, (b"content-type", made.kind))

    def _collective_rpc(self, raw: bytes) -> bytes:
        method = parse(raw).get("method")
        if method != "reload_weights":
            raise bad_sleep(f"method must be reload_weights, not {method!r:.40}")
        self._ranks.reload_weights()
        return b'{"results":[null]}'

    async def _exchange(self, path: str, scope: Message, receive: Receive, send: Send) -> None:
        """Pass another engine's request to the connector, and answer it."""
        try:
            status, answer = await self._ranks.exchange(path, await read_body(receive))
        except ClientDisconnected:
            return
        except msgspec.DecodeError as error:
            status, answer = 400, orjson.dumps({"error": str(error)})
        await respond(send, status, answer)

    def _id(self, shape: ApiFormat, headers: Iterable[tuple[bytes, bytes]]) -> str:
        given = next((value.decode("latin-1") for name, value in headers if name == b"x-request-id"), "")
        return shape.id_prefix + (given[:200] or self._service.new_id())

    def _models(self) -> bytes:
        about, shared = self._service.about, {"object": "model", "created": 0, "owned_by": "vllm", "permission": []}
        base = {"id": about.model, **shared, "root": about.model, "parent": None, "max_model_len": about.window}
        adapters = [
            {"id": name, **shared, "root": source, "parent": about.model}
            for name, source in self._service.adapters.sources.items()
        ]
        return orjson.dumps({"object": "list", "data": [base, *adapters]})

    def _tokenize(self, raw: bytes) -> bytes:
        body = parse(raw)
        self._service.check_model(model_of(body))
        prompt = body.get("prompt")
        data = prompt.encode() if isinstance(prompt, str) else generation.render(messages(body))
        ids = generation.to_ids(data)
        window = self._service.about.window
        return orjson.dumps({"count": len(ids), "max_model_len": window, "tokens": ids, "token_strs": None})

    def _render(self, shape: ApiFormat, raw: bytes) -> bytes:
        """Return the tokens of a prompt, like vLLM with --enable-scale-out."""
        params = shape.parse(parse(raw))
        self._service.check_model(params.model)
        return orjson.dumps({"token_ids": generation.to_ids(params.prompts[0]), "features": None})

    def _detokenize(self, raw: bytes) -> bytes:
        body = parse(raw)
        self._service.check_model(model_of(body))
        try:
            data = generation.from_ids(body.get("tokens", ()))
        except (OverflowError, TypeError):
            raise ApiError(400, "tokens: Input should be a list of token ids.", param="tokens") from None
        return orjson.dumps({"prompt": data.rstrip(b"\0").decode(errors="replace")})

    def _embed(self, raw: bytes) -> bytes:
        body: Body = parse(raw)
        self._service.check_model(model_of(body))
        raise ApiError(400, "The model does not support Embeddings API")


async def _whole(shape: ApiFormat, job: EngineJob, send: Send) -> None:
    await job.progress()
    if job.handover is not None and not await job.handover and not job.is_gone:
        job.failed = ApiError(500, f"Prefill transfer failed for request {job.id}", kind="InternalServerError")
    if job.failed is not None:
        await respond(send, job.failed.status, shape.error_body(job.failed))
    elif not job.is_gone:
        await respond(send, 200, shape.whole(job))


async def _stream(shape: ApiFormat, job: EngineJob, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [_EVENTS]})
    await job.progress()
    head = shape.begin(job)
    while not job.is_gone:
        if job.failed is not None:
            await send({"type": "http.response.body", "body": shape.error_event(job.failed)})
            return
        written = [head]
        written += [
            shape.chunk(job, choice, choice.take()) for choice in job.choices if choice.request.generated > choice.sent
        ]
        head = b""
        is_complete = job.is_complete
        if is_complete:
            written.append(shape.end(job))
        await send({"type": "http.response.body", "body": b"".join(written), "more_body": not is_complete})
        if is_complete:
            return
        await job.progress()


async def _watch(receive: Receive, job: EngineJob) -> None:
    """End the job when the client disconnects."""
    while (await receive())["type"] != "http.disconnect":
        pass
    job.is_gone = True
    job.let_go()
    job.wake()


async def read_body(receive: Receive) -> bytes:
    pieces = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnected
        pieces.append(message.get("body", b""))
        if not message.get("more_body"):
            return pieces[0] if len(pieces) == 1 else b"".join(pieces)


async def respond(send: Send, status: int, body: bytes, kind: tuple[bytes, bytes] = _JSON) -> None:
    headers = [kind, (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _level(query: Query) -> int:
    level = query.get("level", ["1"])[0]
    return int(level) if level.isdigit() and len(level) == 1 else 0

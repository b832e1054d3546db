"""The second half of an offload: decode where the KV was sent, or compute the prompt there if the KV did not arrive."""

import time

from router.contract.answer import answers
from router.flows.post import post
from router.http.headers import value_of
from router.pool.endpoint import Endpoint
from router.request.call import Call
from router.request.offload import Offload, PrefillFailed
from router.upstream.answer.beginning import Beginning
from router.upstream.connection import Connection
from router.upstream.errors import ConnectFailed
from router.upstream.response import EngineResponse


async def decode(call: Call, endpoint: Endpoint, offload: Offload, body: bytes, request_id: str = "") -> Connection:
    """Return the connection with the answer.
    Raise UpstreamError (the held blocks are lost, unless nothing was sent), and PrefillFailed if the KV did not arrive
    and the policy allows no fallback.
    """
    kept, offload.kept = offload.kept, None
    offload.sent = time.perf_counter()
    offload.transfer_bytes = _bytes_to_move(call, endpoint)
    try:
        connection = await post(call, endpoint, body, request_id=request_id)
    except ConnectFailed:
        offload.kept = kept
        raise
    if not _is_lost(call, connection):
        offload.outcome = "ok"
        return connection
    connection.release()
    why = f"{endpoint.id} did not get the KV of {offload.prefill}: {_message(connection)}"
    if call.rules["failure.offload_fallback"] == "fail" or endpoint.role == "decode":
        raise PrefillFailed(why, decoder=endpoint.id)
    offload.local("fallback", why)
    return await post(call, endpoint, call.request.body)


def _bytes_to_move(call: Call, endpoint: Endpoint) -> int | None:
    per_token = endpoint.kv.bytes_per_token
    if per_token is None or call.decision is None:
        return None
    return round(max(call.prediction.prompt_tokens - call.decision.cached_tokens, 0) * per_token)


def _is_lost(call: Call, connection: Connection) -> bool:
    """Return whether the engine failed before its first token: status 500, or a stream that begins with an error."""
    if connection.status == 500:
        return True
    if not is_stream(connection):
        return False
    beginning = Beginning()
    beginning.feed(connection.peek())
    error = beginning.error
    return error is not None and answers.result_of(error, has_content=False, asked=call.request.body) != "client_error"


def is_stream(connection: EngineResponse) -> bool:
    kind = value_of(connection.headers, b"content-type").lower()
    return connection.status == 200 and kind.startswith(b"text/event-stream")


def _message(connection: Connection) -> str:
    return connection.peek()[:300].decode("utf-8", "replace").strip() or f"status {connection.status}"

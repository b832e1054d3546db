"""Build the bodies of an offload's prefill and decode requests from the client's body. Pure."""

from collections.abc import Callable, Mapping

import orjson

from router.contract.api_paths import LIMITS
from router.contract.connectors import CONNECTORS
from router.contract.values.json_value import Json, JsonObject

# Options of the answer that are removed from a prefill: they cost time, or conflict with a single unstreamed token.
_OF_THE_ANSWER = (
    *("stream_options", "min_tokens", "logprobs", "top_logprobs", "stop", "stop_sequences", "ignore_eos"),
    *("response_format", "guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs"),
    *("kv_transfer_params", "max_tokens", "max_completion_tokens", "max_output_tokens", "background"),
)

# Fields for the bootstrap room in which SGLang's engines meet
ROOM = ("bootstrap_host", "bootstrap_port", "bootstrap_room", "disagg_prefill_dp_rank")


def unsuited(document: JsonObject, api_path: str, connector: str) -> str:
    """Return why a request cannot be offloaded; empty if it can."""
    if api_path not in LIMITS:
        return f"{api_path} decodes nothing"
    known = CONNECTORS.get(connector)
    if known is not None and known.api_paths and api_path not in known.api_paths:
        return f"{api_path} cannot be offloaded between {connector} instances"
    if _forced(document.get("tool_choice")) and not (known is not None and known.continues_token):
        return "tool_choice forces a call, which does not fit into one token"
    for holds, why in _UNSUITED:
        if holds(document):
            return why
    return ""


def _several(prompt: object) -> bool:
    return isinstance(prompt, list) and bool(prompt) and not isinstance(prompt[0], int)


def _forced(choice: object) -> bool:
    if isinstance(choice, dict):
        return choice.get("type") not in ("auto", "none")
    return choice not in (None, "auto", "none")


_UNSUITED: tuple[tuple[Callable[[JsonObject], bool], str], ...] = (
    # Each of several answers would fetch the blocks, but the first fetch frees them.
    (lambda body: (body.get("n") or 1) != 1 or (body.get("best_of") or 1) != 1, "several answers to one prompt"),
    (lambda body: bool(body.get("use_beam_search")), "beam search keeps several answers"),
    (lambda body: _several(body.get("prompt")), "several prompts in one request"),
    # Per-token data of the prompt exists only where the tokens are computed.
    (lambda body: bool(body.get("echo")), "echo: the prompt is part of the answer"),
    (lambda body: body.get("prompt_logprobs") is not None, "prompt_logprobs are known where the prompt is computed"),
    (
        lambda body: body.get("previous_response_id") is not None,
        "previous_response_id: one instance stores the response",
    ),
    (lambda body: "kv_transfer_params" in body, "the client sent its own kv_transfer_params"),
    (lambda body: "disaggregated_params" in body, "the client sent its own disaggregated_params"),
    (lambda body: any(name in body for name in ROOM), "the client sent its own bootstrap room"),
)


def prefill(
    document: JsonObject, api_path: str, params: Mapping[str, Json] | None = None, *, stream: bool = False
) -> bytes:
    """Return a body with the same prompt that requests one token."""
    asked: dict[str, object] = {name: value for name, value in document.items() if name not in _OF_THE_ANSWER}
    asked |= dict.fromkeys(LIMITS[api_path], 1) | {"stream": stream}
    if stream:
        asked["stream_options"] = {"include_usage": True}
    if api_path == "/v1/responses":
        asked["store"] = False  # nobody will fetch a one-token response
    if params is not None:
        asked["kv_transfer_params"] = params
    return orjson.dumps(asked)


def beginning(document: JsonObject, api_path: str, fields: Mapping[str, Json]) -> bytes:
    """Return the body for an engine that generates the first token of the answer and then stops; all options stay."""
    asked = {name: value for name, value in document.items() if name not in ("stream_options", "background")}
    if api_path == "/v1/responses":
        asked["store"] = False
    return orjson.dumps(asked | {"stream": False} | dict(fields))


def decode(body: bytes, params: Mapping[str, Json]) -> bytes:
    return with_fields(body, {"kv_transfer_params": dict(params)})


def with_fields(body: bytes, fields: Mapping[str, Json]) -> bytes:
    """Insert the location of the KV into the client's body without parsing a possibly long prompt. `unsuited` has
    already refused bodies that contain such fields.
    """
    start = body.index(b"{") + 1
    return b"%b%b,%b" % (body[:start], orjson.dumps(fields)[1:-1], body[start:])

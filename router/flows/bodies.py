"""What the two instances of an offload are asked, made from what the client asked. Pure."""

from collections.abc import Callable, Mapping
from typing import Any

import orjson

from router.contract.connectors import CONNECTORS
from router.tokenize.api_paths import LIMITS

# About the answer, which nobody will see: they cost time, or do not go with one token that is not streamed.
_OF_THE_ANSWER = (
    *("stream_options", "min_tokens", "logprobs", "top_logprobs", "stop", "stop_sequences", "ignore_eos"),
    *("response_format", "guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs"),
    *("kv_transfer_params", "max_tokens", "max_completion_tokens", "max_output_tokens", "background"),
)


def unsuited(document: Mapping[str, Any], api_path: str, connector: str) -> str:
    """Why a request has to be served by one instance, in words; empty when its prompt can be computed elsewhere."""
    if api_path not in LIMITS:
        return f"{api_path} has no answer to decode"
    known = CONNECTORS.get(connector)
    if known is not None and known.api_paths and api_path not in known.api_paths:
        return f"{api_path} cannot be served by two {connector} instances"
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


_UNSUITED: tuple[tuple[Callable[[Mapping[str, Any]], bool], str], ...] = (
    # Each of several answers would fetch the blocks, and the first one frees them.
    (lambda body: (body.get("n") or 1) != 1 or (body.get("best_of") or 1) != 1, "several answers to one prompt"),
    (lambda body: bool(body.get("use_beam_search")), "beam search keeps several answers"),
    (lambda body: _several(body.get("prompt")), "several prompts in one request"),
    # What is said of the prompt's own tokens is known only where they are computed.
    (lambda body: bool(body.get("echo")), "echo: the prompt is part of the answer"),
    (lambda body: body.get("prompt_logprobs") is not None, "prompt_logprobs are known where the prompt is computed"),
    # An engine that must answer by a tool call cannot end one within one token.
    (lambda body: _forced(body.get("tool_choice")), "tool_choice forces a call, which one token cannot hold"),
    (lambda body: body.get("previous_response_id") is not None, "previous_response_id: one instance keeps it"),
    (lambda body: "kv_transfer_params" in body, "the client sent kv_transfer_params of its own"),
)


def prefill(document: Mapping[str, Any], api_path: str, params: Mapping[str, Any] | None = None) -> bytes:
    """One token, not streamed, of the same prompt."""
    asked = {name: value for name, value in document.items() if name not in _OF_THE_ANSWER}
    asked |= dict.fromkeys(LIMITS[api_path], 1) | {"stream": False}
    if params is not None:
        asked["kv_transfer_params"] = params
    return orjson.dumps(asked)


def decode(body: bytes, params: Mapping[str, Any]) -> bytes:
    """The request as it came, and where its KV is: spliced in, since the prompt may be long.

    A body that names `kv_transfer_params` itself is not offloaded (`unsuited`).
    """
    start = body.index(b"{") + 1
    return b'%b"kv_transfer_params":%b,%b' % (body[:start], orjson.dumps(params), body[start:])

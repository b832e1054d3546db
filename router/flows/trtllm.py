"""TensorRT-LLM's disaggregated serving (1.3), context first, like `trtllm-serve disaggregated`. The context server's
answer contains the first token and the location of the KV. The generation server's answer begins with that token, so it
passes unchanged. An answer that is complete after its first token needs no generation server.
"""

import random
from typing import cast

import orjson

from router.contract.values.json_value import JsonObject
from router.flows import bodies
from router.flows.decode import decode
from router.flows.prefill import prefill
from router.flows.whole_answer import WholeAnswer
from router.pool.endpoint import Endpoint
from router.request.call import Call
from router.request.offload import Offload
from router.upstream.response import EngineResponse

UNFINISHED = ("length", "not_finished", None)  # finish reasons that need a generation server
GLOBAL_ID = 1 << 62  # id of a request on both servers; ids below 2**42 are local to a server


async def serve(call: Call, prefiller: Endpoint, decoder: Endpoint, offload: Offload, tokens: int) -> EngineResponse:
    asked = bodies.beginning(call.request.prompt.document, call.api_path, _context())
    answer = await prefill(call, prefiller, offload, asked, tokens, _unusable)
    choice = cast(list[JsonObject], answer["choices"])[0]  # `_unusable` has checked its shape
    if choice.get("finish_reason") in UNFINISHED:
        further = _for_generation(answer, cast(JsonObject, choice["disaggregated_params"]), call.api_path)
        offload.kept = orjson.dumps(orjson.loads(call.request.body) | further)
        return await decode(call, decoder, offload, offload.kept)
    offload.outcome = "ok"
    offload.moved(prefiller.id, f"{prefiller.id} completed the answer: it ends with its first token")
    for made, name in ((choice, "disaggregated_params"), (answer, "prompt_token_ids")):
        made.pop(name, None)
    return WholeAnswer(answer, streams=call.request.prompt.stream)


def _context() -> JsonObject:
    params: JsonObject = {"request_type": "context_only", "disagg_request_id": GLOBAL_ID | random.getrandbits(62)}
    return {"disaggregated_params": params}


def _unusable(answer: JsonObject) -> str:
    """Return why a context server's answer cannot be continued; empty if it can be, or if it is complete."""
    choices = answer.get("choices")
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
        return "the answer to a context request must have one choice"
    if choices[0].get("finish_reason") not in UNFINISHED:
        return ""
    params = choices[0].get("disaggregated_params")
    if not isinstance(params, dict):
        return "the answer has no disaggregated_params: is it a context server with a cache transceiver?"
    if not isinstance(params.get("ctx_request_id"), int):
        return "the answer has no disaggregated_params.ctx_request_id"
    return ""


def _for_generation(answer: JsonObject, params: JsonObject, api_path: str) -> JsonObject:
    """Return the fields of the generation request. Its token ids save tokenizing the prompt again."""
    params = {**params, "request_type": "generation_only"}
    if "ctx_usage" in params:  # servers that do not know the field refuse it
        params["ctx_usage"] = answer.get("usage")
    ids = answer.get("prompt_token_ids")
    if not isinstance(ids, list) or not ids:
        return {"disaggregated_params": params}
    name = "prompt" if api_path == "/v1/completions" else "prompt_token_ids"
    return {"disaggregated_params": params, name: ids}

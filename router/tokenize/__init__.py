"""A request's body, as parsed by the router."""

from router.contract.values.json_value import JsonObject
from router.policy.value import Value


class Prompt(Value, frozen=True):
    model: str  # empty if the body names no model
    rendered: bytes  # conversations with equal prefixes have equal prefixes in this text
    token_ids: int | None  # number of token ids in the prompt; None: tokens are estimated
    stream: bool
    usage_asked: bool  # the client asked for the usage chunk of a stream
    document: JsonObject = {}  # the body
    priority: object = None  # value in the body
    rewritten: bool = False  # `document` differs from the client's body
    plain: bool = False  # True if each of the `messages` has only a role and a text

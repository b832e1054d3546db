"""Log probabilities of an answer's tokens in OpenAI's two shapes: a function of the token and its position."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
from xxhash import xxh3_64_intdigest

from fleet.simengine.generation import BYTES_PER_TOKEN, syllable
from fleet.simengine.http.body import Body, flag, integer
from fleet.simengine.http.errors import ApiError
from fleet.simengine.job import Choice

TOP_MAX = 20  # vLLM's --max-logprobs


def of_chat(body: Body) -> int | None:
    """Return the number of alternatives per token; None if no log probabilities are requested."""
    wanted = flag(body, "logprobs")
    top = integer(body, "top_logprobs", 0, minimum=0) or 0
    if top and not wanted:
        raise ApiError(400, "when using `top_logprobs`, `logprobs` must be set to true.", param="top_logprobs")
    return _allowed(top, "top_logprobs") if wanted else None


def of_completion(body: Body) -> int | None:
    top = integer(body, "logprobs", None, minimum=0)
    return None if top is None else _allowed(top, "logprobs")


def _allowed(top: int, name: str) -> int:
    if top > TOP_MAX:
        message = f"Requested sample logprobs of {top}, which is greater than max allowed: {TOP_MAX}"
        raise ApiError(400, message, param=name)
    return top


@dataclass(frozen=True, slots=True)
class Token:
    text: str
    offset: int  # offset in the answer
    top: dict[str, float]  # log probabilities, highest first: the token itself, then alternatives

    @property
    def logprob(self) -> float:
        return self.top[self.text]


def tokens_of(choice: Choice, which: range) -> Iterator[Token]:
    listed = max(1, choice.job.params.logprobs or 0)
    for index in which:
        offset = index * BYTES_PER_TOKEN
        text = choice.answer.text[offset : offset + BYTES_PER_TOKEN]
        yield Token(text, min(offset, len(choice.answer.text)), _top(text, index, listed))


def _top(text: str, index: int, listed: int) -> dict[str, float]:
    """Give the token itself at least half of the probability, and each alternative half of what remains."""
    key = xxh3_64_intdigest(text.encode(), index)
    share = 0.5 + key % 1_000 / 2_001
    found, left = {text: math.log(share)}, 1 - share
    while len(found) < listed:
        key = xxh3_64_intdigest(b"", key)
        if (other := syllable(key)) not in found:
            left /= 2
            found[other] = math.log(left)
    return found


def chat(choice: Choice, which: range) -> bytes:
    listed = choice.job.params.logprobs or 0
    content = [
        {**_entry(token.text, token.logprob), "top_logprobs": [_entry(*pair) for pair in [*token.top.items()][:listed]]}
        for token in tokens_of(choice, which)
    ]
    return msgspec.json.encode({"content": content})


def _entry(text: str, logprob: float) -> dict[str, object]:
    return {"token": text, "logprob": logprob, "bytes": list(text.encode())}


def completion(choice: Choice, which: range) -> bytes:
    tokens = list(tokens_of(choice, which))
    return msgspec.json.encode(
        {
            "text_offset": [token.offset for token in tokens],
            "token_logprobs": [token.logprob for token in tokens],
            "tokens": [token.text for token in tokens],
            "top_logprobs": [token.top for token in tokens],
        }
    )

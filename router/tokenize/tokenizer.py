"""Interface of tokenizers: a request's prompt as the tokens that its engine computes."""

import sys
from array import array
from collections.abc import Iterable
from typing import Any, Protocol

from router.contract.json_value import JsonObject
from router.tokenize.prompt import Prompt


class NotTokenized(Exception):
    """The router cannot tokenise this request as its engine does; the message says why."""


class Tokenizer(Protocol):
    attention_chunk: int  # tokens in a chunk of the model's attention, as Llama 4 has it; 0 without

    def is_quick(self, prompt: Prompt) -> bool:
        """It takes less time than a thread switch."""
        ...

    def tokens(self, prompt: Prompt, api_path: str) -> bytes:
        """32-bit little-endian token ids. Raises NotTokenized. Called in one thread at a time."""
        ...


def packed(ids: Iterable[Any]) -> bytes:
    """Raises NotTokenized for invalid token ids."""
    try:
        words = array("I", ids)
    except (TypeError, OverflowError):
        raise NotTokenized("the prompt contains an invalid token id") from None
    if sys.byteorder == "big":
        words.byteswap()
    return words.tobytes()


def given_ids(document: JsonObject) -> bytes | None:
    """The prompt's token ids, None when it is text. Raises NotTokenized for several prompts."""
    prompt = document.get("prompt")
    if not isinstance(prompt, list):
        return None
    if len(prompt) == 1 and isinstance(prompt[0], list):
        prompt = prompt[0]
    if not prompt or not isinstance(prompt[0], int):
        raise NotTokenized("several prompts in one request")
    return packed(prompt)

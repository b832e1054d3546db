"""The interface of tokenizers, which return the tokens that a prompt's engine computes."""

import sys
from array import array
from collections.abc import Iterable
from typing import Any, Protocol

from router.contract.values.json_value import JsonObject
from router.tokenize import Prompt


class NotTokenized(Exception):
    """The router cannot tokenize this request like its engine; the message has the reason."""


class EngineRenders(NotTokenized):
    """Only the engine's own code renders the prompt. It needs only the request, so the engine can be asked for the
    tokens.
    """


class Tokenizer(Protocol):
    attention_chunk: int  # tokens in a chunk of the model's attention (Llama 4); 0: none
    unsalted: frozenset[str]  # APIs for which its engine ignores a salt
    forgetful: bool  # True if layers of the model keep a window or a state instead of all tokens

    def is_quick(self, prompt: Prompt) -> bool:
        """Return whether tokenizing takes less time than a thread switch."""
        ...

    def tokens(self, prompt: Prompt, api_path: str) -> bytes:
        """Return 32-bit little-endian token ids. Raise NotTokenized. Only one thread calls this at a time."""
        ...


def packed(ids: Iterable[Any]) -> bytes:
    """Pack token ids. Raise NotTokenized for invalid ones."""
    try:
        words = array("I", ids)
    except (TypeError, OverflowError):
        raise NotTokenized("the prompt contains an invalid token id") from None
    if sys.byteorder == "big":
        words.byteswap()
    return words.tobytes()


def given_ids(document: JsonObject) -> bytes | None:
    """Return the prompt's token ids; None if it is text. Raise NotTokenized for several prompts."""
    prompt = document.get("prompt")
    if not isinstance(prompt, list):
        return None
    if len(prompt) == 1 and isinstance(prompt[0], list):
        prompt = prompt[0]
    if not prompt or not isinstance(prompt[0], int):
        raise NotTokenized("several prompts in one request")
    return packed(prompt)

"""What turns a request into the tokens that its engine will compute."""

import sys
from array import array
from collections.abc import Iterable
from typing import Any, Protocol

from router.tokenize.prompt import Prompt


class NotTokenized(Exception):
    """This request cannot be tokenised as its engine would; the message says why."""


class Tokenizer(Protocol):
    def is_quick(self, prompt: Prompt) -> bool:
        """It takes less time than handing it to a thread would."""
        ...

    def tokens(self, prompt: Prompt, api_path: str) -> bytes:
        """32-bit little-endian numbers. Raises NotTokenized. Called in one thread at a time."""
        ...


def packed(ids: Iterable[Any]) -> bytes:
    """Raises NotTokenized for what is no token id."""
    try:
        words = array("I", ids)
    except (TypeError, OverflowError):
        raise NotTokenized("the prompt holds what is no token id") from None
    if sys.byteorder == "big":
        words.byteswap()
    return words.tobytes()


def given_ids(document: dict[str, Any]) -> bytes | None:
    """The prompt's token ids when it came as such, None when it is text. Raises NotTokenized for several prompts."""
    prompt = document.get("prompt")
    if not isinstance(prompt, list):
        return None
    if len(prompt) == 1 and isinstance(prompt[0], list):
        prompt = prompt[0]
    if not prompt or not isinstance(prompt[0], int):
        raise NotTokenized("there are several prompts in one request")
    return packed(prompt)

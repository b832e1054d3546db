"""Reads the prompt of a request's body, of a large one in a thread: the event loop serves others meanwhile."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import cache

from router.http.errors import ErrorResponse
from router.tokenize import prompt
from router.tokenize.prompt import InvalidBody, Prompt

# A stream tells its usage only when asked, in a chunk of its own. The other APIs always tell it.
USAGE_ON_REQUEST = ("/v1/chat/completions", "/v1/completions")


def read(body: bytes, api_path: str) -> tuple[Prompt, bytes]:
    """The prompt, and the body for the engine. Raises ErrorResponse."""
    try:
        found = prompt.read(body, api_path)
        return found, prompt.with_usage(body, found.document) if strips_usage(found, api_path) else body
    except InvalidBody as error:
        raise ErrorResponse(400, error.code, str(error)) from None


async def read_large(body: bytes, api_path: str) -> tuple[Prompt, bytes]:
    """As `read`, of a body of more than bounds.SMALL bytes."""
    return await asyncio.get_running_loop().run_in_executor(_thread(), read, body, api_path)


def strips_usage(read: Prompt, api_path: str) -> bool:
    """The router asks for the usage of the stream, the client does not."""
    return read.stream and not read.usage_asked and api_path in USAGE_ON_REQUEST


@cache
def _thread() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, thread_name_prefix="read")  # one: more would only take turns from the event loop

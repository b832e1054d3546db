"""Loads the tokenizer of a pool's prompts: the one that its instances name, once."""

import asyncio
import time
from pathlib import Path

from router.pool.pool import Pool
from router.tokenize.sim import SimTokenizer
from router.tokenize.tokenizer import Tokenizer

SIM = "sim"
RETRY_S = 30.0  # an unreadable folder may be readable later
_MISSING = "no tokenizer is named for its model"


async def provide_tokenizer(pool: Pool) -> None:
    """Give the pool the tokenizer that its instances name; on failure the reason is in `no_tokens`."""
    named = {endpoint.tokenizer for endpoint in pool.endpoints.values() if endpoint.events_url}
    state = pool.kv_event_state
    if len(named) != 1 or "" in named:
        state.reader, state.reader_name = None, ""
        state.no_tokens = "its instances name different tokenizers" if len(named) > 1 else _MISSING
        return
    (name,) = named
    if name == state.reader_name and (state.reader is not None or time.monotonic() - state.reader_at < RETRY_S):
        return
    state.reader_name, state.reader_at = name, time.monotonic()
    try:
        state.reader = await _loaded(name)
        state.no_tokens = ""
    except Exception as error:  # the folder may contain anything; the approximate index is used instead
        state.reader = None
        state.no_tokens = f"the tokenizer {name} cannot be used: {error}"[:300]


async def _loaded(name: str) -> Tokenizer:
    if name == SIM:
        return SimTokenizer()
    return await asyncio.get_running_loop().run_in_executor(None, _folder, Path(name))


def _folder(folder: Path) -> Tokenizer:
    # Imported on first use: the library takes 30 MB and 0.1 s.
    from router.tokenize.folder import FolderTokenizer

    return FolderTokenizer(folder)

"""Probes engines that seem to hang with one-token requests, one at a time per engine, so that no client waits for them.
An engine that answers is not stalled, unless only its clients' requests stay without a token. Three kinds of engines
are tried with clients' requests instead: those that hang only on clients' requests, those that refuse probes because
they do not generate (unless this router holds nothing there), and those that only decode.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable

import orjson

from router.contract.answer import answers
from router.contract.values.json_value import JsonObject
from router.pool.endpoint import Endpoint
from router.pool.pool import Pool
from router.upstream.errors import UpstreamError
from router.workers.own_request import ask
from router.workers.stepping import take_steps

log = logging.getLogger("weir.router")

STEP_S = 1.0
TIMEOUT_S = 10.0  # limit for an answer; the engine is tried again later
LARGEST = 64 * 1024  # bytes of an answer
PROMPTS: dict[str, JsonObject] = {"/v1/completions": {"prompt": "1", "max_tokens": 1}, "/v1/embeddings": {"input": "1"}}


class StallProbes:
    def __init__(self, pools: Callable[[], Iterable[Pool]]) -> None:
        self._pools = pools
        self._asked: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Run until cancelled."""
        await take_steps(STEP_S, self.step, lambda: self._asked)

    def step(self) -> None:
        for pool in self._pools():
            for endpoint in pool.endpoints.values():
                if endpoint.progress.is_suspected and endpoint.progress.begin(probe=True):
                    task = asyncio.get_running_loop().create_task(_try(pool, endpoint))
                    self._asked.add(task)
                    task.add_done_callback(self._asked.discard)


async def _try(pool: Pool, endpoint: Endpoint) -> None:
    is_understood = True
    try:
        is_understood = endpoint.role != "decode" and await _understands(pool, endpoint)
    except (UpstreamError, TimeoutError) as error:
        log.info("%s: it hangs: %s", endpoint.id, error or "no answer to a request of one token")
    finally:
        endpoint.progress.end()
    if is_understood:
        return
    if endpoint.role == "decode" or endpoint.holds_requests or endpoint.picked or endpoint.progress.stalled:
        endpoint.progress.try_by_requests()
    else:  # the engine may be computing images for other routers
        endpoint.progress.excuse()


async def _understands(pool: Pool, endpoint: Endpoint) -> bool:
    """Return whether the engine accepts some kind of probe."""
    for path, prompt in PROMPTS.items():
        status = await _status(endpoint, path, orjson.dumps({"model": pool.model, **prompt}))
        if status == 200:
            endpoint.progress.probed()
        if status < 400 or status >= 500 or status == 429:
            return True
    return False


async def _status(endpoint: Endpoint, path: str, body: bytes) -> int:
    """Return the status of a complete answer; an error inside the answer replaces its status."""
    status, answer = await ask(endpoint, path, body, TIMEOUT_S, LARGEST)
    is_wrong = status == 200 and answers.wrong_with(answers.said(answer), answer, path) is not None
    return 500 if is_wrong else status

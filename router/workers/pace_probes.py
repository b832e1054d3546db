"""Measures the pace of instances with too little traffic, such as slow instances, which get only short prompts. In a
pool with several speed groups, an idle instance whose last long prompt is older than MEASURED_S is sent an uncached
prompt and answers with one token. One instance per pool is probed at a time.
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable, Iterable

import orjson

from router.contract.answer import answers
from router.pool.endpoint import Endpoint
from router.pool.pool import Pool
from router.upstream.answer import usage
from router.upstream.answer.used import Usage
from router.upstream.errors import UpstreamError
from router.workers.own_request import ask
from router.workers.stepping import take_steps

log = logging.getLogger("weir.router")

STEP_S = 1.0
MEASURED_S = 600.0  # time for which a pace is valid
TIMEOUT_S = 30.0
WORDS = 1_500  # words of the prompt; with any tokenizer, they exceed pace.SHORTEST tokens
LARGEST = 1024 * 1024  # bytes of an answer


# (pool, endpoint, computed tokens, seconds, time in s, Unix)
Computed = Callable[[Pool, str, int, float, float], object]


class PaceProbes:
    def __init__(self, pools: Callable[[], Iterable[Pool]], computed: Computed) -> None:
        self._pools = pools
        self._computed = computed
        self._asked: dict[str, asyncio.Task[None]] = {}  # by pool
        self._tried_at: dict[tuple[str, int], float] = {}  # time of the last probe by endpoint and epoch; s, Unix

    async def run(self) -> None:
        """Run until cancelled."""
        await take_steps(STEP_S, lambda: self.step(time.time()), self._asked.values)

    def step(self, now: float) -> None:
        for name in [name for name, task in self._asked.items() if task.done()]:
            del self._asked[name]
        self._tried_at = {key: at for key, at in self._tried_at.items() if now - at < MEASURED_S}
        for pool in self._pools():
            endpoint = self._unmeasured(pool, now) if pool.name not in self._asked else None
            if endpoint is not None:
                self._tried_at[endpoint.id, endpoint.epoch] = now
                self._asked[pool.name] = asyncio.get_running_loop().create_task(self._measure(pool, endpoint))

    def _unmeasured(self, pool: Pool, now: float) -> Endpoint | None:
        endpoints = pool.endpoints.values()
        if not pool.is_mixed:
            return None
        return next((one for one in endpoints if now - one.measured_at > MEASURED_S and self._is_idle(one)), None)

    def _is_idle(self, endpoint: Endpoint) -> bool:
        able = endpoint.takes_requests and endpoint.role != "decode" and endpoint.breaker.state == "closed"
        idle = not endpoint.requests and not endpoint.others[0] and not endpoint.waiting
        return able and idle and (endpoint.id, endpoint.epoch) not in self._tried_at

    async def _measure(self, pool: Pool, endpoint: Endpoint) -> None:
        with endpoint.lease(WORDS, pool.queue.wake) as lease:
            began = time.perf_counter()
            tokens = await _compute(endpoint, pool.model)
            seconds = time.perf_counter() - began
            if tokens and lease.alone and endpoint.requests == 1:
                self._computed(pool, endpoint.id, tokens, seconds, time.time())


async def _compute(endpoint: Endpoint, model: str) -> int:
    """Return the new tokens that the engine computed; 0 if it failed to."""
    draw = random.Random()  # noqa: S311 - no secret
    prompt = " ".join(str(draw.randrange(1_000, 10_000)) for _ in range(WORDS))
    body = orjson.dumps({"model": model, "prompt": prompt, "max_tokens": 1})
    try:
        status, raw = await ask(endpoint, "/v1/completions", body, TIMEOUT_S, LARGEST)
    except (UpstreamError, TimeoutError) as error:
        log.info("%s: its pace was not measured: %s", endpoint.id, error or "no answer in time")
        return 0
    answer = answers.said(raw) if status == 200 else None
    reported = answers.usage_of(answer) if answer is not None else None
    used = usage.parse(reported) if reported is not None else Usage()
    return (used.prompt_tokens or 0) - (used.cached_tokens or 0)

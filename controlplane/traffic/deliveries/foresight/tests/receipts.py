"""Receipts in Redis, as routers write them: 500 within 499 s for the pool demo, all warm, the newest a minute old."""

import time

import redis

from router.contract.redis import codec, redis_keys
from router.contract.redis.receipt import Receipt

COUNT = 500
# For a canary of 5 % for a minute whose guards judge only the class warm, or say that the others are below 1 %.
WARM_IN_A_MINUTE = "step 1 · warm: about 3 of the 30 requests needed in 1 min; the step waits for it, about 10 min"


def fill(client: redis.Redis, age_s: float = 60.0) -> None:
    newest = time.time() - age_s
    for number in range(COUNT):
        receipt = Receipt(
            request_id=f"q{number}",
            at=newest - COUNT + 1 + number,
            pool="demo",
            request_class="warm",
            outcome="ok",
            session=f"s{number}",
            ttft_ms=90.0,
            tpot_ms=9.0,
        )
        client.xadd(redis_keys.RECEIPTS, {"r": codec.encode(receipt)})

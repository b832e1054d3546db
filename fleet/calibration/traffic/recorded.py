"""Requests of one engine, from the receipts that routers recorded. Pure except for `read_receipts`."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from fleet.engine.engine_model import ServedRequest
from fleet.redis import connect
from router.contract.redis import redis_keys
from router.contract.redis.codec import decode
from router.contract.redis.receipt import Receipt

PAGE = 500  # receipts per page


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """A recorded request. Seconds are the engine's: with a time scale of 10, ten times those of the wall clock."""

    sent_s: float  # time at which it was sent to the engine
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    ttft_s: float | None  # TTFT from `sent_s`; None: not measured, so the request is only part of the load
    tpot_s: float | None

    @property
    def e2e_s(self) -> float | None:
        if self.ttft_s is None or (self.tpot_s is None and self.output_tokens > 1):
            return None
        return self.ttft_s + (self.tpot_s or 0.0) * (self.output_tokens - 1)


def served(requests: Iterable[RecordedRequest]) -> list[ServedRequest]:
    """Return requests of which only the duration counts as measured."""
    return [
        ServedRequest(one.sent_s, one.sent_s + one.e2e_s, one.prompt_tokens - one.cached_tokens)
        for one in requests
        if one.e2e_s is not None
    ]


def read_receipts(instance: str, since: float) -> list[Receipt]:
    """Return receipts of requests that this instance answered or prefilled since that Unix time. Raise
    redis.RedisError."""
    return [one for one in _newest_first() if instance in (one.instance, one.prefill_instance) and one.at >= since]


def _newest_first() -> Iterator[Receipt]:
    end: str | bytes = "+"
    client: Any = connect()
    while entries := client.xrevrange(redis_keys.RECEIPTS, max=end, count=PAGE):
        yield from (one for _, fields in entries if (one := decode(Receipt, fields.get(b"r"))) is not None)
        end = b"(" + entries[-1][0]


def requests_of(receipts: Iterable[Receipt], instance: str, time_scale: float) -> list[RecordedRequest]:
    """Return the recorded requests, by the time they were sent."""
    found = (_request(one, instance, time_scale) for one in receipts)
    return sorted((one for one in found if one is not None), key=lambda one: one.sent_s)


def _request(receipt: Receipt, instance: str, time_scale: float) -> RecordedRequest | None:
    """Return the recorded request; None if it cost the engine nothing or its length is unknown."""
    prompt, queued_ms = receipt.actual_prompt_tokens or receipt.prompt_tokens, receipt.queue_ms or 0.0
    prefilled = instance == receipt.prefill_instance
    output = 1 if prefilled else receipt.output_tokens
    if not prompt or not output:
        return None
    # If another engine computed the prompt, or another attempt failed, this engine alone does not explain the times.
    known = receipt.outcome == "ok" and not receipt.retries and not receipt.prefill_instance
    ttft_ms = receipt.ttft_ms if known else None
    return RecordedRequest(
        sent_s=(receipt.at + queued_ms / 1e3) * time_scale,
        prompt_tokens=prompt,
        cached_tokens=min(receipt.cached_tokens or 0, prompt - 1),
        output_tokens=output,
        ttft_s=(ttft_ms - queued_ms) / 1e3 * time_scale if ttft_ms is not None and ttft_ms > queued_ms else None,
        tpot_s=receipt.tpot_ms / 1e3 * time_scale if known and receipt.tpot_ms else None,
    )

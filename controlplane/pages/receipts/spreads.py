"""The distribution of the newest requests over the quantities limited by thresholds: load, KV usage, queue, wait,
pauses."""

import heapq
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import redis

from controlplane.pages.receipts.reader import newest_receipts
from fleet.counted import percent
from router.contract.redis import redis_keys
from router.contract.redis.codec import decode
from router.contract.redis.receipt import Receipt
from router.policy.columns import RecordedColumns
from router.policy.types import CLASSES

MOST = 2_000  # most requests
READINGS = 10_000  # readings; each is one instance in one decision
DECISIONS = 200
FEW = 20  # number of recorded values below which a picture is marked as uncertain
PARTIAL = " that compared it; of a large pool mostly those with little load and a sample of the others are compared"


@dataclass(frozen=True, slots=True)
class RecordedRequests:
    """The newest requests of some pools, newest first, and the inputs of some of their decisions."""

    requests: Sequence[Receipt] = ()
    decisions: Sequence[Receipt] = ()

    @property
    def since(self) -> float:
        """Return the Unix time of the oldest request."""
        return min(receipt.at for receipt in self.requests)

    @property
    def until(self) -> float:
        return max(receipt.at for receipt in self.requests)


def read(client: redis.Redis, pools: Collection[str], most: int = MOST) -> RecordedRequests:
    requests = list(islice((each for each in newest_receipts(client) if each.pool in pools), most))
    return RecordedRequests(requests, list(_decisions(client, requests)))


def _decisions(client: Any, requests: Sequence[Receipt]) -> Iterator[Receipt]:
    """Sample decisions evenly; fewer of them in a large pool, because each has more instances."""
    decided = [receipt.request_id for receipt in requests if receipt.instance]
    seen = 0
    for name in decided[:: max(1, len(decided) // DECISIONS)]:
        receipt = decode(Receipt, client.get(redis_keys.receipt_key(name)))
        if receipt is not None and isinstance(receipt.candidates, dict) and receipt.candidates.get("id"):
            yield receipt
            seen += len(receipt.candidates["id"])
        if seen >= READINGS:
            return


@dataclass(frozen=True, slots=True)
class Quantity:
    what: str  # quantity, with the moment at which it is measured
    # From records and the live version's `load.request_tokens`
    read: Callable[[RecordedRequests, int], Iterable[float]]
    of_instances: bool = False  # True if there is a value for each compared instance instead of one per decision


def _column(name: str, recorded: RecordedRequests, request_tokens: int) -> Iterator[float]:
    for receipt in recorded.decisions:
        yield from (value for value in RecordedColumns(receipt.candidates).column(name) if value is not None)


def _work(recorded: RecordedRequests, request_tokens: int) -> Iterator[tuple[float, float]]:
    """Yield (work on the session's instance, least work), the values compared by router/policy/rules/overload.py."""
    for receipt in recorded.decisions:
        seen, prompt = RecordedColumns(receipt.candidates), receipt.prompt_tokens or 0
        bound = (receipt.inputs or {}).get("bound_to")
        columns = (seen.column(name) for name in ("cached", "prefill_tokens", "running"))
        work = {
            name: prompt - cached + prefill + request_tokens * running
            for i, (name, cached, prefill, running) in enumerate(zip(seen.ids, *columns, strict=True))
            if str(i) not in seen.refused
        }
        if bound in work:
            yield work[bound], min(work.values())


def _work_ratio(recorded: RecordedRequests, request_tokens: int) -> Iterator[float]:
    return (own / least for own, least in _work(recorded, request_tokens) if least > 0)


def _work_difference(recorded: RecordedRequests, request_tokens: int) -> Iterator[float]:
    return (own - least for own, least in _work(recorded, request_tokens))


def _pauses(recorded: RecordedRequests, request_tokens: int) -> Iterator[float]:
    before: dict[str, float] = {}
    for receipt in sorted(recorded.requests, key=lambda each: each.at):
        if receipt.session is not None:
            if receipt.session in before:
                yield receipt.at - before[receipt.session]
            before[receipt.session] = receipt.at


def _seconds(name: str, recorded: RecordedRequests, request_tokens: int) -> Iterator[float]:
    return (value / 1000 for receipt in recorded.requests if (value := getattr(receipt, name)) is not None)


def _of(name: str, recorded: RecordedRequests) -> list[Receipt]:
    return [receipt for receipt in recorded.requests if receipt.request_class == name]


def _waits(name: str, recorded: RecordedRequests, request_tokens: int) -> Iterator[float]:
    return _seconds("queue_ms", RecordedRequests(_of(name, recorded)), request_tokens)


def _queues(name: str, recorded: RecordedRequests, request_tokens: int) -> Iterator[float]:
    """Yield the number of waiting requests at each arrival, by router and pool, computed from arrivals and waits."""
    ends: dict[tuple[str | None, str | None], list[float]] = {}
    for receipt in sorted(_of(name, recorded), key=lambda each: each.at):
        waiting = ends.setdefault((receipt.router, receipt.pool), [])
        while waiting and waiting[0] <= receipt.at:
            heapq.heappop(waiting)
        yield len(waiting)
        if receipt.queue_ms:
            heapq.heappush(waiting, receipt.at + receipt.queue_ms / 1000)


QUANTITIES: dict[str, Quantity] = {
    "load.kv_usage_max": Quantity(
        "KV usage of an instance at a decision", partial(_column, "kv_usage"), of_instances=True
    ),
    "admission.max_inflight_per_instance": Quantity(
        "Requests on an instance at a decision", partial(_column, "running"), of_instances=True
    ),
    "affinity.ttl_s": Quantity("Pauses between a session's requests", _pauses),
    "affinity.break_ratio": Quantity("Work on a session's instance ÷ the least work", _work_ratio),
    "affinity.break_floor_tokens": Quantity("Work on a session's instance − the least work", _work_difference),
    "failure.first_byte_timeout_s": Quantity("Time to the first byte", partial(_seconds, "first_byte_ms")),
    "failure.prefill_timeout_s": Quantity("Prefill of an offload", partial(_seconds, "prefill_ms")),
    "strategy.ttft_limit_s": Quantity("Time to the first token", partial(_seconds, "ttft_ms")),
    **{
        f"admission.max_queue_{name}": Quantity(
            f"{name.capitalize()} requests queued at an arrival", partial(_queues, name)
        )
        for name in CLASSES
    },
    **{
        f"admission.max_wait_{name}_s": Quantity(f"Waits of {name} requests in the router", partial(_waits, name))
        for name in CLASSES
    },
}


def what(recorded: RecordedRequests | None, path: str) -> str:
    """Name the quantity and, if decisions compared only part of a large pool, the number of instances left out."""
    quantity = QUANTITIES[path]
    decisions = recorded.decisions if recorded is not None and quantity.of_instances else ()
    is_partial = any(RecordedColumns(receipt.candidates).left_out for receipt in decisions)
    return f"{quantity.what}{PARTIAL}" if is_partial else quantity.what


def spread(recorded: RecordedRequests, path: str, request_tokens: int) -> list[tuple[float, int]]:
    """Return (value, count), ascending, values with three significant digits; empty if none is recorded."""
    found = Counter(float(f"{value:.3g}") for value in QUANTITIES[path].read(recorded, request_tokens))
    return sorted(found.items())


def sentence(values: Sequence[tuple[float, int]], live: float, draft: float, unit: str) -> str:
    """Describe the distribution; static/js/thresholds.js writes the same sentence while a threshold is moved."""
    total = sum(count for _, count in values)
    was = "" if draft == live else f"; live {_limit(live, unit)}: {_above(values, live, total)} above"
    return f"{_above(values, draft, total)} above {_limit(draft, unit)}, of {total:,}{was}"


def _limit(value: float, unit: str) -> str:
    number = f"{value:,.0f}" if float(value).is_integer() else f"{value:,.6g}"
    return number if unit in ("share", "ratio") else f"{number} {unit}"


def _above(values: Sequence[tuple[float, int]], limit: float, total: int) -> str:
    return percent(sum(count for value, count in values if value > limit) / total, ".1f")

"""The query for receipts and their order: the query parameters of the page and of REST, checked in one place."""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from fleet import selectors
from fleet.spec.sections import slo_of
from router.contract import ranks
from router.contract.redis.receipt import Receipt
from router.policy.types import CLASSES

OUTCOMES = ("ok", "client_error", "error", "refused", "cancelled", "picked")
CLASS_OR_ALL = f"^({'|'.join(CLASSES)})?$"
OUTCOME_OR_ALL = f"^({'|'.join(OUTCOMES)})?$"
LONGEST_MS = 1e9
# Figures of a receipt by which it can be sorted, largest first
SLOWEST = {"ttft": "ttft_ms", "tpot": "tpot_ms", "e2e": "e2e_ms", "queue": "queue_ms"}
Slos = Mapping[str, Mapping[str, float]]  # TTFT in ms, by pool and class


class ReceiptQuery(BaseModel):
    """A query; empty or null matches everything. A request without a figure, such as the TTFT of an answer that was not
    streamed, never exceeds a limit on it, and is last when sorted by it."""

    model_config = ConfigDict(populate_by_name=True, frozen=True)

    pool: str = Field(default="", max_length=200)
    request_class: str = Field(default="", alias="class", pattern=CLASS_OR_ALL)
    instance: str = Field(default="", max_length=200)
    outcome: str = Field(default="", pattern=OUTCOME_OR_ALL)
    key: str = Field(default="", max_length=200, description="Name of the API key")
    delivery: str = Field(default="", max_length=20, description="Under way when the request was assigned")
    arm: str = Field(default="", pattern="^(candidate|control)?$", description="Of that delivery")
    since: AwareDatetime | None = Field(default=None, description="Arrived then or later")
    until: AwareDatetime | None = Field(default=None, description="Arrived before")
    ended_since: AwareDatetime | None = Field(default=None, description="Ended then or later")
    ended_until: AwareDatetime | None = Field(default=None, description="Ended before")
    ttft_over_ms: float | None = Field(default=None, ge=0, le=LONGEST_MS)
    e2e_over_ms: float | None = Field(default=None, ge=0, le=LONGEST_MS)
    slower_than_slo: bool = Field(default=False, description="TTFT above the SLO that the pool declares for the class")
    sort: Literal["newest", "ttft", "tpot", "e2e", "queue"] = Field(
        default="newest", description="By the end of the request, or slowest first by this latency"
    )

    def matcher(self) -> Callable[[Receipt], bool]:
        same = {name: wanted for name in SAME if (wanted := getattr(self, name))}
        slos = declared_slos() if self.slower_than_slo else None
        arrived, ended = _span(self.since, self.until), _span(self.ended_since, self.ended_until)

        def matches(receipt: Receipt) -> bool:
            return (
                arrived[0] <= receipt.at < arrived[1]
                and ended[0] <= end_of(receipt) < ended[1]
                and all(wanted in _values(receipt, name) for name, wanted in same.items())
                and _over(receipt.ttft_ms, self.ttft_over_ms)
                and _over(receipt.e2e_ms, self.e2e_over_ms)
                and (slos is None or missed_slo(receipt, slos) is not None)
            )

        return matches


def _span(since: datetime | None, until: datetime | None) -> tuple[float, float]:
    return since.timestamp() if since else 0.0, until.timestamp() if until else float("inf")


def end_of(receipt: Receipt) -> float:
    """Return the time when the request ended, in Unix seconds."""
    return receipt.at + (receipt.e2e_ms or 0.0) / 1000


SAME = ("pool", "request_class", "instance", "outcome", "key", "delivery", "arm")


def _values(receipt: Receipt, name: str) -> tuple[str, ...]:
    """Return the values that match; an instance is found by its own name and by that of its rank."""
    value = str(getattr(receipt, name))
    return (value, ranks.instance_of(value)) if name == "instance" else (value,)


def _over(value: float | None, limit: float | None) -> bool:
    return limit is None or (value is not None and value > limit)


def declared_slos() -> dict[str, dict[str, float]]:
    pools = selectors.pools().values_list("name", "slo", "autoscale")
    return {name: slo_of(slo, autoscale) for name, slo, autoscale in pools}


def missed_slo(receipt: Receipt, slos: Slos) -> float | None:
    """Return the SLO that this request missed, in ms."""
    limit = slos.get(receipt.pool or "", {}).get(receipt.request_class or "")
    return limit if limit is not None and receipt.ttft_ms is not None and receipt.ttft_ms > limit else None

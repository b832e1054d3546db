"""The amounts that one router has spent and may spend from a budget in one period (router/limits/budgets.py)."""

import asyncio
from dataclasses import dataclass, field

from router.contract.redis.budgets import MICRO, Period, PublishedBudget


@dataclass(slots=True, eq=False)
class Spending:
    """This router's spending of one budget in one period, in tokens, micro-dollars or requests."""

    budget: PublishedBudget
    period: Period
    spent: int = 0  # spent by ended requests
    reserved: int = 0  # estimates of requests in progress
    ceiling: int = 0  # upper limit of `spent` + `reserved`
    rest: int | None = None  # remainder of the whole budget when last reported; None: never reported
    alone: bool = False  # the ceiling includes this router's share of that remainder
    refused: int = 0
    units: float = 0.0  # tokens of the requests in `spent`, for the price of later ones
    # (s, monotonic; amount): until then, requests for this amount or more are refused
    closed: tuple[float, int] = (0.0, 0)
    reported: tuple[int, int, int] = (0, 0, 0)  # spent, reserved and refused
    reported_at: float = 0.0  # s, monotonic
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def fits(self, amount: int) -> bool:
        return self.spent + self.reserved + amount <= self.ceiling

    @property
    def changed(self) -> bool:
        return (self.spent, self.reserved, self.refused) != self.reported


def settle(reserved: list[tuple[Spending, int]], tokens: int, dollars: float, requests: int = 1) -> None:
    """Replace a request's reservation by its cost; call this once per request. `requests` is 0 if no engine received
    the request."""
    for spending, amount in reserved:
        unit = spending.budget.unit
        spending.reserved -= amount
        spending.spent += requests if unit == "requests" else tokens if unit == "tokens" else round(dollars * MICRO)
        spending.units += tokens
    reserved.clear()

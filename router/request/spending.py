"""What one router has spent of a budget in one period, and may spend (router/limits/budgets.py)."""

import asyncio
from dataclasses import dataclass, field

from router.contract.redis.budgets import MICRO, Period, PublishedBudget


@dataclass(slots=True, eq=False)
class Spending:
    """This router's, of one budget in one period; amounts in tokens, micro-dollars or requests."""

    budget: PublishedBudget
    period: Period
    spent: int = 0  # by requests that have ended
    reserved: int = 0  # for those under way, as estimated
    ceiling: int = 0  # sum that both together may reach
    rest: int | None = None  # rest of the whole budget, when it was last known; None: never
    alone: bool = False  # the share of that rest is in the ceiling
    refused: int = 0
    units: float = 0.0  # tokens of the requests in `spent`, for the price of the next ones
    closed: tuple[float, int] = (0.0, 0)  # until then (s, monotonic), from that amount on
    reported: tuple[int, int, int] = (0, 0, 0)  # spent, reserved and refused
    reported_at: float = 0.0  # s, monotonic
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def fits(self, amount: int) -> bool:
        return self.spent + self.reserved + amount <= self.ceiling

    @property
    def changed(self) -> bool:
        return (self.spent, self.reserved, self.refused) != self.reported


def settle(reserved: list[tuple[Spending, int]], tokens: int, dollars: float, requests: int = 1) -> None:
    """Replace what a request reserved by what it cost; once. `requests`: 0 for one that no engine got."""
    for spending, amount in reserved:
        unit = spending.budget.unit
        spending.reserved -= amount
        spending.spent += requests if unit == "requests" else tokens if unit == "tokens" else round(dollars * MICRO)
        spending.units += tokens
    reserved.clear()

"""Budgets of API keys and pools: a request is sent only if its highest possible cost fits into what this router may
spend. A router holds a part of the budget's remainder and asks for more when that part is used up (`BudgetStore.hold`),
so most requests need no round trip. The amounts that all routers hold and have spent never exceed the limit together;
spending exceeds it at most by the cost of requests in flight beyond their estimates. While the store is unreachable, a
router spends what it holds, then its share of the last known remainder, and then refuses. Together, routers exceed the
limit at most by grants made since the other routers last asked, which is at most REPORT_S ago.
"""

import time
from collections.abc import Container, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from math import ceil
from typing import Protocol

from router.contract.net.retry_after import LONGEST_S
from router.contract.redis.budgets import EVER, PublishedBudget
from router.http.errors import ErrorResponse
from router.request.spending import Spending

AHEAD = 100  # a router holds in advance at most its share of the limit divided by this
AHEAD_REQUESTS = 8  # and at most the need of this many requests like the current one
UNPRICED = 8  # requests in flight while a period's price is unknown
AGAIN_S = 0.2  # interval between requests for more of an exhausted budget
REPORT_S = 5.0  # interval of reports even without changes, to show that the router is alive
LATE_S = 3600.0  # time allowed for requests in progress at a period's end


@dataclass(frozen=True, slots=True)
class Held:
    """An answer of the store: the amount that the router may spend, on top of what it had spent when it asked."""

    hold: int
    rest: int | None  # part of the whole budget that is neither spent nor held by a router; None: unknown


class BudgetStore(Protocol):
    """The spending of all routers (router/sync/token_bucket_store.py)."""

    routers: int  # routers that share a budget

    async def hold(self, spending: Spending, want: int, had: int) -> Held | None:
        """Report the spending, and hold up to `want` of the remainder instead of `had`. Return None if the store is
        unreachable.
        """


class LocalBudgets:
    """The budgets of a standalone router, which are not shared."""

    routers = 1

    async def hold(self, spending: Spending, want: int, had: int) -> Held | None:
        rest = spending.budget.limit - spending.spent
        hold = max(spending.reserved, min(want, rest))
        return Held(hold, max(0, rest - hold))


class Budgets:
    def __init__(self) -> None:
        self.store: BudgetStore = LocalBudgets()
        self._spendings: dict[tuple[str, str], Spending] = {}  # by budget id and period name

    def keep_only(self, ids: Container[str]) -> None:
        self._spendings = {place: one for place, one in self._spendings.items() if place[0] in ids}

    def of(self, budget: PublishedBudget, at: float) -> Spending:
        """Return the spendings of the budgets at the Unix time `at`."""
        period = budget.period(at)
        place = budget.id, period.name
        found = self._spendings.get(place)
        if found is None:
            found = self._spendings[place] = Spending(budget, period)
        elif found.budget is not budget:
            found.budget, found.closed = budget, (0.0, 0)
        return found

    async def reserve(
        self,
        budgets: Iterable[PublishedBudget],
        whose: str,
        tokens: int,
        at: float,
        reserved: list[tuple[Spending, int]],
        *,
        price: float = 0.0,
    ) -> None:
        """Reserve in `reserved` the most that a request of this many tokens may cost. Raise ErrorResponse; the caller
        then settles what has been reserved so far. `price` is in micro-dollars per token, used if the budget has no
        price yet.
        """
        for budget in budgets:
            spending = self.of(budget, at)
            amount = _estimate(spending, tokens, price)
            if budget.refuse and not spending.fits(amount):
                await self._cover(whose, spending, amount, at)
            spending.reserved += amount
            reserved.append((spending, amount))

    async def _cover(self, whose: str, spending: Spending, amount: int, at: float) -> None:
        async with spending.lock:
            until, least = spending.closed
            if not spending.fits(amount) and (time.monotonic() >= until or amount < least):
                ahead = spending.budget.limit // (AHEAD * self.store.routers)
                await self._ask(spending, spending.reserved + amount + min(ahead, AHEAD_REQUESTS * amount))
                spending.closed = (0.0, 0) if spending.fits(amount) else (time.monotonic() + AGAIN_S, amount)
        if not spending.fits(amount):
            spending.refused += 1
            raise _refusal(whose, spending, amount, at)

    async def _ask(self, spending: Spending, want: int) -> None:
        """Ask the store under the lock. Settlements during the request count against the new ceiling, which is
        absolute. Amounts being returned are not spent during the request, because another router may get them before
        the answer arrives."""
        reported = (spending.spent, spending.reserved, spending.refused)
        before = spending.ceiling
        spending.ceiling = min(before, reported[0] + max(want, reported[1]))
        held = await self.store.hold(spending, want, before - reported[0])
        if held is None:
            spending.ceiling = before
        else:
            spending.reported, spending.reported_at = reported, time.monotonic()
            spending.ceiling = reported[0] + held.hold
            if held.rest is not None:
                spending.rest, spending.alone = held.rest, False
                return
        if spending.rest is not None and not spending.alone and want > spending.ceiling - reported[0]:
            spending.alone = True
            spending.ceiling += max(0, spending.rest) // self.store.routers

    async def report(self, now: float) -> None:
        """Every second, report the spending to the store, and return amounts held beyond the needs of the next
        requests. `now` is Unix time."""
        for place, spending in list(self._spendings.items()):
            due = time.monotonic() - spending.reported_at >= REPORT_S
            if not spending.changed and not due:
                continue
            async with spending.lock:
                ahead = spending.budget.limit // (AHEAD * self.store.routers)
                recent = max(0, spending.spent - spending.reported[0])
                want = spending.reserved + min(ahead, 2 * recent) if spending.budget.refuse else 0
                await self._ask(spending, want)
            if now > spending.period.ends + LATE_S and not spending.reserved and not spending.changed:
                self._spendings.pop(place, None)


def _estimate(spending: Spending, tokens: int, price: float) -> int:
    """Estimate the highest cost in the budget's unit. Dollars follow the mean price of this budget's tokens in this
    router and period. A price from elsewhere may be too high and must not block every request forever, so UNPRICED
    requests always fit.
    """
    if spending.budget.unit == "requests":
        return 1
    if spending.budget.unit == "tokens":
        return max(1, tokens)
    if spending.units:
        return max(1, ceil(tokens * spending.spent / spending.units))
    return max(1, min(ceil(tokens * price), spending.budget.limit // UNPRICED))


def _refusal(whose: str, spending: Spending, amount: int, at: float) -> ErrorResponse:
    budget, period = spending.budget, spending.period
    if spending.rest is None:
        why = f"this router does not know yet what is left of a budget of {whose}: retry in a moment"
        return ErrorResponse(503, "budget_unknown", why, retry_after_s=2)
    left = max(0, spending.rest + spending.ceiling - spending.spent - spending.reserved)
    whole = f"its budget of {budget.text(budget.limit)} {budget.each}"
    why = f"{whose} has {budget.text(left)} left of {whole}; this request may need {budget.text(amount)}"
    # Qwen Code and Anthropic's libraries would sleep for days on such a long retry time
    after = None if period is EVER or period.ends - at > LONGEST_S else max(1, ceil(period.ends - at))
    if period is not EVER:
        why += f"; the next period begins at {datetime.fromtimestamp(period.ends, UTC):%Y-%m-%d %H:%M} UTC"
    return ErrorResponse(429, "insufficient_quota", why, retry_after_s=after, should_retry=False)

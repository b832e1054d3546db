"""Budgets of API keys: shared by all routers, not exceeded by estimates, and refused in the way that clients expect."""

import asyncio
import contextlib
import random
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest

from router.contract.redis import redis_keys
from router.contract.redis.api_keys import PublishedKey
from router.contract.redis.budgets import PublishedBudget, period_of
from router.http.errors import ErrorResponse
from router.limits import budgets, pool_prices
from router.limits.api_key_auth import ApiKeyAuth
from router.limits.budgets import Budgets, LocalBudgets
from router.limits.pool_prices import PoolPrices
from router.request.call import Call
from router.request.spending import settle
from router.sync import redis_link, token_bucket_store
from router.sync.redis_link import RedisLink
from router.sync.token_bucket_store import RedisBudgets
from router.tests.conftest import key_entry
from router.tests.engine import ANSWER, reply
from router.tests.http.test_own_errors import code_of
from router.tests.test_keys import ALICE, bearer, keyed

NOW = datetime.now(UTC).replace(hour=12).timestamp()  # Redis drops periods that ended long ago
DAY = period_of("day", NOW).name
LIMIT = 10_000


def utc(*moment):
    return datetime(*moment, tzinfo=UTC).timestamp()


THEN = utc(2026, 11, 26, 12)
SUMMER_ENDS = utc(2026, 10, 24, 22)  # in Germany, during the day that begins then
SEEDS = [*range(3), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 20))]
USAGE = {"prompt_tokens": 90, "completion_tokens": 30}


def key(**more):
    budget = PublishedBudget(id="7", **{"unit": "tokens", "per": "day", "limit": LIMIT, **more})
    return PublishedKey(id="alice", name="alice", sha256="", budgets=(budget,))


def opened(client, since=0, **spent):
    fields = {"since": since, **{f"s:{life}": amount for life, amount in spent.items()}}
    client.hset(redis_keys.budget_key("7", DAY), mapping=fields)


@pytest.fixture
async def routers(redis_url, monkeypatch):
    for module in (redis_link, token_bucket_store):  # A busy machine delays Redis, as if it were unreachable.
        monkeypatch.setattr(module, "ANSWER_S", 60.0)
    link = RedisLink(redis_url)
    link.answered()
    made = [Budgets() for _ in range(4)]
    for number, one in enumerate(made):
        one.store = RedisBudgets(link, f"r{number}.x", range(3))
    yield SimpleNamespace(all=made, link=link)
    await link.close()


async def spend(one, amount, used=None, at=NOW, of=None):
    """Send one request; return whether it was accepted."""
    reserved = []
    try:
        await one.reserve((of or key()).budgets, "it", amount, at, reserved)
    except ErrorResponse:
        settle(reserved, 0, 0.0)
        return False
    await asyncio.sleep(0)
    settle(reserved, amount if used is None else used, 0.0)
    return True


def spent(routers):
    return sum(one.of(key().budgets[0], NOW).spent for one in routers.all)


async def used_up(routers, seed, requests=1200, happens=None):
    draw = random.Random(seed)

    async def client(one):
        for _ in range(requests // 16):
            await spend(one, draw.randint(1, 40))
            if draw.random() < 0.05:
                await one.report(NOW)

    done = asyncio.gather(*(client(one) for one in routers.all for _ in range(4)))
    if happens is not None:
        await happens(draw)
    await done
    return spent(routers)


@pytest.mark.parametrize("seed", SEEDS)
async def test_several_routers_together_spend_exactly_the_budget(routers, live_redis, seed):
    opened(live_redis)
    total = await used_up(routers, seed)
    assert LIMIT - 400 <= total <= LIMIT  # what a router holds beyond its last request returns with its next report
    for one in routers.all:
        await one.report(NOW)
    assert not await spend(routers.all[0], LIMIT - total + 1)
    if total < LIMIT:
        assert await spend(routers.all[0], LIMIT - total)


@pytest.mark.parametrize("seed", SEEDS)
async def test_neither_a_lost_nor_a_silent_redis_gives_a_budget_twice(routers, live_redis, seed, monkeypatch):
    monkeypatch.setattr(budgets, "AGAIN_S", 0.0)
    opened(live_redis)

    async def trouble(draw):
        while spent(routers) < draw.randint(1, 8) * 1_000:
            await asyncio.sleep(0)
        for _ in range(3):
            live_redis.flushall()  # no router has reopened it: none gets more than its share
            await asyncio.sleep(draw.random() * 0.05)
            routers.link.up = False
            await asyncio.sleep(draw.random() * 0.05)
            routers.link.answered()

    total = await used_up(routers, seed, happens=trouble)
    assert total <= LIMIT * 1.03  # each router takes its share of a slightly outdated remainder
    assert total >= LIMIT * 0.8


async def test_budget_that_a_router_returns_is_not_spent_before_redis_answers():
    class Slow(LocalBudgets):
        def __init__(self):
            self.asked, self.answers = asyncio.Event(), asyncio.Event()

        async def hold(self, *asked):
            answer = await super().hold(*asked)
            self.asked.set()
            await self.answers.wait()
            return answer

    one = Budgets()
    assert await spend(one, 5_000, used=1)  # it holds the remainder of the estimate until its next report
    one.store = slow = Slow()
    reporting = asyncio.create_task(one.report(NOW))
    await slow.asked.wait()
    late = asyncio.create_task(spend(one, 4_000))
    await asyncio.sleep(0)
    assert one.of(key().budgets[0], NOW).reserved == 0  # another router may have taken it
    slow.answers.set()
    await reporting
    assert await late


async def test_the_reservation_of_a_silent_router_lapses_but_its_spending_stays(routers, live_redis):
    opened(live_redis, gone=4_000)
    name = redis_keys.budget_key("7", DAY)
    live_redis.hset(name, mapping={"h:gone": 6_000, "t:gone": live_redis.time()[0]})
    assert not await spend(routers.all[0], 100)
    live_redis.hset(name, "t:gone", live_redis.time()[0] - 61)
    assert await spend(routers.all[1], 6_000)
    assert not await spend(routers.all[2], 1)


async def test_more_than_was_estimated_is_spent_once_and_counts(routers, live_redis):
    opened(live_redis)
    assert await spend(routers.all[0], 5_000, used=12_000)
    await routers.all[0].report(NOW)
    assert not await spend(routers.all[1], 1)
    assert spent(routers) == 12_000


async def test_without_redis_a_router_spends_its_share_of_the_remainder_and_then_refuses(routers, live_redis):
    opened(live_redis)
    one, other = routers.all[:2]
    for each in (one, other):
        assert await spend(each, 1)
        await each.report(NOW)
    routers.link.up = False
    for each in (one, other):
        assert await spend(each, 2_400)
        assert not await spend(each, 2_400)


async def test_a_daily_budget_restarts_while_a_monthly_one_continues(routers, live_redis):
    name = redis_keys.budget_key("7", period_of("day", NOW + 86_400).name)
    opened(live_redis)
    live_redis.hset(name, "since", 0)
    assert await spend(routers.all[0], LIMIT)
    assert not await spend(routers.all[0], 1)
    assert await spend(routers.all[0], LIMIT, at=NOW + 86_400)
    assert live_redis.expiretime(name) > NOW + 86_400


@pytest.mark.parametrize(
    ("per", "zone", "at", "expected"),
    [
        ("day", "UTC", THEN, ("2026-11-26", utc(2026, 11, 27))),
        ("month", "UTC", THEN, ("2026-11", utc(2026, 12, 1))),
        ("month", "UTC", utc(2026, 12, 31, 23), ("2026-12", utc(2027, 1, 1))),
        ("month", "UTC", utc(2028, 2, 29), ("2028-02", utc(2028, 3, 1))),
        ("hour", "UTC", THEN + 5, ("2026-11-26T12", utc(2026, 11, 26, 13))),
        ("week", "UTC", THEN, ("2026-W48", utc(2026, 11, 30))),
        ("week", "UTC", utc(2027, 1, 3, 23), ("2026-W53", utc(2027, 1, 4))),
        ("day", "Europe/Berlin", THEN + 11.5 * 3600, ("2026-11-27", utc(2026, 11, 27, 23))),
        ("day", "Europe/Berlin", SUMMER_ENDS, ("2026-10-25", utc(2026, 10, 25, 23))),  # 25 hours
        ("week", "Asia/Kolkata", SUMMER_ENDS, ("2026-W43", utc(2026, 10, 25, 18, 30))),
        ("month", "America/New_York", THEN, ("2026-11", utc(2026, 12, 1, 5))),
        ("day", "Mars/Olympus", THEN, ("2026-11-26", utc(2026, 11, 27))),  # not a known time zone
        ("ever", "UTC", THEN, ("ever", utc(9999, 1, 1))),
    ],
)
def test_periods_follow_the_calendar(per, zone, at, expected):
    period = period_of(per, at, zone)
    assert (period.name, period.ends) == expected
    assert period.begins <= at < period.ends


async def test_a_budget_without_a_period_is_spent_once(routers, live_redis):
    name = redis_keys.budget_key("7", "ever")
    live_redis.hset(name, "since", 0)
    ever = key(per="ever", limit=100)
    assert await spend(routers.all[0], 60, of=ever)
    assert await spend(routers.all[0], 40, of=ever, at=NOW + 400 * 86_400)
    with pytest.raises(ErrorResponse, match="0 tokens left of its budget of 100 tokens in all") as refused:
        await routers.all[0].reserve(ever.budgets, "API key ci", 1, NOW, [])
    assert refused.value.retry_after_s is None
    assert 0 < live_redis.ttl(name) <= 33 * 86_400


async def test_a_budget_that_only_warns_refuses_nothing_and_counts(routers, live_redis):
    opened(live_redis)
    one, warns = routers.all[0], key(refuse=False)
    for _ in range(3):
        assert await spend(one, LIMIT, of=warns)
    await one.report(NOW)
    assert live_redis.hget(redis_keys.budget_key("7", DAY), "s:r0.x") == b"30000"


async def test_a_budget_of_requests_counts_those_that_reached_an_engine(world):
    w = await keyed(world, key_entry(ALICE, more_budgets=[{"id": "8", "unit": "requests", "per": "week", "limit": 2}]))
    store = w.router.pools.auth.budgets
    store.store = LocalBudgets()
    assert (await w.ask(headers=bearer(ALICE), model="nobody's")).status_code == 404
    answers = [await w.ask(headers=bearer(ALICE)) for _ in range(3)]
    assert [one.status_code for one in answers] == [200, 200, 429]
    assert "has 0 requests left of its budget of 2 requests a week" in answers[2].json()["error"]["message"]


async def test_dollars_are_charged_by_gpu_time_and_estimated_from_the_mean_price():
    one, priced = Budgets(), key(unit="dollars", limit=1_000_000)
    assert isinstance(one.store, LocalBudgets)
    reserved = []
    await one.reserve(priced.budgets, "it", 1_000, NOW, reserved)
    settle(reserved, 1_000, 0.40)
    await one.reserve(priced.budgets, "it", 1_000, NOW, reserved)
    assert reserved[0][1] == 400_000
    with pytest.raises(ErrorResponse, match=r"\$0.20 left of its budget of \$1.00 a day; this request may need \$0.40"):
        await one.reserve(priced.budgets, "it", 1_000, NOW, [])
    settle(reserved, 1_000, 0.55)
    assert one.of(priced.budgets[0], NOW).spent == 950_000


def pool_with(*dollars_per_hour):
    clocks = [SimpleNamespace(gpus=2.0, dollars_per_s=dollars / 2 / 3600) for dollars in dollars_per_hour]
    return SimpleNamespace(name="demo", endpoints={n: SimpleNamespace(gpu_clock=c) for n, c in enumerate(clocks)})


def test_a_pools_price_is_the_cost_of_its_tokens_and_initially_the_list_price_of_one_stream():
    prices, pool = PoolPrices(), pool_with(3.6, 1.8)
    assert prices.of(pool) == pytest.approx(3.6 / 3600 / 50 * 1e6)
    assert prices.of(pool_with()) == 0.0
    prices.saw("demo", 0, 0.5)
    prices.saw("other", 10, 1.0)
    assert prices.of(pool) == pytest.approx(20)
    prices.saw("demo", 1_000, 0.001)
    prices.saw("demo", 3_000, 0.007)
    assert prices.of(pool) == pytest.approx(2)
    prices.saw("demo", 20_000_000, 20.0)
    prices.saw("demo", 10_000_000, 20.0)
    assert prices.of(pool) == pytest.approx((10.004 + 20) / (10_002_000 + 10_000_000) * 1e6)


def test_the_number_of_pools_with_a_remembered_price_is_bounded(monkeypatch):
    monkeypatch.setattr(pool_prices, "MOST_POOLS", 3)
    prices = PoolPrices()
    for number in range(9):
        prices.saw(f"p{number}", 1, 1.0)
    assert list(prices._seen) == ["p6", "p7", "p8"]


@pytest.mark.parametrize(("price", "passed"), [(2.0, 12), (0.0, 60), (1e9, 8)])
async def test_a_first_burst_in_dollars_is_reserved_with_the_pools_price(price, passed):
    """60 simultaneous requests of 400 tokens against a limit of 0.01 dollars, in a period that has no price yet."""
    one, priced = Budgets(), key(unit="dollars", limit=10_000)
    reserved = []
    for _ in range(60):
        with contextlib.suppress(ErrorResponse):
            await one.reserve(priced.budgets, "it", 400, NOW, reserved, price=price)
    assert len(reserved) == passed


async def test_too_high_a_price_does_not_block_requests_forever():
    one, priced = Budgets(), key(unit="dollars", limit=10_000)
    reserved = []
    await one.reserve(priced.budgets, "it", 1_000_000, NOW, reserved, price=1e6)
    settle(reserved, 1_000_000, 0.001)
    for _ in range(8):
        await one.reserve(priced.budgets, "it", 1_000_000, NOW, reserved, price=1e6)
    assert {amount for _, amount in reserved} == {1_000}


async def test_a_burst_on_a_pool_of_priced_gpus_spends_no_more_than_its_budget(world):
    """Requests of one second on an instance of 36 dollars an hour; the burst would cost ten times the limit."""
    hour = {"id": "7", "unit": "dollars", "per": "hour", "limit": 10_000}
    w = await keyed(world, key_entry(ALICE, budgets=[hour]), engine=reply(ANSWER | {"usage": USAGE}))
    auth = w.router.pools.auth
    auth.budgets.store = LocalBudgets()
    for endpoint in w.router.pools.get("demo").endpoints.values():
        endpoint.gpu_clock.priced(1.0, 36.0, 0.0)
    asked = [w.ask(headers=bearer(ALICE), max_tokens=400) for _ in range(40)]
    statuses = [answer.status_code for answer in await asyncio.gather(*asked)]
    assert 1 <= statuses.count(200) <= 8
    assert set(statuses) == {200, 429}
    assert "demo" in auth.prices._seen


async def test_a_removed_budget_is_forgotten_and_a_new_limit_applies_at_once():
    one = Budgets()
    assert await spend(one, LIMIT)
    assert not await spend(one, 1)
    assert await spend(one, 1_000, of=key(limit=LIMIT + 1_000))
    one.keep_only(set())
    assert one.of(key().budgets[0], NOW).spent == 0


async def test_an_ended_period_is_dropped_once_its_requests_have_ended():
    one, reserved = Budgets(), []
    await one.reserve(key().budgets, "it", 10, NOW, reserved)
    await one.report(NOW + 2 * 86_400)
    assert one.of(key().budgets[0], NOW).reserved == 10
    settle(reserved, 10, 0.0)
    await one.report(NOW + 2 * 86_400)
    await one.report(NOW + 2 * 86_400)
    assert one.of(key().budgets[0], NOW).spent == 0


@pytest.mark.parametrize(
    ("path", "kind"), [("/v1/completions", "insufficient_quota"), ("/v1/messages", "rate_limit_error")]
)
async def test_a_refusal_names_the_remaining_budget_and_forbids_retries(world, live_redis, path, kind):
    month = {"id": "7", "unit": "tokens", "per": "month", "limit": 700}
    w = await keyed(world, key_entry(ALICE, budgets=[month]), engine=reply(ANSWER | {"usage": USAGE}))
    unknown = await w.ask(headers=bearer(ALICE))
    assert (unknown.status_code, code_of(unknown)) == (503, "budget_unknown")
    now = datetime.now(UTC)
    name = redis_keys.budget_key("7", f"{now:%Y-%m}")
    live_redis.hset(name, "since", 0)
    spending = next(iter(w.router.pools.auth.budgets._spendings.values()))
    spending.closed = (0.0, 0)
    assert (await w.ask(headers=bearer(ALICE), max_tokens=100)).status_code == 200
    await w.until(lambda: spending.spent == 120)
    refused = await w.ask(path, headers=bearer(ALICE), max_tokens=600, messages=[{"role": "user", "content": "hi"}])
    assert (refused.status_code, refused.json()["error"]["type"]) == (429, kind)
    assert code_of(refused) == "insufficient_quota"
    assert "580 tokens left of its budget of 700 tokens a month" in refused.json()["error"]["message"]
    assert refused.headers["x-should-retry"] == "false"
    await w.until(lambda: live_redis.hget(name, f"r:{w.router.source.id}.{w.router.source.reporter.life}") == b"1")
    assert spending.reserved == 0
    assert len(w.engines[0].received) == 1


@pytest.mark.parametrize(("left_s", "after_s"), [(120.0, 120), (120.5, None), (0.3, 1), (86_400.0, None)])
async def test_a_refusal_states_a_retry_time_only_if_it_is_short(left_s, after_s):
    one, ends = Budgets(), period_of("day", THEN).ends
    with pytest.raises(ErrorResponse, match="the next period begins at 2026-11-27 00:00 UTC") as refused:
        await one.reserve(key().budgets, "it", LIMIT + 1, ends - left_s, [])
    sent = dict(refused.value.headers())
    assert (sent.get(b"retry-after"), sent[b"x-should-retry"]) == (after_s and b"%d" % after_s, b"false")


async def test_a_pools_budget_counts_requests_with_and_without_a_key(world):
    budget = {"id": "9", "unit": "requests", "per": "day", "limit": 2}
    w = await keyed(world, key_entry(ALICE), required=())
    auth = w.router.pools.auth
    auth.budgets.store = LocalBudgets()
    w.published.keys(key_entry(ALICE), pool_budgets={"demo": [budget], "code": [budget | {"id": "8"}]})
    await w.until(lambda: auth.pool_budgets, "budgets are taken up")
    answers = [await w.ask(headers=headers) for headers in ({}, bearer(ALICE), {}, bearer(ALICE))]
    assert [one.status_code for one in answers] == [200, 200, 429, 429]
    message = answers[2].json()["error"]["message"]
    assert message.startswith("the pool demo has 0 requests left of its budget of 2 requests a day")
    assert code_of(answers[3]) == "insufficient_quota"


async def test_a_request_that_falls_back_counts_for_the_pool_that_serves_it():
    auth, chat, code = ApiKeyAuth(), (PublishedBudget(id="1", unit="requests", per="day", limit=9),), "code"
    auth.pool_budgets = {"chat": chat, code: (PublishedBudget(id="2", unit="requests", per="day", limit=9),)}
    call = Call("r", "/v1/completions", NOW, 0.0, "")
    call.pool = SimpleNamespace(name="chat")
    call.request = SimpleNamespace(prompt=SimpleNamespace(document={}))
    await auth._reserve(call)
    call.pool = SimpleNamespace(name=code)
    await auth.moved(call)
    call.outcome.attempts.append(None)
    auth.settle(call)
    spent = {budget: one.spent for (budget, _), one in auth.budgets._spendings.items()}
    assert spent == {"1": 0, "2": 1}

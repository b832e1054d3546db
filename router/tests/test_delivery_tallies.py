"""Routers' tallies of a delivery agree with their receipts, and show requests that hang before they end."""

import asyncio
import json
import math
from itertools import product
from types import SimpleNamespace

import pytest

from router.contract.redis import redis_keys
from router.contract.redis.codec import encode
from router.contract.redis.delivery import CELLS, DeliveryTally
from router.policy.replay import situation
from router.policy.rules.classify import classify
from router.pool.rollout import Assignment, SplitState, cell_of, hashed, is_candidate
from router.request.call import Call
from router.telemetry import delivery_tallies
from router.telemetry.delivery_tallies import DeliveryTallies
from router.tests.conftest import running
from router.tests.deliveries import SALT, split, tallies
from router.tests.engine import events, hang, reply, stream
from router.tests.pool.splits import split as rollout
from router.tests.values import receipt_of
from router.upstream.answer.used import Usage

SLOW_MS = 250.0  # far more than a busy machine adds
SLOW = {"warm": [math.log(SLOW_MS), 0.0, 0.0], "medium": [0.0, 0.0, 99.0]}
N, TTFT, TPOT, ERRORS, REFUSED, SLOW_N, CACHED, PROMPT, SESSIONS, STREAMED, ENDED, FAILED, AWAY, CLIENTS = range(14)


async def generations(w):
    """Return the tallies by generation number."""
    await w.router.source.reporter.deliveries.write()
    return {value["generation"]: value for value in tallies(w.published.client)}


async def written(w):
    """Return the tally of the newest generation."""
    values = await generations(w)
    return values[max(values)]


def cells(value):
    """Return {(arm, class, cell): tally}."""
    return {
        (arm, name, int(number)): cell
        for arm, classes in value["cells"].items()
        for name, by_number in classes.items()
        for number, cell in by_number.items()
    }


def total(value, field):
    return sum(cell[field] for cell in cells(value).values())


def of_receipts(receipts, policy, share):
    """Compute the tallies again from receipts: {(arm, class, cell): {field: number or sums}}."""
    made, seen = {}, {ERRORS: set(), REFUSED: set(), SESSIONS: set()}
    counts = {TTFT: ("ok", "error", "cancelled"), TPOT: ("ok",)}

    def once(cell, field, receipt):
        own = receipt["session"] or receipt["request_id"]
        cell[field] += own not in seen[field]
        seen[field].add(own)

    for receipt in receipts:
        request = situation(receipt_of(receipt)).request
        request_class = classify(request.prompt_tokens, max(request.held.values(), default=0), policy)
        key = hashed(SALT, receipt["session"] or receipt["request_id"])
        arm = "candidate" if is_candidate(key, share) else "control"
        cell = made.setdefault((arm, request_class, cell_of(key)), [0, [0.0] * 6, [0.0] * 6, *[0] * 11])
        x = math.log(max(receipt["prompt_tokens"], 1))
        cell[N] += 1
        cell[ENDED] += 1
        once(cell, SESSIONS, receipt)
        cell[STREAMED] += receipt["stream"]
        cell[SLOW_N] += receipt["stream"] and (receipt["ttft_ms"] or receipt["e2e_ms"]) > SLOW_MS
        for field, name in ((TTFT, "ttft_ms"), (TPOT, "tpot_ms")):
            if receipt[name] is not None and receipt["outcome"] in counts[field]:
                y = math.log(max(receipt[name], 0.001))
                cell[field] = [a + b for a, b in zip(cell[field], (1, y, y * y, x, x * x, x * y), strict=True)]
        if receipt["outcome"] == "ok":
            cell[CACHED] += receipt["cached_tokens"] or 0
            cell[PROMPT] += receipt["actual_prompt_tokens"] if receipt["cached_tokens"] is not None else 0
        for outcome, field, sessions in (("error", FAILED, ERRORS), ("refused", AWAY, REFUSED)):
            if receipt["outcome"] == outcome:
                cell[field] += 1
                once(cell, sessions, receipt)
        cell[CLIENTS] += receipt["outcome"] == "client_error"
    return made


async def by_prompt(engine, request, writer):
    prompt = request.document["prompt"]
    if "slow" in prompt:
        await asyncio.sleep(1.5 * SLOW_MS / 1000)
    if "bad" in prompt:
        await reply({"error": "bad"}, 500)(engine, request, writer)
    elif "long" in prompt:
        await reply({"error": "too long"}, 400)(engine, request, writer)
    elif "full" in prompt:
        await reply({"error": "full"}, 503)(engine, request, writer)
    else:
        await (stream(pause_s=0.002) if request.document.get("stream") else reply())(engine, request, writer)


@pytest.mark.slow
async def test_tallies_agree_with_the_receipts(world):
    w = await world(by_prompt)
    await split(w, 0.5, slow=SLOW)
    answers = []
    for number in range(60):
        kind = ("", "slow ", "long ", "bad ", "", "full ")[number % 6]
        headers = {"x-session-id": f"s{number % 4}"} if number % 5 else {}
        prompt = f"{kind}{number} " + "x" * (200 * (number % 9))
        is_stream = number % 3 != 0 or "slow" in kind
        answers.append(await w.ask(prompt=prompt, stream=is_stream and kind in ("", "slow "), headers=headers))
    receipts = [await w.receipt(answer) for answer in answers]
    value = await written(w)
    expected = of_receipts(receipts, w.router.pools.get("demo").policy, 0.5)
    got = cells(value)
    assert got.keys() == expected.keys()
    for key, cell in expected.items():
        assert got[key][ERRORS:] == cell[ERRORS:], key
        for field, within in ((TTFT, 0.02), (TPOT, 0.1)):  # a fast first token takes few of the receipts' microseconds
            assert got[key][field] == pytest.approx(cell[field], rel=within, abs=within), key
    assert [total(value, field) for field in (N, FAILED, AWAY, CLIENTS)] == [60, 10, 10, 10]
    assert total(value, SLOW_N) >= 10
    assert total(value, ERRORS) < 10
    assert {arm for arm, _, _ in got} == {"candidate", "control"}


async def test_a_request_that_hangs_is_counted_as_soon_as_it_is_slow(world):
    w = await world(hang)
    await split(w, 0.0, slow=SLOW)
    asking = asyncio.ensure_future(w.ask(stream=True))
    await w.until(lambda: w.engines[0].received)
    value = await written(w)
    assert (total(value, N), total(value, STREAMED), total(value, SLOW_N)) == (1, 1, 0)
    await asyncio.sleep(SLOW_MS / 1000)
    value = await written(w)
    assert (total(value, SLOW_N), total(value, ENDED), value["written"]) == (1, 0, 2)
    w.engines[0].release.set()
    await asking
    value = await written(w)
    assert (total(value, SLOW_N), total(value, ENDED)) == (1, 1)


async def test_a_stream_that_began_in_time_never_counts_as_slow(world):
    w = await world(stream(events(1, usage=False), pause_s=SLOW_MS / 1000))
    await split(w, 0.0, slow=SLOW)
    asking = asyncio.ensure_future(w.ask(stream=True))
    await asyncio.sleep(SLOW_MS / 1000 * 1.5)
    assert total(await written(w), SLOW_N) == 0
    await asking
    assert total(await written(w), SLOW_N) == 0


async def test_requests_before_the_end_of_the_warm_up_are_not_counted(world):
    w = await world(None)
    await split(w, 0.5, warmup_s=60.0)
    receipt = await w.receipt(await w.ask())
    assert receipt["arm"]
    assert (await written(w))["cells"] == {}


async def test_each_generation_counts_from_zero_and_leaves_out_earlier_requests(world):
    w = await world(hang)
    await split(w, 0.5)
    asking = asyncio.ensure_future(w.ask(stream=True))
    await w.until(lambda: w.engines[0].received)
    await split(w, 0.6, generation=2)
    w.engines[0].release.set()
    await asking
    await w.ask()
    values = await generations(w)
    assert {number: (total(value, N), total(value, ENDED)) for number, value in values.items()} == {
        1: (1, 1),
        2: (1, 1),
    }


async def test_a_long_answer_counts_for_the_generation_that_routed_it(world):
    """The first byte arrives during the generation that routed the request, the end long after the next generation
    began.
    """
    w = await world(stream(events(40), pause_s=0.05))
    await split(w, 0.5)
    asking = asyncio.ensure_future(w.ask(stream=True))
    await w.until(lambda: w.engines[0].received)
    under_way = w.router.recorder.deliveries["demo"]._under_way
    await w.until(lambda: [call.outcome.begun for call in under_way.values()] == [True])
    await split(w, 0.0, generation=2)
    value = (await generations(w))[1]
    assert [cell[TTFT][0] for cell in cells(value).values()] == [1]
    assert (total(value, N), total(value, ENDED)) == (1, 0)
    await asking
    values = await generations(w)
    (cell,) = cells(values[1]).values()
    assert (cell[N], cell[TTFT][0], cell[TPOT][0], cell[ENDED]) == (1, 1, 1, 1)
    assert values[2]["cells"] == {}


async def test_generations_that_no_longer_count_are_removed_from_redis(world):
    w = await world(None)
    for generation in range(1, 9):
        await split(w, 0.5, generation=generation)
        await generations(w)
    assert sorted(await generations(w)) == [4, 5, 6, 7, 8]


async def test_requests_that_compute_nothing_are_not_counted(world):
    w = await world(None)
    await split(w, 0.5)
    await w.ask("/tokenize")
    assert (await written(w))["cells"] == {}


@pytest.mark.slow
async def test_the_last_tallies_are_written_when_the_router_stops_and_the_next_start_has_its_own(world, redis_url):
    w = await world(None)
    await split(w, 0.5)
    lives = []
    for _ in range(2):
        async with running(redis_url, "router-2") as (router, client):
            lives.append(router.source.reporter.life)
            for _ in range(3):
                await client.post("/v1/completions", json={"model": "llama", "prompt": "x"})
    names = {name.decode() for name in w.published.client.hkeys(redis_keys.delivery_key(7))}
    assert {f"demo:router-2.{life}.g1" for life in lives} <= names
    assert len(set(lives)) == 2
    found = {value["life"]: value for value in tallies(w.published.client)}
    assert [total(found[life], ENDED) for life in lives] == [3, 3]
    assert 0 < w.published.client.ttl(redis_keys.delivery_key(7)) <= redis_keys.DELIVERY_TTL_S


async def test_a_router_without_requests_writes_tallies_and_one_without_a_delivery_does_not(world):
    w = await world(None)
    await w.router.source.reporter.deliveries.write()
    assert tallies(w.published.client) == []
    await split(w, 0.5)
    value = await written(w)
    assert (value["written"], value["cells"], value["router"]) == (1, {}, "router-1")
    assert (await written(w))["written"] == 2


# Without a router


RESULTS = {
    **{"ok": "served", "client_error": "client_error", "error": "failed_before_content"},
    **{"refused": "refused", "cancelled": "cancelled"},
}


def call(number, *, label="ok", ttft_ms=100.0, has_session=True, request_class="warm", arm="control", cell=0):
    made = Call(f"r{number}", "/v1/completions", 0.0, 0.0)
    made.request = SimpleNamespace(prompt=SimpleNamespace(stream=True))
    made.prediction.prompt_tokens = 3_000 + number
    usage = Usage(prompt_tokens=3_000 + number, cached_tokens=1_700, output_tokens=90)
    outcome = made.outcome
    outcome.ttft_ms, outcome.tpot_ms, outcome.e2e_ms, outcome.usage = ttft_ms, 11.3 + number / 7, 900.0, usage
    outcome.close(RESULTS[label])
    made.assigned = Assignment(7, 3, arm, cell, number, has_session, request_class)
    return made


def counted(*calls, slow=None):
    state = SplitState(rollout(slow=slow or {}), None)
    state.counts_from = 0.0
    made = DeliveryTallies(state)
    for one in calls:
        made.decided(one, one.assigned)
        made.ended(one, one.assigned)
    return made


def test_a_session_counts_once_however_often_it_fails():
    labels = ("error", "error", "refused", "refused", "ok", "cancelled")
    calls = [call(1, label=label, ttft_ms=100.0 if label == "ok" else None) for label in labels]
    (cell,) = counted(*calls, call(2, label="error", ttft_ms=None)).read("control", "warm").values()
    assert (cell.n, cell.ended, cell.sessions) == (7, 7, 2)
    assert (cell.errors, cell.failed, cell.refused, cell.turned_away, cell.ttft.n) == (2, 3, 1, 2, 1)


def test_a_client_error_counts_neither_as_an_error_nor_as_a_refusal():
    labels = ("client_error", "client_error", "error", "ok")
    (cell,) = counted(*(call(n, label=label) for n, label in enumerate(labels))).read("control", "warm").values()
    assert (cell.ended, cell.client_errors, cell.failed, cell.errors, cell.refused) == (4, 2, 1, 1, 0)
    assert cell.judged == 2


def test_each_request_without_a_session_is_a_separate_session():
    calls = [call(number, label="error", has_session=False) for number in (1, 1, 1)]
    (cell,) = counted(*calls).read("control", "warm").values()
    assert (cell.sessions, cell.errors) == (3, 3)


def test_the_least_recent_sessions_are_forgotten(monkeypatch):
    monkeypatch.setattr(delivery_tallies, "SESSIONS_KEPT", 2)
    (cell,) = counted(*(call(number) for number in (1, 2, 3, 3, 2, 1))).read("control", "warm").values()
    assert cell.sessions == 4


def test_a_time_of_zero_and_a_prompt_of_no_tokens_can_be_counted():
    one = call(1, ttft_ms=0.0)
    one.prediction.prompt_tokens = 0
    (cell,) = counted(one, slow={"warm": (0.0, 1.0, 0.0)}).read("control", "warm").values()
    assert (cell.ttft.y, cell.ttft.x, cell.slow) == (pytest.approx(math.log(0.001), rel=1e-5), 0.0, 0)


def enlarge(counts, factor):
    """Multiply all counts, as if each request had arrived `factor` times."""
    for name in counts.__slots__:
        value = getattr(counts, name)
        enlarge(value, factor) if hasattr(value, "__slots__") else setattr(counts, name, value * factor)


def test_the_whole_state_takes_60_kb_at_most():
    """An hour of a router under extreme load: 1,000 requests/s, half of them in each arm."""
    of_each = 1_000 * 3_600 // (CELLS * 3 * 2)
    made = counted()
    for arm, name, number in product(("candidate", "control"), ("warm", "medium", "heavy"), range(CELLS)):
        one = call(number * 31, ttft_ms=5_000.3 + number, request_class=name, arm=arm, cell=number)
        made.decided(one, one.assigned)
        made.ended(one, one.assigned)
        enlarge(made._cells[arm, name][number], of_each)
    for number in range(1_000):
        made.shadow.to[f"pool-of-ours-{number}"] = made.shadow.live_to[f"pool-of-ours-{999 - number}"] = number + 1_000
    cells = {}
    for arm, name in made.requests():
        cells.setdefault(arm, {})[name] = made.read(arm, name)
    value = DeliveryTally(
        delivery=7,
        generation=3,
        pool="demo",
        router="router-1",
        life="5f2b1c9e5f2b1c9e",
        at=1795342410.23,
        written=720,
        cells=cells,
        shadow=made.shadow.read(0.25),
    )
    assert len(encode(value)) < 60_000
    assert json.loads(encode(value))["cells"]["candidate"]["heavy"]["63"][N] == of_each

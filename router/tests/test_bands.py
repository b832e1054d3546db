"""Priority bands: who may request which band, and how bands reach the engine."""

import asyncio
import json

import pytest

from router.contract.redis.api_keys import PublishedKey
from router.contract.redis.codec import decode
from router.contract.redis.receipt import Receipt
from router.http.errors import ErrorResponse
from router.policy.decide import decide
from router.policy.replay import situation
from router.policy.schema import document
from router.policy.types import InstanceState, RoutingRequest
from router.request import bands
from router.request.bands import AskedBand
from router.serving.prompt import prepare
from router.tests.conftest import key_entry
from router.tests.engine import hang
from router.tests.http.test_own_errors import code_of
from router.tests.test_keys import ALICE, bearer, keyed

KEY = PublishedKey(id="a", name="ci", sha256="0" * 64, priority=2, priority_max=5)
CHAT = "/v1/chat/completions"


def policy(**overrides):
    named = {name.replace("__", "."): value for name, value in overrides.items()}
    return document.parse(document.apply_overrides(document.default(), named))


def asked(body=b"{}", header=None, key=None):
    read, sent = prepare.read(body, CHAT)
    return bands.asked({} if header is None else {bands.HEADER: header}, read, key), sent


@pytest.mark.parametrize(
    ("body", "header", "key", "band", "by"),
    [
        (b"{}", None, None, 0, ""),
        (b'{"priority": 7}', b"-3", KEY, -3, "x-weir-priority"),
        (b'{"priority": 7, "service_tier": "priority"}', None, KEY, -7, "priority"),
        (b'{"priority": -7}', None, None, 7, "priority"),
        (b'{"priority": null, "service_tier": "flex"}', None, None, -10, "service_tier flex"),
        (b'{"service_tier": "priority"}', None, None, 10, "service_tier priority"),
        (b'{"service_tier": "auto"}', None, KEY, 2, "the API key ci"),
        (b'{"service_tier": ["priority"]}', None, None, 0, ""),
    ],
)
def test_header_body_tier_and_key_request_a_band_in_this_order(body, header, key, band, by):
    assert asked(body, header, key)[0] == AskedBand(band, by)


@pytest.mark.parametrize(
    ("body", "header"),
    [
        *[(b"{}", wrong) for wrong in (b"", b"x", b"1.5", b"--1", b"101", b"-101", b"9" * 400, "²".encode())],
        *[(b'{"priority": %b}' % wrong, None) for wrong in (b'"1"', b"1.5", b"true", b"101", b"[]")],
    ],
)
def test_anything_but_a_whole_number_within_the_limits_is_refused(body, header):
    with pytest.raises(ErrorResponse) as refused:
        asked(body, header)
    assert (refused.value.status, refused.value.code) == (400, "invalid_priority")
    assert "must be a whole number from -100 to 100" in refused.value.message
    assert len(refused.value.message) < 200


def test_no_client_gets_more_than_its_key_or_without_one_the_policy_allows():
    high, low = AskedBand(50, "x-weir-priority"), AskedBand(-50, "x-weir-priority")
    assert [bands.granted(one, KEY, policy()) for one in (high, low)] == [5, -50]
    assert [bands.granted(one, None, policy()) for one in (high, low)] == [0, -50]
    assert bands.granted(high, None, policy(admission__keyless_band_max=20)) == 20
    assert bands.granted(high, None, policy(), is_replay=True) == high.band


def test_the_engine_gets_the_body_without_the_priority():
    (_, sent), (_, untouched) = asked(b'{"model": "m", "priority": 1, "n": 2}'), asked(b'{ "model":"m" }')
    assert sent == b'{"model":"m","n":2}'
    assert untouched == b'{ "model":"m" }'


def test_a_low_band_leaves_capacity_that_other_requests_use_and_its_receipt_replays():
    fleet = [InstanceState("a", running=8)]
    rule = policy(admission__max_inflight_per_instance=10)
    assert decide(RoutingRequest(100), fleet, rule, 0.5).instance == "a"
    low = decide(RoutingRequest(100, band=-1), fleet, rule, 0.5)
    assert (low.instance, low.rule) == ("", "nobody")
    assert "8 of 8" in low.reasons[1]
    kept = low.candidates.inputs()
    assert kept["band"] == -1
    assert "band" not in decide(RoutingRequest(100), fleet, rule, 0.5).candidates.inputs()


async def test_a_higher_band_is_served_first_and_the_receipt_names_the_source(world):
    high = key_entry(ALICE, priority=3, priority_max=3)
    w = await keyed(world, high, required=(), engine=hang, admission__max_inflight_per_instance=1)
    queue = w.router.pools.get("demo").queue
    running = asyncio.ensure_future(w.ask())
    await w.until(lambda: w.engines[0].received)
    low = {"x-weir-priority": "-1", "x-vllm-priority": "9"}
    asks = []
    for name, headers in (("low", low), ("lower", {}), ("high", {**bearer(ALICE), "x-weir-priority": "90"})):
        asks.append(asyncio.ensure_future(w.ask(headers={**headers, "x-request-id": name}, priority=4)))
        await w.until(lambda: len(queue) == len(asks))
    page = (await w.client.get("/metrics")).text
    assert 'weir_router_band_queued_requests{band="3",pool="demo"} 1.0' in page
    w.engines[0].release.set()
    _, *answers = await asyncio.gather(running, *asks)
    served = [one.headers["x-request-id"].partition("-")[0] for one in w.engines[0].received[1:]]
    assert served == ["high", "low", "lower"]
    assert all("priority" not in one.document for one in w.engines[0].received)
    assert not any({"x-weir-priority", "x-vllm-priority"} & set(one.headers) for one in w.engines[0].received)
    receipts = [await w.receipt(answer) for answer in answers]
    told = [(one["band"], one["band_asked"], one["band_asked_by"]) for one in receipts]
    assert told == [(-1, -1, "x-weir-priority"), (-4, -4, "priority"), (3, 90, "x-weir-priority")]
    assert situation(decode(Receipt, json.dumps(receipts[0]).encode())).request.band == -1
    page = (await w.client.get("/metrics")).text
    assert 'weir_router_band_requests_total{band="-4",outcome="ok",pool="demo"} 1.0' in page


async def test_a_full_queue_drops_the_newest_request_of_the_lowest_band_for_a_higher_band(world):
    full = {"admission__max_inflight_per_instance": 1, "admission__max_queue_warm": 2, "admission__keyless_band_max": 5}
    w = await world(hang, **full)
    queue = w.router.pools.get("demo").queue
    running = asyncio.ensure_future(w.ask())
    await w.until(lambda: w.engines[0].received)
    asks = []
    for band in ("-1", "-2"):
        asks.append(asyncio.ensure_future(w.ask(headers={"x-weir-priority": band})))
        await w.until(lambda: len(queue) == len(asks))
    high = asyncio.ensure_future(w.ask(headers={"x-weir-priority": "5"}))
    displaced = await asks[1]
    assert (displaced.status_code, code_of(displaced)) == (429, "displaced")
    assert int(displaced.headers["retry-after"]) >= 1
    assert code_of(await w.ask(headers={"x-weir-priority": "-1"})) == "saturated"
    w.engines[0].release.set()
    assert {one.status_code for one in await asyncio.gather(running, asks[0], high)} == {200}
    assert code_of(await w.ask(headers={"x-weir-priority": "high"})) == "invalid_priority"

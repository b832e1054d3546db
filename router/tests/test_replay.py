"""A receipt holds enough to repeat the router's decision, also under another policy."""

import asyncio

import pytest

from router.policy import replay
from router.policy.schema import document
from router.tests.engine import hang, hang_up
from router.tests.values import receipt_of


async def test_each_receipts_decision_can_be_repeated(world):
    w = await world(hang_up, None, None, strategy="session_sticky")
    policy = w.router.pools.get("demo").policy
    for number in range(6):
        receipt = await w.receipt(await w.ask(prompt=f"{number} " + "x" * 3_000, user=f"user {number % 3}"))
        again = replay.outcome(replay.situation(receipt_of(receipt)).decide(policy))
        assert replay.recorded(receipt_of(receipt)).differences(again) == []


async def test_the_load_of_that_moment_decides_under_another_policy(world):
    w = await world(hang, None)
    asking = asyncio.ensure_future(w.ask())
    await w.until(lambda: w.engines[0].received)
    receipt = await w.receipt(await w.ask())
    assert receipt["candidates"]["running"] == [1, 0]
    least = document.parse(document.default("least_requests"))
    assert replay.situation(receipt_of(receipt)).decide(least).instance == "demo-1"
    w.engines[0].release.set()
    await asking


async def test_a_receipt_contains_neither_session_nor_prompt(world):
    w = await world(None, strategy="prefix_hash")
    receipt = await w.receipt(await w.ask(prompt="secret " * 500, user="alice"))
    assert 0 <= receipt["inputs"]["prefix_key"] <= 0xFFFF
    assert "alice" not in str(receipt)
    assert "secret" not in str(receipt)


async def test_a_request_that_was_never_decided_is_reported_as_such(world):
    w = await world(None)
    receipt = await w.receipt(await w.ask(model="nope"))
    assert not {"inputs", "candidates"} & set(receipt)
    with pytest.raises(replay.NotReplayable, match="was refused before a decision"):
        replay.situation(receipt_of(receipt))

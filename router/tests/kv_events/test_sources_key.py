"""The engine's key is sent to the page that lists its KV event sources, and to no other address."""

import pytest

from router.kv_events.listener import _place
from router.kv_events.sources import RankPlace, discover
from router.pool.endpoint import Endpoint
from router.tests.conftest import instance
from router.tests.engine import engine, reply

SOURCES = {"0": {"endpoint": "tcp://127.0.0.1:5557"}}


async def test_the_key_is_sent_when_the_source_of_events_is_requested(monkeypatch):
    monkeypatch.setenv("QWEN_API_KEY", "sk-engine-1")
    async with engine(reply(SOURCES)) as made:
        await discover(made.url, RankPlace(engine_key="env:QWEN_API_KEY"))
        await discover(made.url)
    assert [request.headers.get("authorization") for request in made.received] == ["Bearer sk-engine-1", None]


@pytest.mark.parametrize(
    ("events", "key"),
    [("http://127.0.0.1:8000", "env:QWEN_API_KEY"), ("http://127.0.0.1:9000", ""), ("tcp://127.0.0.1:5557", "")],
)
async def test_the_key_is_sent_to_the_engines_own_address_only(events, key):
    made = Endpoint(instance("a", "http://127.0.0.1:8000", events=events, engine_key="env:QWEN_API_KEY"))
    assert _place(made).engine_key == key

"""Where an engine says that its events are."""

import json

import pytest

from router.kv_events.sources import KvEventSource, NoEvents, parse

URL = "http://10.0.0.7:8000"
ONE = {"data_parallel_rank": 0, "endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:5558", "topic": "kv"}


def read(value: object, url: str = URL) -> KvEventSource:
    return parse(json.dumps(value).encode(), url)


def test_every_address_means_the_one_that_answered() -> None:
    assert read([ONE]) == KvEventSource("tcp://10.0.0.7:5557", "tcp://10.0.0.7:5558", "kv")
    assert read({"0": ONE}) == read([ONE])
    assert read([ONE], "http://[::1]:8000").endpoint == "tcp://[::1]:5557"


def test_an_address_of_its_own_is_kept() -> None:
    given = {"endpoint": "tcp://10.1.1.1:1", "replay_endpoint": None}
    assert read([given]) == KvEventSource("tcp://10.1.1.1:1", None, "")
    assert read([{**given, "endpoint": "ipc:///tmp/kv"}]).endpoint == "ipc:///tmp/kv"


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ({}, "publishes no KV events"),
        ([], "publishes no KV events"),
        (None, "lists no sources"),
        (["tcp://*:1"], "lists no sources"),
        ([ONE, ONE], "2 data-parallel caches behind one address"),
        ([{"topic": "kv"}], "names no endpoint"),
        ([{**ONE, "publisher": "null"}], "no KV events over ZMQ"),
        ([{**ONE, "enable_kv_cache_events": False}], "no KV events over ZMQ"),
    ],
)
def test_what_cannot_be_followed_says_why(value: object, why: str) -> None:
    with pytest.raises(NoEvents, match=why):
        read(value)


def test_what_is_not_json_says_so() -> None:
    with pytest.raises(NoEvents, match="not JSON"):
        parse(b"<html>", URL)

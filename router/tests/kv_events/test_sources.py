"""The address at which an engine publishes its events, read from the engine."""

import json

import pytest

from router.kv_events.sources import KvEventSource, NoEvents, RankPlace, given, parse

URL = "http://10.0.0.7:8000"
ONE = {"data_parallel_rank": 0, "endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:5558", "topic": "kv"}


def read(value: object, url: str = URL) -> KvEventSource:
    return parse(json.dumps(value).encode(), url)


def test_an_address_for_every_interface_means_the_host_that_answered() -> None:
    assert read([ONE]) == KvEventSource("tcp://10.0.0.7:5557", "tcp://10.0.0.7:5558", "kv")
    assert read({"0": ONE}) == read([ONE])
    assert read([ONE], "http://[::1]:8000").endpoint == "tcp://[::1]:5557"


def test_a_specific_address_is_kept() -> None:
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
        ([ONE, ONE], "2 data-parallel caches behind its address"),
        ([{"topic": "kv"}], "names no endpoint"),
        ([{**ONE, "publisher": "null"}], "no KV events over ZMQ"),
        ([{**ONE, "enable_kv_cache_events": False}], "no KV events over ZMQ"),
    ],
)
def test_a_source_that_cannot_be_followed_is_reported_with_the_reason(value: object, why: str) -> None:
    with pytest.raises(NoEvents, match=why):
        read(value)


def test_text_that_is_not_json_is_reported() -> None:
    with pytest.raises(NoEvents, match="not JSON"):
        parse(b"<html>", URL)


RANKS = {str(rank): {**ONE, "endpoint": f"tcp://*:{5_600 + rank}", "replay_endpoint": None} for rank in (4, 5, 6, 7)}


@pytest.mark.parametrize(
    ("value", "place", "port"),
    [
        (RANKS, RankPlace(6, 2, 4), 5_606),  # numbered within the group
        ([{**one, "data_parallel_rank": int(rank)} for rank, one in RANKS.items()], RankPlace(6, 2, 4), 5_606),
        ({"sources": list(RANKS.values())}, RankPlace(6, 2, 4), 5_606),  # all claim to be rank 0, so their order counts
        ({str(place): one for place, one in enumerate(RANKS.values())}, RankPlace(6, 2, 4), 5_606),  # numbered from 0
        (RANKS, RankPlace(4, 0, 2), 5_604),  # more ranks than declared, including this one
    ],
)
def test_each_rank_has_its_own_source(value: object, place: RankPlace, port: int) -> None:
    assert parse(json.dumps(value).encode(), URL, place).endpoint == f"tcp://10.0.0.7:{port}"


@pytest.mark.parametrize(
    ("value", "place", "why"),
    [
        ({"0": ONE, "1": ONE}, RankPlace(), "2 data-parallel caches behind its address, and data_parallel_size is 1"),
        ({"0": ONE, "1": ONE}, RankPlace(3, 3, 4), "2 data-parallel caches behind its address, .* is 4"),
        ({"first": ONE}, RankPlace(), "lists no sources"),
    ],
)
def test_a_different_number_of_ranks_than_declared_is_reported(value: object, place: RankPlace, why: str) -> None:
    with pytest.raises(NoEvents, match=why):
        parse(json.dumps(value).encode(), URL, place)


def test_an_address_from_the_document_is_kept_unchanged() -> None:
    assert given("tcp://10.0.0.7:5557") == KvEventSource("tcp://10.0.0.7:5557", None, "")
    whole = given("tcp://[fd12::7]:5557?replay=tcp%3A%2F%2F%5Bfd12%3A%3A7%5D%3A5558&topic=kv")
    assert whole == KvEventSource("tcp://[fd12::7]:5557", "tcp://[fd12::7]:5558", "kv")


@pytest.mark.parametrize("address", ["tcp://", "tcp://a b:1", "tcp://a:1?replay=http%3A%2F%2Fb", "tcp://a:1?replay=x"])
def test_an_invalid_address_is_not_followed(address: str) -> None:
    with pytest.raises(NoEvents, match=r"allowed: tcp://HOST:PORT"):
        given(address)


def test_a_rank_gets_its_own_port_counted_from_the_first_ranks() -> None:
    made = given("tcp://10.0.0.7:5557?replay=tcp%3A%2F%2F10.0.0.7%3A5657", RankPlace(3, 3, 4))
    assert (made.endpoint, made.replay) == ("tcp://10.0.0.7:5560", "tcp://10.0.0.7:5660")

"""What a fleet entry says of an instance beside where it is."""

from typing import Any

import pytest

from router.pool.endpoint import Endpoint
from router.pool.pool import Pool, Unreadable
from router.tests.conftest import entry


def test_an_entry_without_a_role_serves_whole_requests_and_moves_no_kv() -> None:
    endpoint = Endpoint(entry("demo-0", "http://127.0.0.1:1"))
    assert (endpoint.role, endpoint.connector, endpoint.kv) == ("both", "", {})


def test_role_and_connector_reach_the_policy() -> None:
    changes: dict[str, Any] = {"role": "prefill", "connector": "nixl", "kv": {"bytes_per_token": 131072}}
    endpoint = Endpoint(entry("demo-0", "http://127.0.0.1:1", **changes))
    view = endpoint.view("")
    assert (view.role, view.connector, endpoint.kv) == ("prefill", "nixl", {"bytes_per_token": 131072})


def test_a_role_that_nobody_knows_leaves_the_fleet_as_it_was() -> None:
    pool = Pool("demo")
    pool.take_fleet({"at": 1.0, "model": "llama", "instances": [entry("demo-0", "http://127.0.0.1:1")]})
    cook = entry("demo-0", "http://127.0.0.1:1", role="cook")
    with pytest.raises(Unreadable, match="role: 'cook' is none of both, prefill, decode"):
        pool.take_fleet({"at": 2.0, "model": "llama", "instances": [cook]})
    assert pool.endpoints["demo-0"].role == "both"

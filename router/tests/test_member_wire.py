"""Fields of a published instance beside its address."""

import re
from typing import Any

import pytest

from router.contract.redis.codec import Unreadable, read
from router.contract.redis.published import FleetValue, KvFacts
from router.pool.endpoint import Endpoint
from router.tests.conftest import entry, instance
from router.tests.values import stored


def test_an_entry_without_a_role_serves_whole_requests_and_moves_no_kv() -> None:
    endpoint = Endpoint(instance("demo-0", "http://127.0.0.1:1"))
    assert (endpoint.role, endpoint.connector, endpoint.kv) == ("both", "", KvFacts())


def test_role_and_connector_reach_the_policy() -> None:
    changes: dict[str, Any] = {"role": "prefill", "connector": "nixl", "kv": {"bytes_per_token": 131072}}
    endpoint = Endpoint(instance("demo-0", "http://127.0.0.1:1", **changes))
    view = endpoint.view("")
    assert (view.role, view.connector, endpoint.kv) == ("prefill", "nixl", KvFacts(bytes_per_token=131072))


def test_an_unknown_role_makes_the_fleet_unreadable() -> None:
    raw = stored({"at": 2.0, "model": "llama", "instances": [entry("demo-0", "http://127.0.0.1:1", role="cook")]})
    with pytest.raises(Unreadable, match=re.escape("Invalid enum value 'cook' - at `$.instances[0].role`")):
        read(FleetValue, raw)

"""Public pages show no text from a fleet, a key or a delivery."""

import time
import typing
from typing import Any

from msgspec import Struct, structs

from router.contract.redis import redis_keys
from router.contract.redis.api_keys import PublishedKey
from router.contract.redis.published import FleetValue, PublishedInstance
from router.tests.conftest import entry, key_entry
from router.tests.deliveries import split, state
from router.tests.values import stored

SECRET = "two secret words"
KEY = "sk-weir-secret-alice"
PAGES = ("/healthz", "/metrics", "/v1/models")
NEEDED = {  # required for an instance, a pool or a key
    PublishedInstance: {"id", "url", "state", "role"},
    FleetValue: {"pool", "model"},
    PublishedKey: {"id", "sha256"},
}


def texts(kind: type[Struct]) -> list[str]:
    """Return the fields that may hold any text."""
    hints = typing.get_type_hints(kind)
    return [field.name for field in structs.fields(kind) if hints[field.name] is str and field.name not in NEEDED[kind]]


async def pages(world: Any) -> str:
    return "".join([(await world.client.get(path)).text for path in PAGES])


async def test_no_text_from_a_fleet_or_a_key_is_on_a_public_page(world: Any) -> None:
    w = await world(None)
    url = w.engines[0].url
    cases: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
        *((name, {name: SECRET}, {}) for name in texts(PublishedInstance)),
        *((name, {}, {name: SECRET}) for name in texts(FleetValue)),
    ]
    assert {"reason", "node", "halted"} <= {name for name, *_ in cases}
    w.published.keys(key_entry(KEY, **dict.fromkeys(texts(PublishedKey), SECRET)), required=("*",))
    auth = w.router.pools.auth
    await w.until(lambda: auth.ring is not None and auth.ring.by_hash)
    assert (await w.ask(headers={"authorization": f"Bearer {KEY}"})).status_code == 200
    leaks = []
    for name, of_instance, of_fleet in cases:
        before = w.router.pools.get("demo").fleet_at
        w.published.fleet(entry("demo-0", url, **of_instance), **of_fleet)
        await w.until(lambda before=before: w.router.pools.get("demo").fleet_at != before, name)
        if name == "events":  # the error of the connection attempt names their address
            await w.until(lambda: SECRET in w.router.pools.get("demo").endpoints["demo-0"].belief.why, name)
        leaks += [name] if SECRET in await pages(w) else []
    assert leaks == []
    assert f'weir_router_key_requests_total{{key="{key_entry(KEY)["id"]}",outcome="ok"}} 1.0' in await pages(w)


async def test_the_reason_for_stopping_a_delivery_is_on_no_public_page(world: Any) -> None:
    w = await world(None)
    await split(w, 1.0)
    stop = {"delivery": 7, "why": SECRET, "by": "person", "at": time.time()}
    w.published.client.set(redis_keys.stop_key("demo"), stored(stop))
    w.published.client.publish(redis_keys.CHANGED, redis_keys.stop_key("demo"))
    await w.until(lambda: state(w) == "tripped")
    text = await pages(w)
    assert "the live version serves all requests: by a person" in text
    assert SECRET not in text

"""Shares: live state for readers without an account, and nothing else."""

import json
import time
from typing import Any

import pytest
import redis
from asgiref.testing import ApplicationCommunicator
from django.test import Client
from django.urls import get_resolver
from django.utils import timezone

from controlplane.base.process import embed_origins, env
from controlplane.doors.api.sockets import ShareHandshake
from controlplane.live.dashboard.step import current
from controlplane.live.dashboard.tests.fake_fleet import FakeFleet
from controlplane.pages.shares import badge, consumers, places, view
from controlplane.pages.shares.models import Share
from controlplane.people.audit.models import AuditEntry
from controlplane.testing import ApiCaller
from router.contract.values.secret_text import masked


@pytest.fixture
def two_pools(live_redis: redis.Redis) -> redis.Redis:
    assert get_resolver().url_patterns  # importing all pages takes seconds, in which a fleet would become stale
    for pool in ("demo", "secret"):
        fleet = FakeFleet(live_redis, size=2, pool=pool)
        fleet.states = {f"{pool}-1": ("failed", f"{pool} ran out of memory")}
        fleet.write()
    return live_redis


def issue(pool: str = "") -> tuple[Share, str]:
    return Share.issue(name="status page", pool=pool, created_by="ada", expires_at=None)


def test_a_share_of_one_pool_shows_nothing_of_another(db: None, two_pools: redis.Redis, client: Client) -> None:
    frame = current(two_pools, time.time())
    assert frame is not None
    assert "secret" in json.dumps(frame)
    frame["aliases"] = {"demo": "chat 2 requests/s", "secret": "secret-chat 1 requests/s"}
    shown = view.frame_of(frame, "demo")
    assert shown["aliases"] == {"demo": "chat 2 requests/s"}
    assert frame.keys() - shown.keys() == {"flow"}
    assert "secret" not in json.dumps(shown)
    assert shown["instances"]["id"] == ["demo-0", "demo-1"]
    assert sum(shown["counts"].values()) == 2
    _, token = issue("demo")
    page = client.get(f"/wall/s/{token}")
    assert b"demo-0" in page.content
    assert b"secret" not in page.content
    assert [client.get(f"/badge/{token}/{pool}.json").status_code for pool in ("demo", "secret")] == [200, 404]


def test_the_shared_wall_sets_no_cookie_and_may_be_framed_by_listed_origins_only(
    db: None, two_pools: redis.Redis, client: Client, vera_client: Client, settings: Any
) -> None:
    _, token = issue()
    address = f"/wall/s/{token}"
    closed = client.get(address)
    assert closed.headers["X-Frame-Options"] == "DENY"
    assert "frame-ancestors 'none'" in closed.headers["Content-Security-Policy"]
    settings.EMBED_ORIGINS = ["https://status.example.org"]
    for reader in (client, vera_client):
        page = reader.get(address)
        assert page.status_code == 200
        assert "frame-ancestors https://status.example.org;" in page.headers["Content-Security-Policy"] + ";"
        assert "X-Frame-Options" not in page.headers
        assert page.headers["Referrer-Policy"] == "no-referrer"
        assert "no-store" in page.headers["Cache-Control"]
        assert not page.cookies
        text = page.content.decode()
        assert "<form" not in text
        assert "<a " not in text
        assert "csrf" not in text.lower()
    for other in ("/live", "/wall", "/shares/"):
        answer = vera_client.get(other)
        assert answer.headers["X-Frame-Options"] == "DENY"
        assert "status.example.org" not in answer.headers["Content-Security-Policy"]


def test_a_revoked_or_expired_share_opens_nothing(db: None, two_pools: redis.Redis, client: Client) -> None:
    rows = [issue() for _ in range(3)]
    Share.objects.filter(pk=rows[1][0].pk).update(revoked_at=timezone.now())
    Share.objects.filter(pk=rows[2][0].pk).update(expires_at=timezone.now())
    paths = ("/wall/s/{}", "/badge/{}/demo.svg")
    found = [[client.get(path.format(token)).status_code for path in paths] for _, token in rows]
    assert found == [[200, 200], [404, 404], [404, 404]]
    token = rows[0][1]
    assert client.get(f"/wall/s/{token[:-1]}").status_code == 404
    bearer = {"Authorization": f"Bearer {token}"}
    assert client.get("/api/v1/live", headers=bearer).status_code == 401
    assert rows[0][1] not in masked(f"GET /wall/s/{token} 404")
    assert not Share.objects.filter(sha256__contains=token[-20:]).exists()


def test_badges_show_the_state_of_a_pool(db: None, two_pools: redis.Redis, client: Client) -> None:
    _, token = issue()
    svg, told, shields = (client.get(f"/badge/{token}/demo.{form}") for form in ("svg", "json", "shields"))
    assert svg.headers["Content-Type"] == "image/svg+xml"
    assert "demo: 1/2 ready" in svg.content.decode()
    assert {one.headers["Cache-Control"] for one in (svg, told, shields)} == {"no-cache"}
    assert (told.json()["ready"], told.json()["wanted"], told.json()["color"]) == (1, 2, "yellow")
    assert shields.json() == {"schemaVersion": 1, "label": "demo", "message": "1/2 ready", "color": "yellow"}
    assert client.get(f"/badge/{token}/nothing.svg").status_code == 404


@pytest.mark.parametrize(
    ("ready", "missed", "age_s", "found"),
    [
        (2, False, 0, ("2/2 ready", "brightgreen")),
        (2, True, 0, ("2/2 ready, SLO missed: heavy", "yellow")),
        (0, False, 0, ("0/2 ready", "red")),
        (2, False, 600, ("unknown", "lightgrey")),
    ],
)
def test_a_badge_has_the_colour_of_its_state(ready: int, missed: bool, age_s: float, found: tuple[str, str]) -> None:
    frame: Any = {
        "at": 1000.0,
        "pools": {"a<b": {"wanted": 2}},
        "instances": {"pool": ["a<b"] * 2, "status": ["ready"] * ready + ["failed"] * (2 - ready)},
        "slo": {"a<b": {"heavy": {"listed": missed}}},
    }
    made = badge.badge(frame, "a<b", 1000.0 + age_s)
    assert (made.message, made.color) == found
    assert "a&lt;b" in badge.svg(made)
    assert "a<b" not in badge.svg(made)


def handshake(address: str = "192.0.2.1") -> ApplicationCommunicator:
    scope = {"type": "websocket", "path": "/ws/share", "headers": [], "query_string": b"", "client": (address, 1)}
    return ApplicationCommunicator(ShareHandshake(consumers.ShareConsumer.as_asgi()), scope)  # type: ignore[arg-type]


async def opened(*said: str, address: str = "192.0.2.1") -> ApplicationCommunicator:
    made = handshake(address)
    await made.send_input({"type": "websocket.connect"})
    assert (await made.receive_output(30))["type"] == "websocket.accept"
    for text in said:
        await made.send_input({"type": "websocket.receive", "text": text})
    return made


async def left(socket: ApplicationCommunicator) -> None:
    await socket.send_input({"type": "websocket.disconnect", "code": 1001})
    await socket.wait(30)


async def refused(address: str) -> str:
    """Return the answer to a handshake that gets no socket."""
    socket = handshake(address)
    await socket.send_input({"type": "websocket.connect"})
    last = await socket.receive_output(30)
    await socket.wait(30)
    return f"{last['type']} {last['code']}"


async def closed(socket: ApplicationCommunicator) -> int:
    """Return the code with which the socket is closed, after the messages that are sent before."""
    while (last := await socket.receive_output(30))["type"] != "websocket.close":
        pass
    await socket.send_input({"type": "websocket.disconnect", "code": last["code"]})
    await socket.wait(30)
    return int(last["code"])


async def test_a_socket_stays_open_while_its_share_is_valid(
    two_pools: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    usable = {"right": Share(pool="demo")}

    async def found(token: str) -> Share | None:
        return usable.get(token)

    monkeypatch.setattr(consumers, "found", found)
    monkeypatch.setattr(consumers, "CHECK_S", 0.05)
    monkeypatch.setattr(consumers, "FIRST_MESSAGE_S", 0.2)
    for said in (("nonsense",), ("[]",), ('{"token": 1}',), ('{"token": "wrong"}', '{"token": "right"}')):
        assert await closed(await opened(*said)) == 4401
    assert await closed(await opened()) == 1013, "a late token is not a wrong one: the wall connects again"
    socket = await opened('{"token": "right"}')
    message = json.loads((await socket.receive_output(30))["text"])
    assert (message["type"], list(message["frame"]["pools"])) == ("snapshot", ["demo"])
    usable.clear()
    assert await closed(socket) == 4401
    assert not places.STRANGERS.taken
    assert not places.VIEWERS.taken


@pytest.fixture
def few_places(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, most, of_one in (("STRANGERS", 3, 2), ("VIEWERS", 2, 1)):
        monkeypatch.setattr(places, name, places.Places(most, of_one))


async def test_strangers_are_refused_before_the_handshake(few_places: None) -> None:
    first, second = [await opened(), await opened()]
    assert await refused("192.0.2.1") == "websocket.close 4503"
    other = await opened(address="192.0.2.2")
    assert await refused("192.0.2.3") == "websocket.close 4503"
    await left(first)
    await left(second)
    for socket in (other, await opened()):
        await left(socket)
    assert not places.STRANGERS.taken


async def test_addresses_of_one_ipv6_network_count_as_one(few_places: None) -> None:
    sockets = [await opened(address=f"2001:db8::{i}") for i in (1, 2)]
    assert await refused("2001:db8::ffff:3") == "websocket.close 4503"
    for socket in sockets:
        await left(socket)


async def test_viewers_with_a_share_have_their_own_limit(
    few_places: None, two_pools: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def shared(token: str) -> Share:
        return Share(pool="demo")

    monkeypatch.setattr(consumers, "found", shared)
    late = await opened()
    viewer = await opened('{"token": "right"}')
    assert json.loads((await viewer.receive_output(30))["text"])["type"] == "snapshot"
    assert (places.STRANGERS.taken["192.0.2.1"], places.VIEWERS.taken["192.0.2.1"]) == (1, 1)
    assert await refused("192.0.2.1") == "websocket.close 4503"
    await late.send_input({"type": "websocket.receive", "text": '{"token": "right"}'})
    assert await closed(late) == 1013
    await left(viewer)
    assert not places.STRANGERS.taken
    assert not places.VIEWERS.taken


def test_administrators_share_and_revoke_on_the_page_and_over_rest(
    ada_client: Client, otto_client: Client, ada_api: ApiCaller, ci: ApiCaller
) -> None:
    assert [otto_client.get("/shares/").status_code, ci.get("/shares").status_code] == [403, 403]
    page = ada_client.post("/shares/", {"name": "lobby", "pool": "", "expires": "30"})
    row = Share.objects.get(name="lobby")
    assert f"/wall/s/weir_share_{row.prefix}_" in page.content.decode()
    assert page.headers["Cache-Control"] == "no-store"
    assert f"/wall/s/weir_share_{row.prefix}_" not in ada_client.get("/shares/").content.decode()
    assert ada_client.post(f"/shares/{row.pk}/revoke").status_code == 302
    made = ada_api.post("/shares", {"name": "by script"})
    assert made.status_code == 201
    share = made.json()
    assert share["wall"] == f"/wall/s/{share['token']}"
    refused = ada_api.post("/shares", {"name": "x", "pool": "nothing", "expires_at": None})
    assert (refused.status_code, refused.json()["errors"][0]["path"]) == (422, "pool")
    past = ada_api.post("/shares", {"name": "x", "expires_at": "2020-01-01T00:00:00Z"})
    assert (past.status_code, past.json()["errors"][0]["path"]) == (422, "expires_at")
    assert [one["status"] for one in ada_api.get("/shares").json()] == ["usable", "revoked"]
    assert [ada_api.delete(f"/shares/{share['id']}").status_code for _ in range(2)] == [204, 204]
    assert ada_api.delete("/shares/999").status_code == 404
    actions = AuditEntry.objects.filter(action__startswith="share.").order_by("pk").values_list("action", flat=True)
    assert list(actions) == ["share.create", "share.revoke", "share.create", "share.revoke"]
    assert share["token"] not in json.dumps(list(AuditEntry.objects.values_list("after", flat=True)))


@pytest.mark.parametrize(
    "origin",
    [
        "*",
        "https://*.example.org",
        "http://example.org",
        "https://a.org/path",
        "https://a.org;x",
        "a.org",
        "https://a:b",
    ],
)
def test_an_invalid_origin_ends_the_start(monkeypatch: pytest.MonkeyPatch, origin: str) -> None:
    monkeypatch.setenv("WEIR_EMBED_ORIGINS", f"https://status.example.org, http://localhost:3000,{origin}")
    with pytest.raises(env.BadSetting, match="WEIR_EMBED_ORIGINS="):
        embed_origins.read()
    monkeypatch.setenv("WEIR_EMBED_ORIGINS", "https://Status.example.org:8443/, http://localhost:3000")
    assert embed_origins.read() == ["https://status.example.org:8443", "http://localhost:3000"]

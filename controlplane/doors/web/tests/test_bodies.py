"""The limit on each caller's body, enforced by the application that every server runs."""

import json
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.conf import settings
from django.contrib.auth.models import User
from django.db import OperationalError
from django.test import Client

from controlplane.doors.web import bodies, protocol, room
from controlplane.doors.web.__main__ import MAX_WEBSOCKET_MESSAGE
from controlplane.doors.web.bodies import ANONYMOUS, BoundedBodies, limit_of
from controlplane.evidence.traces.formats import registry
from controlplane.pages.shares import places
from controlplane.testing import ApiCaller

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _one_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test is one transaction, so everything uses one connection."""
    monkeypatch.setattr("channels.db.close_old_connections", lambda: None)


class Django:
    """Replaces Django: reads the whole body before it does anything else."""

    received = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        while True:
            message = await receive()
            self.received += len(message["body"])
            if not message["more_body"]:
                break
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})


class Asking(Django):
    """Answers only after it has itself sent the next request of `further`, as (size, headers)."""

    def __init__(self, *further: tuple[int, dict[str, str]]) -> None:
        self.further = [*further]
        self.statuses: list[int] = []
        self.bounded = BoundedBodies(self)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if self.further:
            self.statuses.append((await asked(self.bounded, *self.further.pop()))[0])
        await super().__call__(scope, receive, send)


@async_to_sync  # in the thread, and so in the transaction, of the test
async def ask(app: Django, *given: Any, **named: Any) -> tuple[int, dict[bytes, bytes], bytes]:
    return await asked(app.bounded if isinstance(app, Asking) else BoundedBodies(app), *given, **named)


async def asked(
    bounded: BoundedBodies,
    size: int,
    headers: dict[str, str] | None = None,
    path: str = "/login",
    announced: bool = True,
) -> tuple[int, dict[bytes, bytes], bytes]:
    given = {**(headers or {}), **({"content-length": str(size)} if announced else {"transfer-encoding": "chunked"})}
    scope = {
        "type": "http", "path": path, "headers": [(name.encode(), value.encode()) for name, value in given.items()]
    }  # fmt: skip
    left, sent = size, []

    async def receive() -> dict[str, Any]:
        nonlocal left
        piece = min(left, 60_000)
        left -= piece
        return {"type": "http.request", "body": b"x" * piece, "more_body": left > 0}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    await bounded(scope, receive, send)
    assert [message["type"] for message in sent] == ["http.response.start", "http.response.body"]
    return sent[0]["status"], dict(sent[0]["headers"]), sent[1]["body"]


def cookie(client: Client) -> dict[str, str]:
    return {"cookie": f"a=b; {settings.SESSION_COOKIE_NAME}={client.cookies[settings.SESSION_COOKIE_NAME].value}"}


@pytest.mark.parametrize("announced", [True, False])
def test_a_stranger_may_send_a_small_body_and_no_larger_one(announced: bool) -> None:
    app = Django()
    assert (ask(app, ANONYMOUS, announced=announced))[0] == 200
    app = Django()
    status, headers, body = ask(app, ANONYMOUS + 1, announced=announced)
    assert (status, headers[b"connection"]) == (401 if announced else 413, b"close")
    assert "16,384 bytes" in json.loads(body)["detail"]
    assert app.received == 0


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": "Bearer weir_nothing"},
        {"authorization": "Basic eDp5"},
        {"cookie": "sessionid=" + "x" * 32},
        {"cookie": "other=1"},
    ],
)
def test_a_wrong_credential_counts_as_a_missing_one(headers: dict[str, str]) -> None:
    app = Django()
    assert (ask(app, 1_000_000, headers))[0] == 401
    assert app.received == 0


def test_a_user_without_a_role_is_a_stranger(client: Client) -> None:
    client.force_login(User.objects.create_user("nemo"))
    headers = {name.encode(): value.encode() for name, value in cookie(client).items()}
    assert bodies.user_named(headers) == ""


@pytest.mark.parametrize("announced", [True, False])
def test_a_session_may_send_as_much_as_the_endpoint_needs(vera_client: Client, announced: bool) -> None:
    limit = limit_of("/policies/")
    assert (ask(Django(), limit, cookie(vera_client), "/policies/", announced))[0] == 200
    app = Django()
    status, _, body = ask(app, limit + 1, cookie(vera_client), "/policies/", announced)
    assert (status, json.loads(body)["detail"]) == (413, f"the body may have at most {limit:,} bytes")
    assert app.received <= limit


def test_a_token_may_upload_a_trace(ci: ApiCaller) -> None:
    headers = {"authorization": f"Bearer {ci.token}"}
    assert (ask(Django(), registry.MAX_BYTES, headers, "/api/v1/traces"))[0] == 200
    assert (ask(Django(), registry.MAX_BYTES, headers, "/api/v1/fleet"))[0] == 413


def test_a_callers_concurrent_bodies_share_a_limit_that_leaves_room_for_other_callers(
    ci: ApiCaller, vera_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = ANONYMOUS + 1
    monkeypatch.setattr(bodies, "OF_CALLER", 2 * size)
    token = {"authorization": f"Bearer {ci.token}"}
    app = Asking((size, token), (size, cookie(vera_client)), (size, token))
    assert ask(app, size, token)[0] == 200
    assert app.statuses == [429, 200, 200]  # the innermost first
    assert ask(app, 3 * size, token)[0] == 200
    assert not app.bounded._under_way


def test_a_request_without_a_body_is_passed_on_without_a_check(monkeypatch: pytest.MonkeyPatch) -> None:
    passed = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        passed.append(receive)

    async_to_sync(BoundedBodies(app))({"type": "http", "path": "/", "headers": [(b"host", b"a")]}, "the same", None)
    assert passed == ["the same"]


def test_without_a_database_every_caller_is_refused_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: str) -> None:
        raise OperationalError("no such host")

    monkeypatch.setattr(bodies, "principal_by_token", refuse)
    status, headers, _ = ask(Django(), 1_000_000, {"authorization": "Bearer weir_x"})
    assert (status, headers[b"retry-after"]) == (503, b"5")


def test_a_second_answer_is_not_begun_after_the_first() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})
        while (await receive())["more_body"]:
            pass

    assert (ask(app, ANONYMOUS * 10, announced=False))[0] == 200


def test_every_server_limits_bodies() -> None:
    from controlplane.asgi import application

    assert isinstance(application.application_mapping["http"], BoundedBodies)


def test_the_documented_limits_are_those_of_the_code() -> None:
    text = (settings.BASE_DIR / "docs" / "limits.md").read_text().partition("## Web server")[2].partition("\n## ")[0]
    values = (
        protocol.MAX_HEAD, protocol.HEAD_S, protocol.BODY_S, protocol.BODY_BYTES_PER_S, protocol.STALL_S,
        protocol.MAX_TRAILERS, room.MAX_CONNECTIONS, MAX_WEBSOCKET_MESSAGE, ANONYMOUS, limit_of("/policies/"),
        registry.MAX_BYTES, bodies.FORM, places.STRANGERS.of_one, places.VIEWERS.most, places.VIEWERS.of_one,
    )  # fmt: skip
    assert [value for value in values if f"{value:,.0f}" not in text] == []

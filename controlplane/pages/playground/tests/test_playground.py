"""The playground: who may ask, with which key, and what is returned."""

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pytest
from django.test import Client

from controlplane.pages.playground import asking, own_key, views
from controlplane.people.accounts.models import digest
from controlplane.people.audit.models import AuditEntry
from controlplane.people.audit.services import SYSTEM
from controlplane.traffic.keys import services
from controlplane.traffic.keys.models import ApiKey
from controlplane.traffic.policies.tests.conftest import policy, pool  # noqa: F401
from fleet.models import Pool

pytestmark = pytest.mark.django_db
MODEL = "m"  # the pool's model
ASKED = {
    "model": "pool:demo",
    "prompt": "What is a weir?",
    "max_tokens": "64",
    "session": "0123456789abcdef",
    "history": "",
}
USAGE = {"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}}


def event(**more: Any) -> bytes:
    return b"data: " + json.dumps(more).encode() + b"\n\n"


def piece(**delta: str) -> bytes:
    return event(choices=[{"index": 0, "delta": delta}])


class AnsweringRouter:
    """Returns the answers in turn, the last one repeatedly, and records the requests."""

    def __init__(self) -> None:
        whole = b"".join(
            (piece(reasoning_content="hm"), piece(content="A "), piece(content="dam."), event(usage=USAGE))
        )
        self.answers: list[tuple[int, bytes]] = [(200, whole + b"data: [DONE]\n\n")]
        self.asked: list[tuple[dict[str, str], Any]] = []
        router = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                router.asked.append(({name.lower(): value for name, value in self.headers.items()}, body))
                status, answer = router.answers.pop(0) if len(router.answers) > 1 else router.answers[0]
                self.send_response(status)
                self.send_header("x-request-id", "req-1")
                self.send_header("retry-after", "7")
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def router(pool: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[AnsweringRouter]:  # noqa: F811
    made = AnsweringRouter()
    monkeypatch.setattr(views, "router_urls", lambda: ["http://127.0.0.1:9", made.url])  # nobody listens at the first
    yield made
    made.close()


def ask(client: Client, **more: str) -> tuple[int, list[dict[str, Any]]]:
    """Return the status and the answer, as the page's script receives them."""
    response: Any = client.post("/playground/", {**ASKED, **more}, headers={"accept": views.LINES})
    lines = asyncio.run(_joined(response.streaming_content)) if response.streaming else response.content
    return response.status_code, [json.loads(line) for line in lines.splitlines()]


async def _joined(parts: Any) -> bytes:
    return b"".join([part async for part in parts])


def test_an_answer_is_streamed_with_its_request_id_and_usage(otto_client: Client, router: AnsweringRouter) -> None:
    status, said = ask(otto_client, history=json.dumps([{"role": "user", "content": "Hello"}]))
    assert (status, said) == (200, [
        {"request": "req-1"}, {"thought": "hm"}, {"text": "A "}, {"text": "dam."},
        {"usage": {"prompt": 9, "cached": 4, "output": 2}},
    ])  # fmt: skip
    ((headers, body),) = router.asked
    assert headers["x-session-id"] == "playground-0123456789abcdef"
    assert [each["content"] for each in body["messages"]] == ["Hello", "What is a weir?"]
    assert (headers["x-weir-pool"], body["model"], body["max_tokens"], body["stream"]) == ("demo", MODEL, 64, True)
    ask(otto_client, model=MODEL)
    headers, body = router.asked[1]
    assert ("x-weir-pool" in headers, body["model"]) == (False, MODEL)


def test_each_person_has_one_key_that_no_page_or_log_shows(
    otto: Any, otto_client: Client, router: AnsweringRouter, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("DEBUG"):
        ask(otto_client)
        ask(otto_client)
    row = ApiKey.objects.get()
    assert (row.name, row.pools, row.requests_per_min) == ("playground of otto", ["demo"], own_key.REQUESTS_PER_MIN)
    secrets = {headers["authorization"].removeprefix("Bearer ") for headers, _ in router.asked}
    assert {digest(secret) for secret in secrets} == {row.sha256}
    assert AuditEntry.objects.filter(action="key.create", actor_name="otto").count() == 1
    shown = otto_client.get("/playground/").content.decode() + otto_client.get("/keys/").content.decode() + caplog.text
    assert not [secret for secret in secrets if secret in shown]
    assert "playground of otto" in shown


def test_a_key_changed_by_an_administrator_keeps_the_change_and_a_revoked_one_is_refused(
    otto_client: Client, router: AnsweringRouter
) -> None:
    ask(otto_client)
    row = services.change_key(ApiKey.objects.get(), {"requests_per_min": 1}, SYSTEM)
    ask(otto_client)
    assert ApiKey.objects.get().requests_per_min == 1
    services.revoke_key(row, SYSTEM)
    status, said = ask(otto_client)
    assert status == 403
    assert said == [{"failed": "Your key playground of otto is revoked: an administrator decides whether you may ask."}]
    assert len(router.asked) == 2


def test_another_secret_of_the_installation_gives_another_hash_of_the_same_key(
    otto: Any,
    pool: Any,  # noqa: F811
    settings: Any,
) -> None:
    before = own_key.ready(otto, SYSTEM)
    settings.SECRET_KEY = "another-secret-of-this-installation"
    after = own_key.ready(otto, SYSTEM)
    assert before != after
    assert ApiKey.objects.get().sha256 == digest(after)


def test_only_administrators_reach_pools_that_require_a_key(
    otto_client: Client, ada_client: Client, router: AnsweringRouter
) -> None:
    services.require_keys(["*"], SYSTEM)
    status, said = ask(otto_client)
    assert (status, "which only administrators give" in said[0]["failed"]) == (403, True)
    assert not ApiKey.objects.exists()
    assert ask(ada_client)[0] == 200
    assert ApiKey.objects.get().pools == []


def test_a_key_loses_its_access_to_all_pools_when_its_owner_is_no_longer_an_administrator(
    otto: Any, otto_client: Client, router: AnsweringRouter
) -> None:
    ask(otto_client)
    row = ApiKey.objects.get()
    ApiKey.objects.filter(pk=row.pk).update(pools=[])  # as when its owner was an administrator
    assert ask(otto_client)[0] == 200
    assert ApiKey.objects.get().pools == ["demo"]
    ApiKey.objects.filter(pk=row.pk).update(pools=[])
    services.require_keys(["demo"], SYSTEM)
    status, said = ask(otto_client)
    assert (status, "which only administrators give" in said[0]["failed"]) == (403, True)
    assert len(router.asked) == 2


def test_a_key_can_use_pools_that_were_created_after_it(otto: Any, pool: Any) -> None:  # noqa: F811
    own_key.ready(otto, SYSTEM)
    Pool.objects.create(name="spare", model="m", kind="sim", policy=pool.policy, replicas=1)
    own_key.ready(otto, SYSTEM)
    assert ApiKey.objects.get().pools == ["demo", "spare"]


def test_a_pool_that_an_administrator_removes_during_a_question_stays_removed(
    otto: Any,
    otto_client: Client,
    router: AnsweringRouter,
    pool: Any,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own_key.ready(otto, SYSTEM)
    Pool.objects.create(name="spare", model="m", kind="sim", policy=pool.policy, replicas=1)
    ApiKey.objects.update(pools=["demo", "spare"])

    def free() -> tuple[str, ...]:
        ApiKey.objects.update(pools=[])
        return ("demo", "new")

    monkeypatch.setattr(own_key, "_free", free)
    assert "changed at this moment: ask again" in ask(otto_client)[1][0]["failed"]
    assert (ApiKey.objects.get().pools, router.asked) == ([], [])


@pytest.mark.parametrize(
    ("answers", "failed"),
    [
        ([(429, b'{"error": {"message": "the key is over its limit"}}')],
         "Refused with 429: the key is over its limit. Ask again in 7 s."),
        ([(502, b"<html>")], "Refused with 502. Ask again in 7 s."),
        ([(502, b"[" * 100_000)], "Refused with 502. Ask again in 7 s."),
        ([(200, event(error={"message": "out of memory"}))], "out of memory"),
    ],
)  # fmt: skip
def test_a_refusal_is_described_in_a_sentence(
    otto_client: Client, router: AnsweringRouter, answers: list[tuple[int, bytes]], failed: str
) -> None:
    router.answers = answers
    _, said = ask(otto_client)
    assert said == [{"request": "req-1"}, {"failed": failed}]


def test_a_router_that_does_not_know_a_new_key_yet_is_asked_again(
    otto_client: Client, router: AnsweringRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "NEW_KEY_S", 0.0)
    router.answers = [(401, b"{}"), *router.answers]
    _, said = ask(otto_client)
    assert {"text": "dam."} in said
    assert len(router.asked) == 2


@pytest.mark.parametrize(
    ("given", "failed"),
    [
        ({"model": "other"}, "Ask: Select a valid choice. other is not one of the available choices."),
        ({"max_tokens": "4097"}, "Tokens at most: Ensure this value is less than or equal to 4096."),
        ({"history": '[{"role": "system", "content": ""}]'}, "Conversation: at most 40 messages of you and the model"),
        ({"history": "[" * 100_000}, "Conversation: at most 40 messages of you and the model"),
        ({"session": "../etc"}, "Session: Enter a valid value."),
    ],
)  # fmt: skip
def test_an_invalid_question_is_refused_before_it_is_sent(
    otto_client: Client, router: AnsweringRouter, given: dict[str, str], failed: str
) -> None:
    assert ask(otto_client, **given) == (400, [{"failed": failed}])
    assert (router.asked, ApiKey.objects.count()) == ([], 0)


def test_one_person_can_occupy_only_some_of_the_slots_for_answers(
    otto: Any, otto_client: Client, ada_client: Client, router: AnsweringRouter
) -> None:
    places, own = asking.places, own_key.secret_of(otto)
    with ExitStack() as stack:
        assert all([stack.enter_context(places.one(own)) for _ in range(asking.OF_ONE)])
        assert ask(otto_client)[1] == [{"failed": asking.FULL}]
        assert {"text": "dam."} in ask(ada_client)[1]
        others = range(asking.AT_ONCE - asking.OF_ONE)
        assert all([stack.enter_context(places.one(f"of {number}")) for number in others])
        assert ask(ada_client)[1] == [{"failed": asking.FULL}]
    assert {"text": "dam."} in ask(otto_client)[1]
    assert not places.taken


async def test_if_a_router_does_not_accept_the_connection_in_time_the_next_one_gets_the_question(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def respond(request: httpx.Request) -> httpx.Response:
        if request.url.host == "away":
            raise httpx.ConnectTimeout("timed out", request=request)
        return httpx.Response(200, content=piece(content="A dam."))

    monkeypatch.setattr(asking, "_client", lambda: httpx.AsyncClient(transport=httpx.MockTransport(respond)))
    question = asking.ChatQuestion(model=MODEL, messages=[], max_tokens=1, session="s")
    assert [each async for each in asking.answer(question, "", ["http://away", "http://here"])] == [{"text": "A dam."}]


def test_without_routers_nothing_is_asked(otto_client: Client, pool: Any, redis_away: None) -> None:  # noqa: F811
    assert ask(otto_client) == (503, [{"failed": asking.UNREACHABLE}])


def test_without_javascript_the_page_shows_the_answer_and_continues_the_conversation(
    otto_client: Client, router: AnsweringRouter
) -> None:
    page = otto_client.post("/playground/", ASKED).content.decode()
    assert "What is a weir?" in page
    assert "A dam." in page
    assert 'href="/requests/req-1/"' in page
    assert "&quot;role&quot;: &quot;assistant&quot;" in page
    halves = piece(content="\ud83d") + b"data: " + b"[" * 100_000 + b"\n\n" + piece(content="\ude00")
    router.answers = [(200, halves)]
    history = json.dumps([{"role": "user", "content": "\ud800"}])
    page = otto_client.post("/playground/", {**ASKED, "history": history}).content.decode()
    assert "\N{GRINNING FACE}" in page
    router.answers = [(429, b"{}")]
    assert "Refused with 429" in otto_client.post("/playground/", ASKED).content.decode()


def test_viewers_may_not_ask_and_the_form_requires_its_csrf_token(
    vera_client: Client, otto: Any, router: AnsweringRouter
) -> None:
    assert vera_client.get("/playground/").status_code == 403
    assert vera_client.post("/playground/", ASKED).status_code == 403
    strict = Client(enforce_csrf_checks=True)
    strict.force_login(otto)
    assert strict.post("/playground/", ASKED).status_code == 403
    assert router.asked == []


def test_a_receipt_that_is_not_written_yet_is_requested_again(vera_client: Client) -> None:
    beside = {"HX-Request": "true", "HX-Target": "receipt-beside"}
    page = vera_client.get("/requests/req-9/", headers=beside).content.decode()
    assert 'hx-get="/requests/req-9/?tries=1"' in page
    assert "has written no receipt" in vera_client.get("/requests/req-9/?tries=20", headers=beside).content.decode()

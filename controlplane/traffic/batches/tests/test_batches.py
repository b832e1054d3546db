"""Files and batches with OpenAI's API: what a client sees from the upload to the results."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import nullcontext
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from django.utils import timezone

from controlplane.people.audit.models import AuditEntry
from controlplane.people.audit.services import SYSTEM
from controlplane.testing import api_caller
from controlplane.traffic.batches import dispatcher, line_queue, lines, placed, running, services, store
from controlplane.traffic.batches.models import Batch, StoredFile
from controlplane.traffic.batches.tests.test_lines import CHAT, RESPONSES, line
from controlplane.traffic.batches.turns import EngineReports
from controlplane.traffic.keys import services as keys
from controlplane.traffic.keys import workers_secret
from controlplane.traffic.keys.publishing import valid_keys
from controlplane.traffic.keys.services import KeyTerms
from fleet import jobs
from fleet.models import Instance, Pool
from fleet.redis import connect
from router.contract import models
from router.contract.redis import redis_keys
from router.contract.redis.api_keys import keyring
from router.contract.redis.codec import encode
from router.contract.redis.published import ModelsValue
from router.contract.redis.sample import InstanceSample

Answer = Callable[[dict[str, Any]], tuple[int, object]]
ANSWER = {"choices": [{"message": {"content": "w"}}], "data": [{"embedding": [0.5]}], "output": [{"type": "message"}]}
USAGE = {"prompt_tokens": 2, "completion_tokens": 1}


class StandIn:
    """Replaces a router."""

    def __init__(self) -> None:
        self.asked: list[tuple[dict[str, str], dict[str, Any]]] = []
        self.answer: Answer = lambda body: (200, {**ANSWER, "usage": USAGE})
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                outer.asked.append(({name.lower(): value for name, value in self.headers.items()}, body))
                status, document = outer.answer(body)
                raw = json.dumps(document).encode()
                self.send_response(status)
                self.send_header("content-length", str(len(raw)))
                self.end_headers()
                self.wfile.write(raw)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()


@pytest.fixture
def router(monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    made = StandIn()
    monkeypatch.setattr(running, "router_urls", lambda: [made.url])
    monkeypatch.setattr(dispatcher, "LOOK_S", 0.02)
    monkeypatch.setattr(placed, "BEAT_S", 0.0)
    monkeypatch.setattr(line_queue, "PAUSE_S", 0.01)
    monkeypatch.setattr(running, "Files", AtOnce)
    monkeypatch.setattr(jobs, "send", lambda job: None)
    yield made
    made.server.shutdown()
    made.server.server_close()


class AtOnce:
    """Opens files in the caller's thread, which has the test's transaction."""

    def submit(self, work: Callable[..., Any], *given: Any) -> "Future[Any]":
        future: Future[Any] = Future()
        try:
            future.set_result(work(*given))
        except Exception as error:
            future.set_exception(error)
        return future

    def shutdown(self, *, cancel_futures: bool) -> None:
        pass


class Caller:
    def __init__(self, name: str) -> None:
        self.row, self.secret = keys.create_key(name, KeyTerms(), SYSTEM)
        self.client = Client(headers={"authorization": f"Bearer {self.secret}"})

    def get(self, path: str, status: int = 200) -> Any:
        answer = self.client.get(path)
        assert answer.status_code == status, answer.content
        return answer.json()

    def post(self, path: str, status: int = 200, **body: object) -> Any:
        answer = self.client.post(path, json.dumps(body), content_type="application/json")
        assert answer.status_code == status, answer.content
        return answer.json()

    def upload(self, *lines: bytes, purpose: str = "batch", status: int = 200) -> Any:
        file = SimpleUploadedFile("in.jsonl", b"".join(lines))
        answer = self.client.post("/v1/files", {"purpose": purpose, "file": file})
        assert answer.status_code == status, answer.content
        return answer.json()

    def batch(self, *lines: bytes, window: str = "24h", endpoint: str = CHAT) -> str:
        file = self.upload(*lines)["id"]
        made = self.post("/v1/batches", input_file_id=file, endpoint=endpoint, completion_window=window)
        return str(made["id"])

    def content(self, name: str) -> dict[str, Any]:
        """Return the lines of a file by their custom_id; each line has a unique one."""
        answer = self.client.get(f"/v1/files/{name}/content")
        found = [json.loads(one) for one in b"".join(answer.streaming_content).splitlines()]  # type: ignore[attr-defined]
        assert len({one["custom_id"] for one in found}) == len(found)
        return {one["custom_id"]: one for one in found}


@pytest.fixture
def alice(db: None, data_dir: Path) -> Caller:
    return Caller("alice")


def run(*names: str) -> None:
    """Send lines until these have ended; others that are due are also sent."""
    with running.sending() as sent:
        while Batch.objects.filter(name__in=names, closed_at=None).exclude(status=jobs.FAILED).exists():
            sent.step()
            time.sleep(0.005)


def test_a_batch_is_answered_line_by_line_on_behalf_of_its_key(alice: Caller, router: StandIn) -> None:
    router.answer = lambda body: (
        (400, {"error": "no"}) if body["model"] == "bad" else (200, {**ANSWER, "id": body["model"], "usage": USAGE})
    )
    name = alice.batch(*(line(str(i), body={"model": f"m{i}"}) for i in range(20)), line("x", body={"model": "bad"}))
    assert alice.get(f"/v1/batches/{name}")["status"] == "validating"
    run(name)
    made = alice.get(f"/v1/batches/{name}")
    assert (made["status"], made["request_counts"]) == ("completed", {"total": 21, "completed": 20, "failed": 1})
    assert made["completed_at"] >= made["in_progress_at"] >= made["created_at"]
    assert (made["usage"]["input_tokens"], made["usage"]["total_tokens"]) == (40, 60)
    output = alice.content(made["output_file_id"])
    assert {name: one["response"]["body"]["id"] for name, one in output.items()} == {str(i): f"m{i}" for i in range(20)}
    assert alice.content(made["error_file_id"])["x"]["response"]["status_code"] == 400
    headers, _ = router.asked[0]
    secret = headers["authorization"].removeprefix("Bearer ")
    known = keyring(valid_keys()).on_behalf(secret.encode(), headers["x-weir-key-id"].encode())
    assert known is not None
    assert (known.name, known.priority_max, headers["x-weir-priority"]) == ("alice", -100, "-100")
    assert secret == workers_secret.secret()
    assert not list((store.folder()).glob("batch_*/"))


def test_a_batch_continues_where_a_lost_worker_stopped(alice: Caller, router: StandIn) -> None:
    name = alice.batch(*(line(str(i), body={"model": f"m{i}"}) for i in range(8)))
    row = Batch.objects.get(name=name)
    results = store.BatchResults(name)
    results.add(results.output, b'{"custom_id":"3"}\n')
    results.add(results.output, b'{"custom_id":"5')
    results.close()
    jobs.claim(Batch, row.pk)
    for _ in range(3):  # repeated until the batch ends
        Batch.objects.filter(pk=row.pk).update(status=jobs.RUNNING, heartbeat_at=timezone.now() - timedelta(hours=1))
        jobs.fail_lost(Batch, services.requeue, nullcontext)
        assert Batch.objects.get(pk=row.pk).status == jobs.QUEUED
    run(name)
    made = alice.get(f"/v1/batches/{name}")
    assert made["request_counts"] == {"total": 8, "completed": 8, "failed": 0}
    assert alice.content(made["output_file_id"]).keys() == {str(i) for i in range(8)}
    assert sorted(body["model"] for _, body in router.asked) == [f"m{i}" for i in range(8) if i != 3]


def test_lines_are_retried_on_full_or_failing_engines(alice: Caller, router: StandIn) -> None:
    answers = iter([(429, {}), (503, {}), (500, {}), (502, {}), (200, ANSWER)])
    router.answer = lambda body: next(answers)
    name = alice.batch(line("a"))
    run(name)
    assert alice.get(f"/v1/batches/{name}")["request_counts"]["completed"] == 1
    router.answer = lambda body: (500, {"error": "broken"})
    name = alice.batch(line("a"))
    run(name)
    made = alice.get(f"/v1/batches/{name}")
    assert alice.content(made["error_file_id"])["a"]["response"]["status_code"] == 500


def test_cancelled_and_expired_batches_keep_their_answers(
    alice: Caller, router: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    cancelled, late = (alice.batch(line("a"), line("b", body={"model": "later"})) for _ in range(2))
    router.answer = lambda body: (503 if body["model"] == "later" else 200, ANSWER)

    def look() -> EngineReports:
        if Batch.objects.get(name=cancelled).completed:
            alice.client.post(f"/v1/batches/{cancelled}/cancel")
        return EngineReports()

    monkeypatch.setattr(running, "loads", look)
    monkeypatch.setattr(jobs, "BEAT_S", 0.05)
    run(cancelled)
    Batch.objects.filter(name=late).update(created_at=timezone.now() - timedelta(hours=24, seconds=-0.5))
    run(late)
    for name, state, code in ((cancelled, "cancelled", "batch_cancelled"), (late, "expired", "batch_expired")):
        made = alice.get(f"/v1/batches/{name}")
        assert (made["status"], made["request_counts"]["completed"]) == (state, 1), made
        assert made[f"{state}_at"] is not None
        assert alice.content(made["output_file_id"]).keys() == {"a"}
        assert alice.content(made["error_file_id"])["b"]["error"]["code"] == code
    assert AuditEntry.objects.filter(action="batch.cancel").count() == 1
    assert alice.post(f"/v1/batches/{cancelled}/cancel", 409)["error"]["code"] == "in_use"


def test_invalid_lines_fail_the_batch_before_anything_is_sent(alice: Caller, router: StandIn) -> None:
    name = alice.batch(line("a"), line("a"), b"{\n")
    run(name)
    made = alice.get(f"/v1/batches/{name}")
    assert made["status"] == "failed"
    assert [(one["code"], one["line"]) for one in made["errors"]["data"]] == [
        ("duplicate_custom_id", 2),
        ("invalid_json_line", 3),
    ]
    assert router.asked == []


@pytest.mark.parametrize(
    ("is_cancelled", "errors", "sent"),
    [
        (False, {"b": "invalid_request"}, ["m", "n"]),
        (True, {"a": "batch_cancelled", "b": "batch_cancelled", "c": "batch_cancelled"}, []),
    ],
)
def test_a_batch_begun_by_an_older_version_keeps_lines_that_would_now_be_refused(
    alice: Caller,
    router: StandIn,
    monkeypatch: pytest.MonkeyPatch,
    is_cancelled: bool,
    errors: dict[str, str],
    sent: list[str],
) -> None:
    monkeypatch.setattr(lines, "MOST_MODELS", 1)
    bodies = {"a": {"model": "m"}, "b": {"model": "m", "background": True}, "c": {"model": "n"}}
    asked = [line(name, url=RESPONSES, body=body) for name, body in bodies.items()]
    name = alice.batch(*asked, endpoint=RESPONSES)
    Batch.objects.filter(name=name).update(in_progress_at=timezone.now(), total=3)
    if is_cancelled:
        alice.post(f"/v1/batches/{name}/cancel")
        services.close(Batch.objects.get(name=name))
    run(name)
    made = alice.get(f"/v1/batches/{name}")
    assert made["request_counts"] == {"total": 3, "completed": len(sent), "failed": len(errors)}
    found = alice.content(made["error_file_id"])
    assert {name: one["error"]["code"] for name, one in found.items()} == errors
    assert sorted(body["model"] for _, body in router.asked) == sent


def test_a_key_cannot_find_the_batches_of_another(alice: Caller, router: StandIn) -> None:
    bob, name = Caller("bob"), alice.batch(line("a"))
    file = alice.get("/v1/files")["data"][0]["id"]
    for path in (f"/v1/files/{file}", f"/v1/files/{file}/content", f"/v1/batches/{name}"):
        assert bob.get(path, 404)["error"]["code"] == "not_found"
    assert bob.post(f"/v1/batches/{name}/cancel", 404)
    assert bob.client.delete(f"/v1/files/{file}").status_code == 404
    refused = bob.post("/v1/batches", 400, input_file_id=file, endpoint=CHAT, completion_window="24h")
    assert refused["error"]["param"] == "input_file_id"
    assert (bob.get("/v1/files")["data"], bob.get("/v1/batches")["data"]) == ([], [])
    assert alice.client.delete(f"/v1/files/{file}").status_code == 409  # its batch needs it
    for header in ("x-api-key", "api-key"):  # Anthropic's, Azure's
        assert Client(headers={header: bob.secret}).get("/v1/batches").status_code == 200
    for client in (Client(), Client(headers={"authorization": "Bearer sk-weir-other"})):
        assert client.get("/v1/batches").status_code == client.post("/v1/files").status_code == 401


def test_files_and_batches_are_listed_page_by_page(alice: Caller, router: StandIn) -> None:
    names = [alice.batch(line("a")) for _ in range(3)]
    first = alice.get("/v1/batches?limit=2")
    assert ([one["id"] for one in first["data"]], first["has_more"]) == (names[:0:-1], True)
    rest = alice.get(f"/v1/batches?limit=2&after={first['last_id']}")
    assert ([one["id"] for one in rest["data"]], rest["has_more"]) == (names[:1], False)
    assert alice.get("/v1/batches?limit=0", 400)["error"]["param"] == "limit"
    assert alice.get("/v1/batches?after=batch_x", 400)["error"]["param"] == "after"
    assert len(alice.get("/v1/files?purpose=batch")["data"]) == 3
    assert alice.client.put("/v1/files").status_code == 405


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"completion_window": "25h"}, "completion_window"),
        ({"endpoint": "/v1/audio/speech"}, "endpoint"),
        ({"metadata": {"a": 1}}, "metadata"),
        ({"metadata": {str(i): "" for i in range(17)}}, "metadata"),
        ({"metadata": {"a": "\0"}}, "metadata"),
        ({"input_file_id": "file-x"}, "input_file_id"),
        ({"input_file_id": "\0"}, "input_file_id"),
    ],
)
def test_requests_that_a_batch_may_not_make_are_named(alice: Caller, router: StandIn, body: Any, param: str) -> None:
    asked = {"input_file_id": alice.upload(line())["id"], "endpoint": CHAT, "completion_window": "24h"} | body
    assert alice.post("/v1/batches", 400, **asked)["error"]["param"] == param


def test_a_refused_file_leaves_nothing(alice: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "LARGEST", 10)
    assert alice.upload(b"x" * 11, status=413)["error"]["code"] == "file_too_large"
    assert alice.upload(b"x", purpose="fine-tune", status=400)["error"]["param"] == "purpose"
    assert alice.post("/v1/files", 400)["error"]["param"] == "file"
    assert StoredFile.objects.count() == 0
    assert list(store.folder().iterdir()) == []
    kept = alice.upload(b"x")["id"]
    assert alice.client.delete(f"/v1/files/{kept}").json()["deleted"] is True
    assert list(store.folder().iterdir()) == []
    monkeypatch.setattr(services, "MOST_BYTES", 15)
    alice.upload(b"x" * 8)
    assert "delete some first" in alice.upload(b"x" * 8, status=413)["error"]["message"]


def test_a_file_is_refused_if_others_filled_the_keys_quota_during_its_upload(
    alice: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(services, "MOST_BYTES", 15)

    def parts() -> Iterator[bytes]:
        services.keep_file(alice.row, "b", "batch", [b"y" * 8])
        yield b"x" * 8

    with pytest.raises(services.Refused, match="delete some first"):
        services.keep_file(alice.row, "a", "batch", parts())
    assert len([*store.folder().iterdir()]) == StoredFile.objects.count() == 1


def test_batches_reserve_the_size_of_their_files_until_their_results_are_there(
    alice: Caller, router: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = alice.batch(line("a"))
    file = Batch.objects.get(name=name).input_file
    monkeypatch.setattr(services, "MOST_BYTES", 3 * len(line("a")))
    asked = {"input_file_id": file, "endpoint": CHAT, "completion_window": "24h"}
    alice.post("/v1/batches", **asked)
    refused = alice.post("/v1/batches", 413, **asked)["error"]
    assert (refused["param"], "delete some first" in refused["message"]) == ("input_file_id", True)
    assert "its batches will make" in alice.upload(line("b"), line("c"), status=413)["error"]["message"]
    alice.post(f"/v1/batches/{name}/cancel")
    services.close_left()
    alice.post("/v1/batches", **asked)


def test_old_files_and_batches_are_deleted(alice: Caller, router: StandIn) -> None:
    run(alice.batch(line("a")))
    waiting = alice.batch(line("a"))
    services.forget_old(timezone.now() + timedelta(days=31))
    assert [row.name for row in Batch.objects.all()] == [waiting]
    assert StoredFile.objects.count() == len(list(store.folder().glob("file-*"))) == 1


def test_operators_see_the_batches_of_all_keys_and_administrators_cancel_them(
    alice: Caller, router: StandIn, ada: Any, otto: Any, ada_client: Client, otto_client: Client, vera_client: Client
) -> None:
    on_page, over_rest = alice.batch(line("a")), alice.batch(line("a"))
    assert vera_client.get("/batches/").status_code == 403
    shown = otto_client.get("/batches/").content.decode()
    assert (on_page in shown, "validating" in shown, "Cancel" in shown) == (True, True, False)
    assert otto_client.post(f"/batches/{on_page}/cancel").status_code == 403
    assert "cancelled: what was" in ada_client.post(f"/batches/{on_page}/cancel", follow=True).content.decode()
    assert "had ended before" in ada_client.post(f"/batches/{on_page}/cancel", follow=True).content.decode()
    listed = api_caller(otto).get("/batches").json()
    assert [(one["name"], one["state"]) for one in listed] == [(over_rest, "validating"), (on_page, "cancelling")]
    assert api_caller(otto).post(f"/batches/{over_rest}/cancel", {}).status_code == 403
    assert api_caller(ada).post(f"/batches/{over_rest}/cancel").json()["state"] == "cancelling"
    assert api_caller(ada).post(f"/batches/{over_rest}/cancel").status_code == 409
    assert api_caller(ada).post("/batches/batch_x/cancel").status_code == 404
    services.close_left()
    assert {one["state"] for one in api_caller(otto).get("/batches").json()} == {"cancelled"}


def test_the_load_of_a_model_is_that_of_its_pools(alice: Caller, live_redis: object) -> None:
    chat, code = (
        Pool.objects.create(name=name, model=model, kind="sim") for name, model in (("chat", "a"), ("code", "b"))
    )
    for pool in (chat, code):
        for number, age_s in enumerate((0, 60)):  # the second router has stopped reporting
            name = f"{pool.name}-{number}"
            Instance.objects.create(pool=pool, name=name, ordinal=number, node="local")
            sample = InstanceSample(id=name, epoch=1, at=time.time() - age_s, waiting=float(pool is chat))
            connect().set(redis_keys.instance_key(name), encode(sample))
    document = models.dump({"smart": models.Alias((models.Target("code"),))})
    value = ModelsValue(version=1, sha256=models.sha256(document), document=document)
    connect().set(redis_keys.MODELS, encode(value))
    waiting = {name: [one.waiting for one in running.loads().of(name)] for name in ("a", "b", "smart", "other")}
    assert waiting == {"a": [1.0], "b": [0.0], "smart": [0.0], "other": [1.0, 0.0]}


def test_downloads_of_results_by_administrators_are_audited(
    alice: Caller, router: StandIn, ada: Any, otto: Any, ada_client: Client, otto_client: Client
) -> None:
    name = alice.batch(line("a"))
    assert api_caller(ada).get(f"/batches/{name}/output.jsonl").status_code == 404
    run(name)
    answer = api_caller(ada).get(f"/batches/{name}/output.jsonl")
    assert json.loads(answer.content)["custom_id"] == "a"
    assert api_caller(ada).get(f"/batches/{name}/errors.jsonl").status_code == 404
    assert api_caller(ada).get(f"/batches/{name}/input.jsonl").status_code == 422
    assert api_caller(otto).get(f"/batches/{name}/output.jsonl").status_code == 403
    assert AuditEntry.objects.filter(action="batch.download", subject=f"batch {name}").count() == 1
    assert ["output.jsonl" in page.get("/batches/").content.decode() for page in (ada_client, otto_client)] == [
        True,
        False,
    ]

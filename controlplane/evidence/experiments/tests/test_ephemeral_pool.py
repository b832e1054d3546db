"""A run's first questions to an engine: its context window, and the bytes per token of its tokenizer."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from controlplane.evidence.experiments.modes import ephemeral_pool
from fleet.models import Instance, Pool, State


class Engine(BaseHTTPRequestHandler):
    answers: dict[str, Any]

    def do_GET(self) -> None:
        self.answers["authorization"] = self.headers.get("authorization")
        status, value = self.answers[self.path]
        body = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        self.answers["asked"] = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.do_GET()

    def log_message(self, *words: Any) -> None:
        pass


@pytest.fixture
def answers() -> dict[str, Any]:
    return {}


@pytest.fixture
def pool(db: None, answers: dict[str, Any]) -> Iterator[Pool]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (Engine,), {"answers": answers}))
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    made = Pool.objects.create(name="exp-1-1", model="m", kind="vllm")
    url = f"http://127.0.0.1:{server.server_address[1]}"
    Instance.objects.create(pool=made, name="exp-1-1-0", ordinal=0, state=State.READY, url=url)
    yield made
    server.shutdown()
    server.server_close()


def test_a_pool_has_the_model_names_that_its_answers_contain(pool: Pool) -> None:
    ranked = {"role": "both", "dp": {"ranks": 2, "first": 2}}
    Instance.objects.create(pool=pool, name="exp-1-1-1", ordinal=1, state=State.READY, wire=ranked)
    assert ephemeral_pool.endpoint_names(pool) == ["exp-1-1-0", "exp-1-1-1#2", "exp-1-1-1#3"]


@pytest.mark.parametrize(
    ("status", "value", "tokens"),
    [
        (200, {"data": [{"max_model_len": 4096}]}, 4096),
        (200, {"data": [{}]}, ephemeral_pool.CONTEXT_TOKENS),
        (200, {"data": []}, ephemeral_pool.CONTEXT_TOKENS),
        (200, b"no JSON", ephemeral_pool.CONTEXT_TOKENS),
        (404, {"error": "no such path"}, ephemeral_pool.CONTEXT_TOKENS),
        (200, b'{"data":[{"max_model_len":1e999}]}', ephemeral_pool.CONTEXT_TOKENS),
        (200, {"data": [{"max_model_len": -1}]}, ephemeral_pool.CONTEXT_TOKENS),
        (200, {"data": [{"max_model_len": 10**30}]}, ephemeral_pool.CONTEXT_TOKENS),
        (200, b'{"data":[{"max_model_len":4096}],"more":"' + b"x" * 17_000_000 + b'"}', ephemeral_pool.CONTEXT_TOKENS),
    ],
)
def test_the_window_is_the_one_that_the_engine_reports(
    pool: Pool, answers: dict[str, Any], status: int, value: Any, tokens: int
) -> None:
    answers["/v1/models"] = (status, value)
    assert ephemeral_pool.context_tokens(pool) == tokens


def test_an_engine_that_requires_a_key_gets_its_pools_key(
    pool: Pool, answers: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QWEN_API_KEY", "sk-engine-1")
    answers["/v1/models"] = (200, {"data": [{"max_model_len": 4096}]})
    Instance.objects.update(config={"model": "m", "kind": "vllm", "engine": {"engine_key": "env:QWEN_API_KEY"}})
    assert ephemeral_pool.context_tokens(pool) == 4096
    assert answers["authorization"] == "Bearer sk-engine-1"


def test_an_engine_that_is_gone_has_the_most_common_window(pool: Pool) -> None:
    Instance.objects.update(url="http://127.0.0.1:1")
    assert ephemeral_pool.context_tokens(pool) == ephemeral_pool.CONTEXT_TOKENS


def test_bytes_per_token_are_counted_by_the_engines_tokenizer(pool: Pool, answers: dict[str, Any]) -> None:
    answers["/tokenize"] = (200, {"count": 1_000})
    assert ephemeral_pool.bytes_per_token(pool) == len(answers["asked"]["prompt"]) / 1_000
    assert answers["asked"]["model"] == "m"
    for count in (0, -1, 10**30, "many"):
        answers["/tokenize"] = (200, {"count": count})
        with pytest.raises(ephemeral_pool.RunFailed, match="/tokenize did not answer"):
            ephemeral_pool.bytes_per_token(pool)

"""Batches in a real Weir whose processes are killed: every line is answered once."""

import json
import os
import signal
import time
from typing import Any

import httpx
import pytest

from controlplane.tests.real_up import RealUp, running

LINES = int(os.environ.get("WEIR_TEST_BATCH_LINES", "200"))
PATIENCE_S = 120 + LINES / 10
pytestmark = [pytest.mark.slow, pytest.mark.timeout(240 + LINES // 5)]
CHAT = "/v1/chat/completions"
MAKE_KEY = """
from controlplane.people.audit.services import SYSTEM
from controlplane.traffic.keys.services import KeyTerms, create_key
print(create_key("batcher", KeyTerms(requests_per_min=1), SYSTEM)[1])
"""


def new_key(weir: RealUp) -> str:
    (secret,) = weir.shell(MAKE_KEY)
    return secret


def body(number: int) -> dict[str, Any]:
    messages = [{"role": "user", "content": f"number {number}"}]
    return {"model": "llama-3.1-8b", "max_tokens": 30, "messages": messages}


def test_no_line_is_lost_or_repeated_when_worker_router_and_web_process_are_killed() -> None:
    with running() as weir, httpx.Client(base_url=f"http://127.0.0.1:{weir.router_port}", timeout=20) as client:
        weir.wait_for("instances of pool demo are ready")
        client.headers["authorization"] = f"Bearer {new_key(weir)}"

        def get(path: str) -> Any:
            try:
                answer = client.get(path)
            except httpx.TransportError:
                return None
            return answer if answer.status_code == 200 else None

        weir.until(lambda: get("/v1/files"), "the key, and the web process")
        lines = [{"custom_id": f"r{i}", "method": "POST", "url": CHAT, "body": body(i)} for i in range(LINES)]
        file = ("in.jsonl", "\n".join(map(json.dumps, lines)).encode())
        name = client.post("/v1/files", data={"purpose": "batch"}, files={"file": file}).json()["id"]
        asked = {"input_file_id": name, "endpoint": CHAT, "completion_window": "24h"}
        batch = client.post("/v1/batches", json=asked).json()["id"]

        def now() -> Any:
            answer = get(f"/v1/batches/{batch}")
            return answer.json() if answer is not None else None

        for number, process in enumerate(("control", "router-1", "web"), 1):
            most = LINES * number // 5
            enough = lambda most=most: (at := now()) and at["request_counts"]["completed"] >= most  # noqa: E731
            weir.until(enough, "some lines", PATIENCE_S)
            os.kill(weir.until(lambda process=process: weir.child(process), process), signal.SIGKILL)
            time.sleep(0.5)
        made = weir.until(lambda: (at := now()) and at["status"] == "completed" and at, "the batch", PATIENCE_S)
        assert made["request_counts"] == {"total": LINES, "completed": LINES, "failed": 0}
        output = [json.loads(one) for one in get(f"/v1/files/{made['output_file_id']}/content").text.splitlines()]
        assert sorted(one["custom_id"] for one in output) == sorted(f"r{i}" for i in range(LINES))
        tokens = [one["response"]["body"]["usage"]["completion_tokens"] for one in output]
        assert made["usage"]["output_tokens"] == sum(tokens)

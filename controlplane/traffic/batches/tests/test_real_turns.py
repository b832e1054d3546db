"""Batches of several keys in a real Weir: a used-up budget, a huge batch, and a small one that waits for neither."""

import json
import os
import signal
from contextlib import ExitStack
from typing import Any

import httpx
import pytest

from controlplane.tests.real_up import FLEET, RealUp, new_folder, running
from controlplane.traffic.batches.tests.test_killed import CHAT, body

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
HUGE = 1_500
PATIENCE_S = 150
MAKE_KEYS = """
from controlplane.people.audit.services import SYSTEM
from controlplane.traffic.keys.services import KeyTerms, create_key
from controlplane.traffic.use.budgets import BudgetTerms, create_budget
rows = [create_key(name, KeyTerms(), SYSTEM) for name in ("limited", "huge", "small")]
create_budget(rows[0][0], "requests", "day", BudgetTerms(limit=3.0), SYSTEM)
print(*(secret for _, secret in rows))
"""


class Key:
    def __init__(self, weir: RealUp, secret: str, stack: ExitStack) -> None:
        self.weir = weir
        base = f"http://127.0.0.1:{weir.router_port}"
        headers = {"authorization": f"Bearer {secret}"}
        self.client = stack.enter_context(httpx.Client(base_url=base, timeout=20, headers=headers))
        weir.until(lambda: self.get("/v1/files"), "the key, and the web process")

    def get(self, path: str) -> Any:
        try:
            answer = self.client.get(path)
        except httpx.TransportError:
            return None
        return answer if answer.status_code == 200 else None

    def batch(self, lines: int, model: str = "llama-3.1-8b", tokens: int = 30) -> str:
        terms = {"model": model, "max_tokens": tokens}
        asked = [{"custom_id": f"r{i}", "method": "POST", "url": CHAT, "body": body(i) | terms} for i in range(lines)]
        file = ("in.jsonl", "\n".join(map(json.dumps, asked)).encode())
        name = self.client.post("/v1/files", data={"purpose": "batch"}, files={"file": file}).json()["id"]
        batch = {"input_file_id": name, "endpoint": CHAT, "completion_window": "7d"}
        made: str = self.client.post("/v1/batches", json=batch).json()["id"]
        return made

    def shown(self, name: str) -> Any:
        answer = self.get(f"/v1/batches/{name}")
        return answer.json() if answer is not None else None

    def ended(self, name: str, patience_s: float = PATIENCE_S) -> Any:
        shown = lambda: (at := self.shown(name)) and at["status"] == "completed" and at  # noqa: E731
        return self.weir.until(shown, f"the end of {name}", patience_s)


def test_a_used_up_budget_a_sleeping_pool_and_a_huge_batch_delay_no_other_key() -> None:
    folder = new_folder()
    (folder / "fleet.yaml").write_text(f"{FLEET}    - {{name: empty, model: none-ready, kind: sim, replicas: 0}}\n")
    with running("--no-demo", "--fleet", str(folder / "fleet.yaml"), folder=folder) as weir, ExitStack() as stack:
        weir.wait_for("Weir is up")
        limited, huge, small = (Key(weir, secret, stack) for secret in weir.shell(MAKE_KEYS))
        stuck, asleep, long = limited.batch(10), limited.batch(4, "none-ready"), huge.batch(HUGE)
        waits = lambda name: (at := limited.shown(name)) and at["waiting"] and at["waiting"]["asked_again_at"]  # noqa: E731
        # Until the engines have started, both batches wait for them
        used_up = lambda: (at := limited.shown(stuck)) and (at["waiting"] or {}).get("code") == "insufficient_quota"  # noqa: E731
        weir.until(lambda: used_up() and waits(asleep), "the reasons", PATIENCE_S)
        done = small.ended(small.batch(6))
        assert done["request_counts"] == {"total": 6, "completed": 6, "failed": 0}
        at = limited.shown(stuck)
        assert (at["status"], at["request_counts"]["completed"]) == ("in_progress", 3)
        assert at["waiting"]["code"] == "insufficient_quota"
        assert limited.shown(asleep)["waiting"]["code"] in ("no_instance_ready", "insufficient_quota", "waking")
        assert huge.shown(long)["request_counts"]["completed"] < HUGE
        for enough in (HUGE // 10, HUGE // 5, HUGE // 3):
            more = lambda enough=enough: (at := huge.shown(long)) and at["request_counts"]["completed"] >= enough  # noqa: E731
            weir.until(more, "some lines", PATIENCE_S)
            os.kill(weir.until(lambda: weir.child("control"), "a worker"), signal.SIGKILL)
        late = small.ended(small.batch(6))
        assert late["request_counts"]["completed"] == 6
        for key, name in ((limited, stuck), (limited, asleep)):
            assert key.client.post(f"/v1/batches/{name}/cancel").status_code == 200
        whole = huge.ended(long)
        assert whole["request_counts"] == {"total": HUGE, "completed": HUGE, "failed": 0}
        content = huge.get(f"/v1/files/{whole['output_file_id']}/content").text.splitlines()
        assert sorted(json.loads(one)["custom_id"] for one in content) == sorted(f"r{i}" for i in range(HUGE))
        ended = lambda: (at := limited.shown(stuck)) and at["status"] == "cancelled" and at  # noqa: E731
        assert weir.until(ended, "the cancelled batch")["request_counts"] == {"total": 10, "completed": 3, "failed": 7}

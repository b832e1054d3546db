import asyncio
import os
import signal
import subprocess
import sys

import pytest

from controlplane.evidence.experiments.replay import demo
from controlplane.evidence.experiments.tests.fake_engine import FakeEngine, fake_engine


async def run_until(engine: FakeEngine, requests: int, **options) -> None:
    task = asyncio.create_task(demo.run(engine.url, **options))
    while len(engine.bodies) < requests:
        assert not task.done(), task
        await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_demo_traffic_requests_the_first_model_and_has_its_own_session(monkeypatch):
    monkeypatch.setattr(demo, "FIRST_STARTS_S", 0.0)
    async with fake_engine() as engine:
        await run_until(engine, 3, sessions=3)
    assert {body["model"] for body in engine.bodies} == {"fake"}
    assert {headers["x-session-id"] for headers in engine.headers} == {"agent-1-0", "agent-1-1", "agent-1-2"}


async def test_demo_traffic_keeps_requesting_the_given_model(monkeypatch):
    monkeypatch.setattr(demo, "AWAY_S", 0.01)
    async with fake_engine(behaviour=lambda number, body: "missing" if number < 3 else "ok") as engine:
        await run_until(engine, 3, sessions=1, model="mine")
    assert {body["model"] for body in engine.bodies} == {"mine"}


async def test_demo_traffic_retries_while_the_router_refuses(monkeypatch):
    monkeypatch.setattr(demo, "AWAY_S", 0.01)
    async with fake_engine(behaviour=lambda number, body: "refuse" if number < 4 else "ok") as engine:
        await run_until(engine, 4, sessions=1)
    assert len({body["prompt"] for body in engine.bodies[:4]}) == 1


def test_under_the_demo_policy_the_first_three_sessions_open_heavy_medium_and_warm(db):
    from controlplane.doors.up.database import DEMO_POLICY
    from controlplane.evidence.traces.generated import session_turns
    from controlplane.traffic.policies import selectors, services
    from router.policy.rules.classify import classify
    from router.policy.schema import document

    made = services.ensure_default_policy(DEMO_POLICY)
    policy = document.parse(selectors.live_version(made).document)
    openings = [next(session_turns(1, number)).input_tokens for number in range(3)]
    assert [classify(tokens, 0, policy) for tokens in openings] == ["heavy", "medium", "warm"]


@pytest.mark.slow
def test_sigterm_ends_the_command_at_once_even_while_nobody_answers():
    process = subprocess.Popen(
        [sys.executable, "manage.py", "demo_traffic", "--url", "http://127.0.0.1:9"],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert process.stdout is not None
    assert b"waiting: no connection to 127.0.0.1:9" in process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 0
    process.stdout.close()

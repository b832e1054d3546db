"""Start simulated engines as real processes."""

import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import httpx
import pytest

from fleet.tests.simengine.metrics_page import parse_page
from router.tests.forked import ENGINE, Forked

FAST = 100  # time scale: an answer of 100 tokens takes about 10 ms


@dataclass(frozen=True)
class Sim:
    process: Forked
    http: httpx.Client
    url: str
    events: str
    replay: str

    def post(self, path: str, body: object, **headers: str) -> httpx.Response:
        return self.http.post(path, json=body, headers=headers)

    def complete(self, prompt: object, max_tokens: int = 8, **fields: object) -> dict[str, object]:
        body = {"prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True, **fields}
        answer = self.post("/v1/completions", body)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def metrics(self) -> dict[str, float]:
        return parse_page(self.http.get("/metrics").text)

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(timeout=30)
        finally:
            self.close()

    def close(self) -> None:
        self.http.close()
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()


StartSim = Callable[..., Sim]


def start(**flags: object) -> Sim:
    given = {"port": 0, "model": "sim", "time_scale": FAST, "seed": 1, "events_port": 0, "replay_port": 0} | flags
    process = Forked(ENGINE, [f"--{name.replace('_', '-')}={value}" for name, value in given.items()])
    line = process.stdout.readline()
    assert line, "the engine did not start"
    url = f"http://{line.split()[-1]}"
    client = httpx.Client(base_url=url, timeout=20)
    source = next(iter(client.get("/kv_event_sources").json().values()))
    return Sim(process, client, url, source["endpoint"], source["replay_endpoint"])


@pytest.fixture
def start_sim() -> Iterator[StartSim]:
    """Yield a starter of engines with the test's own flags."""
    started: list[Sim] = []

    def begin(**flags: object) -> Sim:
        started.append(start(**flags))
        return started[-1]

    yield begin
    for sim in started:
        sim.close()


@pytest.fixture(scope="module")
def sim() -> Iterator[Sim]:
    """Start one engine for the tests of a file, each of which uses its own prompts."""
    running = start()
    yield running
    running.close()

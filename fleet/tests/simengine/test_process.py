"""The engine's process: how it starts, handles clients that leave, and ends."""

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from fleet.tests.simengine.conftest import Sim, StartSim

ROOT = Path(__file__).resolve().parents[3]
ENDLESS = {"prompt": "x" * 4000, "max_tokens": 100_000, "ignore_eos": True}


def eventually(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def is_empty(sim: Sim) -> bool:
    metrics = sim.metrics()
    names = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")
    return all(metrics[name] == 0 for name in names)


def test_a_client_that_leaves_a_stream_frees_its_blocks(start_sim: StartSim) -> None:
    sim = start_sim(time_scale=1)
    with httpx.stream("POST", f"{sim.url}/v1/completions", json={**ENDLESS, "stream": True}, timeout=20) as streamed:
        chunks = streamed.iter_bytes()
        next(chunks)
        assert not is_empty(sim)
        assert sim.http.get("/load").json() == {"server_load": 1}
    eventually(lambda: is_empty(sim))
    assert sim.metrics()["vllm:request_success_total{finished_reason=abort}"] == 1
    assert sim.http.get("/load").json() == {"server_load": 0}


def test_a_client_that_does_not_wait_for_its_answer_frees_its_blocks(start_sim: StartSim) -> None:
    sim = start_sim(time_scale=1)
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{sim.url}/v1/completions", json=ENDLESS, timeout=0.5)
    eventually(lambda: is_empty(sim))
    assert sim.metrics()["vllm:request_success_total{finished_reason=abort}"] == 1


async def test_many_requests_at_once_all_get_their_answers(start_sim: StartSim) -> None:
    sim = start_sim(kv_blocks=400, max_num_seqs=16)

    async def ask(client: httpx.AsyncClient, index: int) -> int:
        body = {"prompt": f"{index:04d}" * 200, "max_tokens": 100, "ignore_eos": True, "stream": bool(index % 2)}
        return len((await client.post("/v1/completions", json=body)).text)

    async with httpx.AsyncClient(base_url=sim.url, timeout=60, limits=httpx.Limits(max_connections=60)) as client:
        sizes = await asyncio.gather(*(ask(client, index) for index in range(60)))
    assert min(sizes) > 400
    metrics = sim.metrics()
    assert metrics["vllm:request_success_total{finished_reason=length}"] == 60
    assert metrics["vllm:generation_tokens_total"] == 6000
    assert is_empty(sim)


def test_a_requested_stop_exits_with_success(start_sim: StartSim) -> None:
    sim = start_sim()
    sim.complete("hello")
    assert sim.stop() == 0


def test_running_answers_are_finished_before_the_stop(start_sim: StartSim) -> None:
    sim = start_sim(time_scale=10)
    body = {**ENDLESS, "max_tokens": 500, "stream": True}
    with httpx.stream("POST", f"{sim.url}/v1/completions", json=body, timeout=20) as streamed:
        chunks = streamed.iter_text()
        text = next(chunks)
        sim.process.terminate()
        text += "".join(chunks)
    assert text.endswith("data: [DONE]\n\n")
    assert sim.process.wait(timeout=10) == 0


@pytest.mark.slow
def test_an_endless_answer_does_not_delay_the_stop(start_sim: StartSim) -> None:
    sim = start_sim(time_scale=1)
    with httpx.stream("POST", f"{sim.url}/v1/completions", json={**ENDLESS, "stream": True}, timeout=20) as streamed:
        chunks = streamed.iter_bytes()
        next(chunks)
        assert sim.stop() == 0


def failure(**flags: object) -> tuple[int, str]:
    words = [word for name, value in flags.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    argv = [sys.executable, "-m", "fleet.simengine", *words]
    ended = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=60)
    return ended.returncode, ended.stderr


def test_a_port_in_use_is_reported_in_one_clear_line(sim: Sim) -> None:
    port = int(sim.url.rsplit(":", 1)[1])
    status, error = failure(port=port, model="sim")
    assert status == 1
    assert error == f"simengine: cannot listen on 127.0.0.1:{port}: Address already in use\n"


def test_an_events_port_in_use_is_reported_in_one_clear_line(sim: Sim) -> None:
    taken = int(sim.events.rsplit(":", 1)[1])
    status, error = failure(port=0, model="sim", events_port=taken, replay_port=0)
    assert status == 1
    assert error.startswith(f"simengine: cannot publish on 127.0.0.1, ports {taken} and 0: ")
    assert error.count("\n") == 1


def test_an_unknown_gpu_is_refused_with_the_list_of_known_ones() -> None:
    status, error = failure(port=0, model="sim", gpu="abacus")
    assert status == 1
    assert error.startswith("simengine: no constants for abacus Llama-3.1-8B; there are: ")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"time_scale": 0}, "0.0 is not between 0.001 and 10000"),
        ({"kv_blocks": 0}, "0 is not between 1 and"),
        ({"events_port": 5557}, "--events-port and --replay-port come together"),
    ],
)
def test_flags_out_of_range_are_refused_with_the_range(flags: dict[str, object], message: str) -> None:
    status, error = failure(port=0, model="sim", **flags)
    assert status == 2
    assert message in error

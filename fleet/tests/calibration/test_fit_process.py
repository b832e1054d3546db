"""A fit to traffic in a separate process."""

import asyncio
import subprocess
from dataclasses import replace

import pytest

from fleet import subprocess as computing
from fleet.calibration.traffic import fit_process
from fleet.calibration.traffic.fit_process import FitInputs, fit_in_process
from fleet.calibration.traffic.physical import physical_starts
from fleet.calibration.traffic.traffic_fit import TooFewRequests, fit_traffic
from fleet.engine.compiled import ENGINE
from fleet.tests.calibration.traffic import CPU, LIMITS, traffic

INPUTS = FitInputs(traffic(CPU, 5, 170), LIMITS, physical_starts("Qwen/Qwen3-8B", 1)[:1], (True,))


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen[bytes]]:
    """Return the started processes."""
    found: list[subprocess.Popen[bytes]] = []
    popen = subprocess.Popen
    monkeypatch.setattr(
        computing.subprocess, "Popen", lambda *words, **given: found.append(popen(*words, **given)) or found[-1]
    )
    return found


def test_a_fit_in_a_subprocess_finds_the_same_and_reports_its_steps() -> None:
    here, there = [], []
    made = fit_traffic(INPUTS.requests, INPUTS.limits, INPUTS.starts, here.append, INPUTS.either)
    assert asyncio.run(fit_in_process(INPUTS, there.append)) == made
    assert there == here


def test_too_few_requests_are_refused_in_a_subprocess_too() -> None:
    with pytest.raises(TooFewRequests, match="9 recorded requests"):
        asyncio.run(fit_in_process(replace(INPUTS, requests=INPUTS.requests[:9]), lambda step: None))


def test_a_cancelled_fit_ends_its_process(processes: list[subprocess.Popen[bytes]]) -> None:
    async def cancel_once_it_has_begun() -> None:
        begun = asyncio.Event()
        loop = asyncio.get_running_loop()
        fit = asyncio.ensure_future(fit_in_process(INPUTS, lambda step: loop.call_soon_threadsafe(begun.set)))
        await begun.wait()
        fit.cancel()
        await asyncio.wait({fit})
        assert fit.cancelled()

    asyncio.run(cancel_once_it_has_begun())  # ends once the thread that waits for the process has ended
    assert [process.returncode for process in processes] == [-9]


def test_a_fit_asks_for_the_compiled_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fit_process, "run_in_subprocess", lambda *words, compiled: compiled)
    assert asyncio.run(fit_in_process(INPUTS, lambda step: None)) == (ENGINE,)  # type: ignore[comparison-overlap]

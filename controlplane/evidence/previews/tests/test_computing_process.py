"""The computation in a separate process: its progress, its errors, and how it is ended."""

import os
import signal
import subprocess
from multiprocessing import Pipe

import pytest

from controlplane.evidence.previews.analysis.compute import FirstAnswer, PreviewInputs, compute, simulated
from controlplane.evidence.traces.generated import generate
from controlplane.evidence.twin.simulation.types import TwinFleet
from fleet import subprocess as computation
from fleet.engine.engine_model import EngineModel
from fleet.engine.law import Law
from fleet.engine.scheduler import Limits
from router.policy.schema import document as documents

LAW = Law(0.004, 2e-5, 0.002, 1e-10, 1e-8, 0.0)


def job(**changes):
    fleet = TwinFleet(dict.fromkeys(("a", "b"), EngineModel(LAW, 20_000, Limits())))
    policy = documents.parse(documents.default())
    values = {"fleet": fleet, "pool": "demo", "live": policy, "version": ("default", 1), "draft": policy}
    return PreviewInputs(**values | {"traces": ((1, generate(duration_s=60)),)} | changes)


def run(job, beat=lambda: None, take=lambda sent: None):
    return computation.run_in_subprocess(compute, job, beat, take)


def test_a_subprocess_computes_the_same_result_as_the_caller():
    seen, beats = [], []
    assert run(job(), lambda: beats.append(len(seen)), seen.append) == compute(job(), lambda _: None)
    assert (done := [sent for sent in seen if isinstance(sent, int)]) == sorted(done)
    assert beats[0] == 0


def test_the_first_answers_cover_the_first_requests_and_then_all_requests_and_change_no_result():
    job_of_all, sent = job(first=20), []
    whole = run(job_of_all, take=sent.append)
    first, of_all = (one.effect for one in sent if isinstance(one, FirstAnswer))
    assert (first["classes"]["all"]["n"], first["changed"]["of"]) == (20, 20)
    assert of_all == whole.effect | {"canary": None}
    assert whole == compute(job(), lambda _: None)
    assert sent[-1] == simulated(1, len(job_of_all.traces[0][1].requests))  # includes the canary's


def test_an_error_in_the_subprocess_is_raised_in_the_caller():
    with pytest.raises(computation.SubprocessFailed, match="AttributeError"):
        run(job(fleet=None))


@pytest.fixture
def processes(monkeypatch):
    """The processes started during the test."""
    found = []
    popen = subprocess.Popen

    def start(*words, **values):
        found.append(popen(*words, **values))
        return found[-1]

    monkeypatch.setattr(computation.subprocess, "Popen", start)
    return found


def ended(processes):
    return [process.returncode for process in processes] == [-signal.SIGKILL]


def test_an_error_of_the_heartbeat_ends_the_process(processes):
    def stop():
        raise InterruptedError

    with pytest.raises(InterruptedError):
        run(job(), stop)
    assert ended(processes)


def test_a_killed_subprocess_is_reported(processes):
    with pytest.raises(computation.SubprocessFailed, match="status -9"):
        run(job(), lambda: os.kill(processes[0].pid, signal.SIGKILL))
    assert ended(processes)


def test_a_computing_process_ends_once_nobody_waits_for_it(monkeypatch):
    monkeypatch.setattr(computation.os, "nice", lambda _: None)
    ours, theirs = Pipe()
    ours.send((compute, job()))
    ours.close()
    computation.serve(theirs)  # sends nothing, and nobody waits for the result

"""Stopping the command as a process, even if the shell that started it ignores SIGINT."""

import json
import signal
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from controlplane.doors.cli.weir import waiting

RUNNING = {"id": 7, "status": "running", "progress": {"runs_done": 0, "runs": 1, "eta_s": None}}


class Plane(BaseHTTPRequestHandler):
    """A control plane with one experiment that runs until it is cancelled."""

    def do_POST(self):
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.posted.append(self.path)
        self._answer()

    def do_GET(self):
        self._answer()

    def _answer(self):
        body = json.dumps(RUNNING).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


@pytest.fixture
def plane():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Plane)
    server.posted = []
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def start(plane, weir_file, tmp_path):
    """start(words of the shell before the command) → the process that waits for the experiment."""
    (tmp_path / "experiment.json").write_text("{}")
    started = []

    def begin(before=""):
        command = f"{before}exec {sys.executable} -I {weir_file} experiment run experiment.json --wait"
        environment = {"WEIR_URL": f"http://127.0.0.1:{plane.server_port}", "WEIR_TOKEN": "t"}
        process = subprocess.Popen(
            ["sh", "-c", command], cwd=tmp_path, env=environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 - ignored behind `&`
        )  # fmt: skip
        started.append(process)
        assert process.stdout.readline().startswith("experiment 7: ")
        assert process.stdout.readline() == "running: 0 of 1 runs\n"
        return process

    yield begin
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("before", "number"),
    [("", signal.SIGINT), ("", signal.SIGTERM), ("trap '' INT; ", signal.SIGTERM)],
    ids=["Ctrl-C", "SIGTERM", "SIGTERM in the background of a script"],
)
def test_an_interrupted_command_cancels_its_job_and_ends_with_3(start, plane, before, number):
    process = start(before)
    process.send_signal(number)
    _, error = process.communicate(timeout=60)
    assert (process.returncode, error) == (3, "weir: stopped, and cancelled\n")
    assert plane.posted[-1] == "/api/v1/experiments/7/cancel"


@pytest.mark.parametrize(("is_terminal", "lines"), [(False, 2), (True, 4)])
def test_without_a_terminal_a_line_is_printed_only_when_the_state_changes(monkeypatch, capsys, is_terminal, lines):
    monkeypatch.setattr("sys.stdout.isatty", lambda: is_terminal)
    progress = waiting.ProgressLines()
    for state, detail in (
        ("queued", ""),
        ("running", ", 3 s"),
        ("running", ", 2 s"),
        ("running", ", 2 s"),
        ("running", ", 1 s"),
    ):
        progress.show(state, detail)
    shown = capsys.readouterr().out
    assert len(shown.splitlines()) == lines
    assert "\r" not in shown

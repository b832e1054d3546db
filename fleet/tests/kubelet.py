"""A stand-in for a kubelet as the fleet sees it: it runs a Pod's command, reports its state and ends it."""

import contextlib
import datetime as dt
import itertools
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

Json = dict[str, Any]
_BASE = Path(__file__).resolve().parents[2]


class Kubelet:
    """A kubelet that gives each Pod its own loopback address; `python3` is this interpreter."""

    def __init__(self, cluster: Any) -> None:
        self._cluster = cluster
        third = os.getpid() % 250  # keeps concurrent test processes from taking each other's addresses
        self._addresses = (f"127.{64 + third % 64}.{third}.{last}" for last in itertools.cycle(range(2, 250)))
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._told: set[str] = set()  # Pods that were asked to end
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        self._thread.join(timeout=10)
        for process in self._processes.values():
            _send(process, signal.SIGKILL)
            process.wait(timeout=10)

    def _run(self) -> None:
        while not self._closing.wait(0.02):
            with self._cluster.changed:
                for name, pod in self._cluster.pods().items():
                    self._look(name, pod)

    def _look(self, name: str, pod: Json) -> None:
        process = self._processes.get(name)
        if "deletionTimestamp" in pod["metadata"]:
            self._end(name, pod, process)
        elif process is None and pod["status"]["phase"] == "Pending" and pod["spec"]:
            self._start(name, pod)
        elif process is not None and process.poll() is not None and pod["status"]["phase"] == "Running":
            self._ended(name, process.returncode)

    def _start(self, name: str, pod: Json) -> None:
        (container,) = pod["spec"]["containers"]
        address = next(self._addresses)
        env = self._environment(container, address)
        if env is None:
            return  # a Secret that the Pod refers to does not exist yet
        argv = [_expanded(word, env) for word in container["command"]]
        argv[0] = sys.executable if argv[0] == "python3" else argv[0]
        with (self._cluster.folder / f"{name}.log").open("ab") as output:
            process = subprocess.Popen(
                argv, env=env, stdout=output, stderr=output, stdin=subprocess.DEVNULL, start_new_session=True, cwd=_BASE
            )
        self._processes[name] = process
        self._cluster.put("pods", name, {**pod, "spec": {**pod["spec"], "nodeName": "machine-1"}})
        running = [{"name": "engine", "state": {"running": {"startedAt": _now()}}}]
        self._cluster.set_status(name, phase="Running", podIP=address, containerStatuses=running)

    def _environment(self, container: Json, address: str) -> dict[str, str] | None:
        found = {"PATH": os.environ["PATH"]}
        for one in container["env"]:
            source = one.get("valueFrom", {})
            if "fieldRef" in source:
                found[one["name"]] = address
            elif "secretKeyRef" in source:
                secret = self._cluster.objects.get(("secrets", source["secretKeyRef"]["name"]))
                if secret is None:
                    return None
                found[one["name"]] = secret["stringData"][source["secretKeyRef"]["key"]]
            else:
                found[one["name"]] = _expanded(one["value"], found)
        return found

    def _end(self, name: str, pod: Json, process: subprocess.Popen[bytes] | None) -> None:
        if process is None or process.poll() is not None:
            self._cluster.remove(name)
            return
        late = dt.datetime.now(dt.UTC) > dt.datetime.fromisoformat(pod["metadata"]["deletionTimestamp"])
        if late or name not in self._told:
            _send(process, signal.SIGKILL if late else signal.SIGTERM)
        self._told.add(name)

    def _ended(self, name: str, status: int) -> None:
        code = status if status >= 0 else 128 - status
        state = {"terminated": {"exitCode": code, "reason": "Completed" if code == 0 else "Error"}}
        phase = "Succeeded" if code == 0 else "Failed"
        self._cluster.set_status(name, phase=phase, containerStatuses=[{"name": "engine", "state": state}])

    def kill(self, name: str) -> None:
        _send(self._processes[name], signal.SIGKILL)


def _send(process: subprocess.Popen[bytes], number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def _expanded(text: str, env: dict[str, str]) -> str:
    """Expand as Kubernetes does: $(NAME) of a known name, and $$ for a dollar."""
    return re.sub(r"\$\$|\$\((\w+)\)", lambda hit: "$" if hit[0] == "$$" else env.get(hit[1], hit[0]), text)


def _now() -> str:
    return dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

"""A local copy of the Pods of one node: one list, then watches that continue from it. One thread updates it, others
read it. While the API server is unreachable, the copy keeps its Pods and reports the trouble, because missing
information does not mean that a Pod has been deleted.
"""

import logging
import threading
from collections.abc import Iterator
from typing import Protocol

from fleet.kubernetes.api import Expired, KubernetesError
from fleet.kubernetes.objects import Pod

WATCH_S = 10.0  # time within which an unreachable server that sends no error is noticed
_AGAIN_S = 1.0
log = logging.getLogger(__name__)


class PodSource(Protocol):
    def list_pods(self, selector: str) -> tuple[list[Pod], str]: ...

    def watch_pods(self, selector: str, version: str, timeout_s: float) -> Iterator[tuple[str, Pod]]: ...


class Mirror:
    def __init__(self, source: PodSource, selector: str) -> None:
        self._source, self._selector = source, selector
        self._lock, self._stopping, self._looked = threading.Lock(), threading.Event(), threading.Event()
        self._pods: dict[str, Pod] = {}
        self._version = ""  # version to watch from; empty: list first
        self.trouble = "its Pods have not been listed yet"  # why the copy may be stale; empty: it is current

    def start(self) -> None:
        threading.Thread(target=self._run, name="pods", daemon=True).start()

    def stop(self) -> None:
        """Stop the thread when its current watch ends."""
        self._stopping.set()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self.step()
            except Exception as error:
                # The next list recovers from any response; if this thread ended, the copy would stay stale.
                log.exception("the watch of Pods %s failed", self._selector)
                self._set_trouble(str(error))
            if self.trouble:
                self._stopping.wait(_AGAIN_S)

    def step(self) -> None:
        """List if necessary, then watch until the server ends the watch."""
        try:
            if not self._version:
                self._list()
            for kind, pod in self._source.watch_pods(self._selector, self._version, WATCH_S):
                self._take(kind, pod)
            self.trouble = ""
        except Expired:
            self._version = ""
        except KubernetesError as error:
            self._set_trouble(str(error))

    def wait_listed(self, seconds: float) -> None:
        """Wait until the first list has arrived or failed, at most for the given time."""
        self._looked.wait(seconds)

    def pods(self) -> dict[str, Pod]:
        with self._lock:
            return dict(self._pods)

    def get(self, name: str) -> Pod | None:
        with self._lock:
            return self._pods.get(name)

    def note(self, pod: Pod) -> None:
        """Add a Pod that was just created, before the watch reports it."""
        with self._lock:
            self._pods.setdefault(pod.name, pod)

    def forget(self, name: str) -> None:
        """Drop a Pod that the API server reports as deleted."""
        with self._lock:
            self._pods.pop(name, None)

    def _list(self) -> None:
        found, version = self._source.list_pods(self._selector)
        with self._lock:
            self._pods = {pod.name: pod for pod in found}
        self._version, self.trouble = version, ""
        self._looked.set()

    def _take(self, kind: str, pod: Pod) -> None:
        self._version, self.trouble = pod.metadata.resource_version, ""
        with self._lock:
            if kind == "DELETED":
                self._pods.pop(pod.name, None)
            elif kind != "BOOKMARK":
                self._pods[pod.name] = pod

    def _set_trouble(self, why: str) -> None:
        if self.trouble != why:
            log.warning("Pods %s: %s", self._selector, why)
        self.trouble = why
        self._looked.set()

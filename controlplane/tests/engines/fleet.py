"""A real `manage.py up` with a document of examples/, and the actions of its operator and its clients."""

import json
import os
import re
import signal
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from controlplane.tests import real_up

CODE = Path(__file__).resolve().parents[3]
PATIENCE_S = 420.0  # enough for two engines that start at the same time on a busy machine
LONG = " ".join(f"river {number} weir token" for number in range(250))  # 1,641 tokens of the tiny model
SAME = {"temperature": 0, "ignore_eos": True, "return_token_ids": True}


class Fleet:
    def __init__(self, weir: real_up.RealUp) -> None:
        self.weir = weir
        self.notes: list[tuple[str, float]] = []  # events, with the seconds until each

    def rest(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[Any, str]:
        """(answer, ETag)"""
        token = (self.weir.folder / "token").read_text().strip()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.weir.web_port}/api/v1{path}",
            None if body is None else json.dumps(body).encode(),
            {"authorization": f"Bearer {token}", "content-type": "application/json", **headers},
            method=method,
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.loads(answer.read() or b"null"), answer.headers.get("etag", "")
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{method} {path}: {error.code} {error.read().decode()}") from None

    def instances(self) -> dict[str, dict[str, Any]]:
        return {row["id"]: row for row in self.rest("GET", "/instances")[0]}

    def one(self, name: str) -> dict[str, Any]:
        return self.rest("GET", f"/instances/{name}")[0]

    def until(self, holds: Callable[[], bool], what: str, limit_s: float = PATIENCE_S) -> float:
        """Return the seconds until the condition held."""
        began = time.monotonic()
        while True:
            try:
                if holds():
                    break
            except (OSError, ValueError) as error:  # the process is being replaced
                what = f"{what} ({error})"[:300]
            assert time.monotonic() < began + limit_s, f"waited {limit_s:g} s in vain for {what}: {self.states()}"
            time.sleep(0.25)
        return time.monotonic() - began

    def note(self, what: str, seconds: float) -> None:
        self.notes.append((what, seconds))
        print(f"ENGINES {what}: {seconds:.1f} s")

    def states(self) -> dict[str, str]:
        return {name: f"{row['state']}: {row['reason']}" for name, row in self.instances().items()}

    def until_ready(self, *names: str) -> float:
        return self.until(lambda: all(self.one(name)["state"] == "ready" for name in names), f"{names} ready")

    def ask(self, prompt: str, tokens: int = 16, url: str = "") -> tuple[list[int], dict[str, Any], dict[str, str]]:
        """Return (tokens of the answer, usage, Weir's headers and the request's id)."""
        body = {"model": "tiny", "prompt": prompt, "max_tokens": tokens, **SAME}
        request = urllib.request.Request(
            (url or f"http://127.0.0.1:{self.weir.router_port}") + "/v1/completions",
            json.dumps(body).encode(),
            {"content-type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            said = json.load(answer)
            headers = {
                name: value for name, value in answer.headers.items() if name.startswith(("x-weir-", "x-request-id"))
            }
        return said["choices"][0]["token_ids"], said["usage"], headers

    def cached(self, usage: dict[str, Any]) -> int:
        return int(usage["prompt_tokens_details"]["cached_tokens"] or 0)

    def metric(self, name: str, series: str) -> float:
        """Return the sum of an instance's series whose lines begin like this."""
        with urllib.request.urlopen(self.one(name)["url"] + "/metrics", timeout=30) as answer:
            page = answer.read().decode()
        return sum(float(value) for value in re.findall(rf"^{re.escape(series)}.*?\}}? ([0-9.e+]+)$", page, re.M))

    def page(self, path: str) -> str:
        """Return the page that an operator sees."""
        return self.browser().open(f"http://127.0.0.1:{self.weir.web_port}{path}", timeout=60).read().decode()

    def browser(self) -> urllib.request.OpenerDirector:
        if not hasattr(self, "_browser"):
            self._browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
            login = f"http://127.0.0.1:{self.weir.web_port}/login"
            form = self._browser.open(login, timeout=60).read().decode()
            token = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', form)
            assert token
            values = {"csrfmiddlewaretoken": token[1], "username": "admin", "password": PASSWORD}
            request = urllib.request.Request(login, urllib.parse.urlencode(values).encode(), {"referer": login})
            self._browser.open(request, timeout=60).read()
        return self._browser

    def policy(self, **overrides: Any) -> None:
        """Publish the policy, and wait until the router uses it."""
        _, etag = self.rest("POST", "/policies/default/draft", {})
        self.rest("PATCH", "/policies/default/draft", {"overrides": overrides}, **{"if-match": etag})
        made, _ = self.rest("POST", "/policies/default/draft/publish", {"reason": "to drive the real engines"})
        wanted = str(made["version"]["number"])
        self.until(lambda: self.ask("hello", 1)[2]["x-weir-policy"] == wanted, "the router's policy", 60)

    def offload(self) -> None:
        """Send a prompt of 1,000 new tokens that one instance computes and another answers."""
        classes = {"classes.heavy_new_tokens": 1000, "classes.warm_new_tokens": 500}
        self.policy(**{"strategy.name": "adaptive_v1", "flow.heavy": "offload", **classes})

    def only(self, name: str) -> None:
        """Drain every other instance of the pool."""
        for other in [row for row in self.instances() if row.startswith("tiny-")]:
            self.rest("POST", f"/instances/{other}/{'undrain' if other == name else 'drain'}", {"reason": "to choose"})
        self.until(lambda: self.one(name)["state"] == "ready", f"{name} ready")
        self.until(lambda: self.ask("who is there", 1)[2]["x-weir-instance"] == name, f"{name} alone", 60)

    def everybody(self) -> None:
        names = [row for row in self.instances() if row.startswith("tiny-")]
        for name in names:
            self.rest("POST", f"/instances/{name}/undrain", {"reason": "to choose"})
        self.until_ready(*names)

    def calibrated(self, name: str, seconds: float) -> dict[str, Any]:
        """Return the calibration of an instance by a sweep, once it has ended."""
        self.rest("POST", f"/instances/{name}/calibrate", {"seconds": seconds, "reason": "to hold the twin against it"})
        last = lambda: self.rest("GET", f"/instances/{name}/calibration")[0]["last"]  # noqa: E731
        self.until(lambda: last()["status"] in ("done", "failed"), "the calibration", seconds + 60)
        found: dict[str, Any] = last()
        return found

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> int:
        """Send a signal to an engine; return its pid."""
        pid = self.one(name)["pid"]
        os.kill(pid, number)
        return pid

    def is_replaced(self, name: str, epoch: int) -> Callable[[], bool]:
        def replaced() -> bool:
            row = self.one(name)
            return row["epoch"] > epoch and row["state"] == "ready"

        return replaced


PASSWORD = "engines-under-test-1"


@contextmanager
def running(document: Path) -> Iterator[Fleet]:
    assert (CODE / ".engines/.installed").exists(), "there are no engines: make engines"
    flags = ("--no-demo", "--fleet", str(document))
    with real_up.running(*flags, WEIR_ADMIN_PASSWORD=PASSWORD) as weir:
        weir.wait_for("Weir is up", PATIENCE_S)
        fleet = Fleet(weir)
        fleet.note(f"{document.stem}: every instance ready", fleet.until(lambda: all_ready(fleet), "the fleet"))
        yield fleet


def all_ready(fleet: Fleet) -> bool:
    rows = fleet.instances()
    return bool(rows) and all(row["state"] == "ready" for row in rows.values())

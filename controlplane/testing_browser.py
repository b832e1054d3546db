"""The web process as users see it: uvicorn in its own process, a file database, a private Redis, and Chromium. Import
the fixtures in the conftest.py of a folder of browser tests: `from controlplane.testing_browser import *`.
"""

import atexit
import functools
import json
import os
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, cast

import pytest
import redis
from playwright.sync_api import Browser, Page, expect, sync_playwright

from controlplane.tests.migrated import migrated
from router.tests.ports import free_port

__all__ = ["browser", "ended", "open_page", "web"]

ROOT = Path(__file__).resolve().parent.parent
CHROMIUM = os.environ.get("WEIR_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
PASSWORD = "correct-horse-battery"  # noqa: S105  # the user exists for one test run
START_S = 90.0
expect.set_options(timeout=30_000)  # ms; a page waits for its turn on a busy machine

# Prints the key of each person's session, as signing in through the form takes a second.
USERS = f"""
import json
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
from django.contrib.auth.models import Group, User
from controlplane.people.accounts.sessions import SessionStore
keys = {{}}
for name, role in (("vera", "viewer"), ("otto", "operator"), ("ada", "admin")):
    user = User.objects.create_user(name, password={PASSWORD!r})
    user.groups.add(Group.objects.get_or_create(name=role)[0])
    session = SessionStore()
    session[SESSION_KEY] = str(user.pk)
    session[BACKEND_SESSION_KEY] = "django.contrib.auth.backends.ModelBackend"
    session[HASH_SESSION_KEY] = user.get_session_auth_hash()
    session.save()
    keys[name] = session.session_key
print(json.dumps(keys))
"""
# Runs each line that it reads, a script in JSON, and answers with the traceback, or nothing.
SHELL = """
import json, sys, traceback
import django
django.setup()
answers, sys.stdout = sys.stdout, sys.stderr
for line in sys.stdin:
    said = ""
    try:
        exec(json.loads(line), {})
    except Exception:
        said = traceback.format_exc()
    print(json.dumps(said), file=answers, flush=True)
"""


@dataclass
class Web:
    """One web process with its own data folder and Redis; it can be killed and started again on its port."""

    folder: Path
    port: int
    environment: dict[str, str]
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    sessions: dict[str, str] = field(default_factory=dict)  # user -> key of the session

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def cookies(self, user: str) -> list[Any]:
        return [{"name": "sessionid", "value": self.sessions[user], "url": self.url}] if user else []

    @property
    def redis(self) -> redis.Redis:
        return redis.Redis.from_url(self.environment["REDIS_URL"], socket_timeout=30)

    def start_redis(self) -> None:
        from controlplane.base.process import redis_server

        path = Path(self.environment["REDIS_URL"].removeprefix("unix://"))
        path.parent.mkdir(parents=True, exist_ok=True)
        command = redis_server.arguments(redis_server.find_server(), path)
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT)
        redis_server.wait_until_ready(self.environment["REDIS_URL"], process)
        self.processes["redis"] = process

    def start(self) -> None:
        log = (self.folder / "web.log").open("ab")
        command = [sys.executable, "-m", "controlplane.doors.web", "--port", str(self.port)]
        process = subprocess.Popen(command, cwd=ROOT, env=self.environment, stdout=log, stderr=log)
        log.close()
        self.processes["web"] = process
        end = time.monotonic() + START_S
        while time.monotonic() < end and process.poll() is None:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.05)
        raise RuntimeError(f"the web process did not start: {(self.folder / 'web.log').read_text()[-2000:]}")

    def run(self, script: str) -> None:
        """Run Python on the server's side, in one process for all scripts, as starting Django takes seconds."""
        if "shell" not in self.processes:
            command = [sys.executable, "-c", SHELL]
            log = (self.folder / "shell.log").open("ab")
            self.processes["shell"] = subprocess.Popen(
                command, cwd=ROOT, env=self.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log
            )
            log.close()
        process = self.processes["shell"]
        scripts, answers = cast(BinaryIO, process.stdin), cast(BinaryIO, process.stdout)
        scripts.write(json.dumps(script).encode() + b"\n")
        scripts.flush()
        if not select.select([answers], [], [], START_S)[0]:
            raise RuntimeError(f"no answer in {START_S:.0f} s: {script}")
        said = json.loads(answers.readline() or b'"the shell has ended"')
        if said:
            raise RuntimeError(said[-2000:])

    def stop(self, name: str) -> None:
        process = self.processes.pop(name, None)
        if process is not None:
            process.kill()
            process.wait(timeout=10)
            for pipe in filter(None, (process.stdin, process.stdout)):
                pipe.close()


@functools.cache
def peopled() -> tuple[Path, dict[str, str]]:
    """Return a data folder with the people of USERS, created once to be copied, and the keys of their sessions."""
    folder = Path(tempfile.mkdtemp(prefix="weir-people-", dir="/tmp"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    migrated(folder)
    environment = {
        **os.environ,
        "WEIR_DATA_DIR": str(folder),
        "DATABASE_URL": f"sqlite://{folder / 'weir.sqlite3'}",
        "DJANGO_SETTINGS_MODULE": "controlplane.settings",
    }
    command = [sys.executable, "manage.py", "shell", "--verbosity", "0", "-c", USERS]
    made = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True, timeout=START_S
    )
    return folder, json.loads(made.stdout)


@contextmanager
def serving() -> Iterator[Web]:
    """Yield a web process with the people vera (viewer), otto (operator) and ada (admin), all with PASSWORD."""
    folder = Path(tempfile.mkdtemp(prefix="weir-web-", dir="/tmp"))
    environment = {
        **os.environ,
        "WEIR_DATA_DIR": str(folder),
        "REDIS_URL": f"unix://{folder / 'run' / 'redis.sock'}",
        "DATABASE_URL": f"sqlite://{folder / 'weir.sqlite3'}",
        "DJANGO_SETTINGS_MODULE": "controlplane.settings",
        "WEIR_EMBED_ORIGINS": f"http://127.0.0.1:{free_port()}",
    }
    served = Web(folder, free_port(), environment)
    try:
        served.start_redis()
        people, served.sessions = peopled()
        for name in ("weir.sqlite3", "secret_key"):
            shutil.copy(people / name, folder / name)
        served.start()
        yield served
    finally:
        for name in list(served.processes):
            served.stop(name)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def web() -> Iterator[Web]:
    with serving() as served:
        yield served


@functools.cache
def launched() -> Browser:
    """Yield the only Chromium of this test process: every folder has its own `browser`, and Playwright cannot start
    twice."""
    playwright = sync_playwright().start()
    atexit.register(playwright.stop)
    return playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"])


@pytest.fixture(scope="session")
def browser() -> Browser:
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed: apt-get install chromium, or name it in WEIR_CHROMIUM")
    return launched()


# Charts are drawn, parts loaded after the page are in place, and a page of live data has drawn a frame.
DRAWN = """() => !document.querySelector('.chart-note, [hx-trigger=load]')
    && (!document.getElementById('age') || document.body.dataset.data === 'live')"""


@dataclass
class Opened:
    """A page and what went wrong on it: console errors, failed requests, requests to other hosts."""

    page: Page
    base: str
    faults: list[str] = field(default_factory=list)

    def watch(self) -> None:
        self.page.on("console", self._console)
        self.page.on("pageerror", lambda error: self.faults.append(f"error: {error}"))
        self.page.on("request", self._request)
        self.page.on("response", self._response)

    def _console(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.faults.append(f"console: {message.text}")

    def _request(self, request: Any) -> None:
        if not request.url.startswith((self.base, "data:", self.base.replace("http", "ws", 1))):
            self.faults.append(f"foreign request: {request.url}")

    def _response(self, response: Any) -> None:
        if response.status >= 400:
            self.faults.append(f"{response.status}: {response.url}")

    def goto(self, path: str) -> Page:
        self.page.goto(self.base + path)
        return self.page

    def drawn(self, path: str) -> Page:
        self.goto(path).wait_for_function(DRAWN, timeout=START_S * 1000)
        return self.page


@pytest.fixture
def open_page(web: Web, browser: Browser) -> Iterator[Callable[..., Opened]]:
    """Return `open_page(user="ada", width=1440, height=900)`, which opens a fresh browser context, signed in unless
    user is ""."""
    contexts = []

    def opened(user: str = "ada", width: int = 1440, height: int = 900, **options: Any) -> Opened:
        context = browser.new_context(viewport={"width": width, "height": height}, **options)
        contexts.append(context)
        context.set_default_navigation_timeout(START_S * 1000)
        context.add_cookies(web.cookies(user))
        made = Opened(context.new_page(), web.url)
        made.watch()
        return made

    yield opened
    for context in contexts:
        context.close()


def ended(condition: Callable[[], bool], within_s: float = 15.0) -> bool:
    """Return whether `condition` became true in time; polls."""
    end = time.monotonic() + within_s
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.05)
    return False

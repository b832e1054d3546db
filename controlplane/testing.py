"""Shared test fixtures: a data folder and a real Redis for each test process."""

import gc
import json
import os
import re
import shutil
import ssl
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import redis
from hypothesis import settings

from controlplane.tests.migrated import fill

if TYPE_CHECKING:
    from django.contrib.auth.models import User
    from django.test import Client

# Before Django's settings are read, so that tests never touch the developer's data folder, database or Redis. /tmp, not
# $TMPDIR, as a unix socket path is limited to 107 bytes.
_DATA = Path(tempfile.mkdtemp(prefix="weir-test-", dir="/tmp"))
_SOCKET = _DATA / "run" / "redis.sock"
os.environ["WEIR_DATA_DIR"] = str(_DATA)
os.environ["REDIS_URL"] = f"unix://{_SOCKET}"
os.environ["DATABASE_URL"] = os.environ.get("WEIR_TEST_DATABASE_URL", f"sqlite://{_DATA / 'weir.sqlite3'}")
os.environ.pop("WEIR_CELERY_BROKER_URL", None)
_POSTGRES = "WEIR_TEST_DATABASE_URL" in os.environ
_SYSTEM_REDIS = bool(os.environ.pop("WEIR_SYSTEM_REDIS", ""))
os.environ.setdefault("WEIR_TEST_RUN", str(_DATA))  # the folder of the first process, which ends last

# Each httpx client would create its own context and load all of the system's certificates into it, which takes 30 ms.
vars(ssl)["create_default_context"] = cache(ssl.create_default_context)
# redis-py would read its own version from disk for each connection, which takes longer than connecting.
vars(redis.utils)["get_lib_version"] = cache(redis.utils.get_lib_version)

# How long an example takes depends on the machine. The examples are the same each time, so that a change is judged by
# what it changed. WEIR_TEST_EXPLORE=1 looks for new ones.
settings.register_profile("weir", deadline=None, max_examples=50, derandomize=not os.environ.get("WEIR_TEST_EXPLORE"))
settings.load_profile("weir")


MARKS = ("attacks", "browser", "deploy", "engines", "slow")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--second-chance", action="store_true", help="name at the end each test of this run, which failed before"
    )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skip files whose import would be wasted, as importing all files takes longer than some targets: with `-m slow`
    and the like, files without such a test; with `-m "not slow"`, files that are slow as a whole."""
    if not collection_path.name.startswith("test_"):
        return None
    return is_left_out(collection_path.read_text(), config.option.markexpr) or None


def is_left_out(text: str, expression: str) -> bool:
    asked = [mark for mark in MARKS if re.search(rf"(?<!not ){mark}", expression)]
    if asked and not any(f"mark.{mark}" in text for mark in asked):
        return True
    whole = "".join(re.findall(r"^pytestmark = .*", text, re.MULTILINE))
    unwanted = re.findall(r"\bnot (\w+)", expression) if " or " not in expression else []
    return any(re.search(rf"mark\.{mark}\b", whole) for mark in unwanted)


def pytest_sessionstart(session: pytest.Session) -> None:
    """Let each process of xdist begin its imports at another place, so that on a fresh checkout each process compiles
    its share of the files and finds the rest compiled.
    """
    number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:])
    if number == 0:  # collection begins with the first file
        return
    root, named = session.config.rootpath, session.config.args
    paths = [path for name in named for path in sorted((root / name).rglob("test_*.py"))]
    first = len(paths) * number // int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    for path in paths[first:] + paths[:first]:
        if not pytest_ignore_collect(path, session.config):
            with suppress(Exception, pytest.skip.Exception):  # collection reports it
                import_module(".".join(path.relative_to(root).with_suffix("").parts))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Freeze what is imported and collected: it stays until the end, so the garbage collector need not search it."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


# What pytest-django does for each test by marks, mails and sites, of which Weir's tests use none.
UNUSED = {
    "_dj_autoclear_mailbox", "_django_clear_site_cache", "_django_isolate_apps", "_django_set_urlconf",
    "_template_string_if_invalid_marker",
}  # fmt: skip


@pytest.hookimpl(trylast=True)  # after `-m`
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out fixtures without effect, a third of the cost of a small test.

    On PostgreSQL, keep only tests that use a database, since the others are the same on every server: all tests that
    commit, which differ by the order of their transactions, all tests in a file about what a database does, and a few
    of every other file.
    """
    for names in (item.fixturenames for item in items if isinstance(item, pytest.Function)):
        unused = UNUSED if "live_server" in names else {*UNUSED, "_live_server_helper"}
        names[:] = [name for name in names if name not in unused]
    if _POSTGRES:
        files: dict[Path, list[pytest.Item]] = {}
        for item in filter(uses_database, items):
            files.setdefault(item.path, []).append(item)
        kept = {item for path, tests in files.items() for item in on_postgres(tests, path.read_text())}
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = [item for item in items if item in kept]


OF_DATABASES = re.compile(r"IntegrityError|DataError|CaptureQueries|MigrationExecutor|connection\.vendor|[Cc]onstraint")


def on_postgres(tests: list[pytest.Item], text: str) -> set[pytest.Item]:
    """Choose tests of a file with this text: one case of each test, as cases differ by their input; and, if no test is
    about databases, the first, the middle and the last, because the tests of a file mostly send the same queries. Pages
    that commit nothing are left out, as most read through selectors that REST routes also use.
    """
    others = sorted((test for test in tests if not commits(test) and not shows(test)), key=lambda test: test.nodeid)
    once = [*{test.nodeid.partition("[")[0]: test for test in reversed(others)}.values()]
    if once and not OF_DATABASES.search(text):
        once = [once[0], once[len(once) // 2], once[-1]]
    return {*filter(commits, tests), *once}


def uses_database(item: pytest.Item) -> bool:
    asked = {*getattr(item, "fixturenames", ())} & {"db", "transactional_db"}
    return bool(asked) or item.get_closest_marker("django_db") is not None


def shows(item: pytest.Item) -> bool:
    return item.path.stem.endswith(("_page", "_pages"))


def commits(item: pytest.Item) -> bool:
    mark = item.get_closest_marker("django_db")
    asked = {*getattr(item, "fixturenames", ())} & {"transactional_db", "live_server"}
    return bool(asked) or (mark is not None and bool(mark.kwargs.get("transaction")))


@pytest.hookimpl(tryfirst=True)  # before fixtures, which start engines
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test that would begin after WEIR_TESTS_UNTIL, in Unix seconds: a run with a time limit on a slow machine
    counts what it leaves out. A second chance is never skipped, as what failed would pass.
    """
    until = os.environ.get("WEIR_TESTS_UNTIL")
    if until and time.time() > float(until) and not item.config.getoption("--second-chance"):
        pytest.skip("no time is left for it")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Record a failure with its message at once, as a run that is cut off prints no summary."""
    path = os.environ.get("WEIR_SECOND_CHANCES")
    if path and report.failed and "PYTEST_XDIST_WORKER" not in os.environ:
        message = getattr(getattr(report.longrepr, "reprcrash", None), "message", report.longreprtext)
        with Path(f"{path}.failed").open("a") as kept:
            kept.write(f"{report.nodeid}, {report.when}: {' '.join(message.split())[:600]}\n")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Name and count tests that passed only at the second attempt, because such a pass hides a flaw in the tests or in
    the product. With WEIR_SECOND_CHANCES they are also appended to that file, which .ci/run prints at its end.
    """
    if not config.getoption("--second-chance"):
        return
    lines = second_chances(terminalreporter.stats)
    terminalreporter.section(f"second chances: {len(lines)}")
    for line in lines:
        terminalreporter.write_line(line)
    if path := os.environ.get("WEIR_SECOND_CHANCES"):
        with Path(path).open("a") as kept:
            kept.writelines(f"{line}\n" for line in lines)


def second_chances(stats: dict[str, list[Any]]) -> list[str]:
    """Return `passed` or `failed again` with each test's name, in the order of names."""
    failed = {report.nodeid for kind in ("failed", "error") for report in stats.get(kind, ())}
    passed = {report.nodeid for report in stats.get("passed", ())} - failed
    outcomes = dict.fromkeys(passed, "passed") | dict.fromkeys(failed, "failed again")
    return [f"{outcomes[name]}: {name}" for name in sorted(outcomes)]


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """Return the URL of a Redis server that runs as long as this test process; every test finds it empty."""
    from controlplane.base.process import redis_server

    _SOCKET.parent.mkdir(parents=True, exist_ok=True)
    command = redis_server.arguments(redis_server.find_server(_SYSTEM_REDIS), _SOCKET)
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT)
    try:
        redis_server.wait_until_ready(os.environ["REDIS_URL"], process)
        yield os.environ["REDIS_URL"]
    finally:
        process.terminate()
        process.wait(timeout=10)


@pytest.fixture(scope="session")
def start_redis() -> Callable[[Path], "subprocess.Popen[bytes]"]:
    """Start a Redis server for one test on a socket, and return once it answers; the test ends it."""
    from controlplane.base.process import redis_server

    def start(socket: Path) -> "subprocess.Popen[bytes]":
        command = redis_server.arguments(redis_server.find_server(_SYSTEM_REDIS), socket)
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT)
        redis_server.wait_until_ready(f"unix://{socket}", process)
        return process

    return start


@pytest.fixture(scope="session", autouse=True)
def static_files_are_listed_once() -> Iterator[None]:
    """Cache the list of static files: each test client creates the middlewares again, and that of static files takes
    40 ms to list them."""
    from django import conf
    from servestatic.middleware import ServeStaticMiddleware

    lists, found = ServeStaticMiddleware.add_files_from_finders, dict[str, Any]()

    def once(middleware: ServeStaticMiddleware) -> None:
        folders = str(conf.settings.STATICFILES_DIRS)  # a test may have its own folders
        if folders not in found:
            lists(middleware)
            found[folders] = {"files": middleware.files, "directories": middleware.directories}
        vars(middleware).update(found[folders])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ServeStaticMiddleware, "add_files_from_finders", once)
        yield


@pytest.fixture(scope="session", autouse=True)
def emptied_tables_stay_empty() -> Iterator[None]:
    """Keep emptied tables empty: after each test that commits, Django would create the rows of its permissions
    again, which takes 0.3 s, although Weir reads none."""
    from django.core.management.commands import flush

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flush, "emit_post_migrate_signal", lambda *_, **__: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def migrations_run_once() -> Iterator[None]:
    """Copy the tables that the first process has created, as all migrations take each process seconds."""
    from django.core.management.commands import migrate
    from django.db import connection

    run = migrate.Command.handle

    def once(command: migrate.Command, *given: Any, **named: Any) -> None:
        in_memory = not _POSTGRES and connection.settings_dict["NAME"].startswith("file:memory")
        if in_memory and not connection.introspection.table_names():
            fill(connection.connection, lambda: run(command, *given, **named))
        else:
            run(command, *given, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(migrate.Command, "handle", once)
        yield


@pytest.fixture(autouse=True)
def own_environment() -> Iterator[None]:
    """Undo a test's changes to `os.environ`, as the next test starts processes with it."""
    before = dict(os.environ)
    yield
    now = dict(os.environ)  # pytest itself sets one variable in each phase
    for name in now.keys() - before.keys():
        del os.environ[name]
    os.environ.update(before.items() - now.items())


@pytest.fixture(scope="session")
def redis_client(redis_url: str) -> Iterator[redis.Redis]:
    """Return one connection for all tests, as opening one takes longer than most tests."""
    with redis.Redis.from_url(redis_url, socket_timeout=30) as client:
        yield client


@pytest.fixture(autouse=True)
def live_redis(redis_client: redis.Redis) -> redis.Redis:
    """Return a client of an empty Redis, to which Django's code under test also connects. Every test uses it, so that
    none sees what another has left, and the server does not depend on the order of the tests. Tests that need Redis to
    be unreachable use `redis_away`.
    """
    from controlplane.live.dashboard.charted import ranges

    redis_client.flushall()
    ranges.forget()
    return redis_client


@pytest.fixture(scope="session", autouse=True)
def no_transaction_waits_for_redis() -> Iterator[None]:
    """Fail the test on a call to Redis within a transaction, which would keep others from writing to SQLite."""
    from django.db import connection

    asked: Any = redis.connection.AbstractConnection
    send = asked.send_packed_command

    def outside(*given: Any, **named: Any) -> None:
        blocks: list[Any] = connection.atomic_blocks
        if not all(block._from_testcase for block in blocks):
            pytest.fail("Redis was asked within a transaction")
        send(*given, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asked, "send_packed_command", outside)
        yield


@pytest.fixture
def data_dir(tmp_path: Path, settings: Any) -> Path:
    """A data folder for one test."""
    settings.DATA_DIR = tmp_path
    return tmp_path


@pytest.fixture
def redis_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make connections to the control plane's Redis fail."""
    from fleet.redis import connect

    def refuse(*_: object, **__: object) -> None:
        raise redis.ConnectionError("Connection refused")

    monkeypatch.setattr(connect().connection_pool, "get_connection", refuse)


# The cast: ada administers, otto operates, vera only reads; ci is a machine that acts for otto.


def _person(name: str, role: str) -> "User":
    from django.contrib.auth.models import Group, User

    user = User.objects.create_user(name)
    user.groups.add(Group.objects.get_or_create(name=role)[0])  # a test that commits leaves none behind
    return user


def _signed_in(user: "User") -> "Client":
    from django.test import Client

    client = Client()
    client.force_login(user)
    return client


@pytest.fixture
def ada(db: None) -> "User":
    return _person("ada", "admin")


@pytest.fixture
def otto(db: None) -> "User":
    return _person("otto", "operator")


@pytest.fixture
def vera(db: None) -> "User":
    return _person("vera", "viewer")


@pytest.fixture
def ada_client(ada: "User") -> "Client":
    return _signed_in(ada)


@pytest.fixture
def otto_client(otto: "User") -> "Client":
    return _signed_in(otto)


@pytest.fixture
def vera_client(vera: "User") -> "Client":
    return _signed_in(vera)


class ApiCaller:
    """Calls the REST API with a token; bodies are JSON."""

    def __init__(self, token: str) -> None:
        from django.test import Client

        self.token = token
        self._client = Client(raise_request_exception=False)

    def call(self, method: str, path: str, body: object = None, **headers: str) -> Any:
        headers = {"Authorization": f"Bearer {self.token}", **{k.replace("_", "-"): v for k, v in headers.items()}}
        sent: dict[str, Any] = {} if body is None else {"data": json.dumps(body), "content_type": "application/json"}
        return self._client.generic(method, f"/api/v1{path}", headers=headers, **sent)

    def get(self, path: str, **headers: str) -> Any:
        return self.call("GET", path, **headers)

    def post(self, path: str, body: object = None, **headers: str) -> Any:
        return self.call("POST", path, body, **headers)

    def patch(self, path: str, body: object, **headers: str) -> Any:
        return self.call("PATCH", path, body, **headers)

    def delete(self, path: str, **headers: str) -> Any:
        return self.call("DELETE", path, **headers)


def api_caller(user: "User", *scopes: str) -> ApiCaller:
    """Return a caller with a token of the user; no scopes means everything that the user's role allows."""
    from controlplane.people.accounts.models import ApiToken
    from controlplane.people.permissions import scopes_of

    _, token = ApiToken.issue(user=user, name="ci", scopes=scopes or scopes_of(user))
    return ApiCaller(token)


@pytest.fixture
def ci(otto: "User") -> ApiCaller:
    return api_caller(otto)


@pytest.fixture
def ada_api(ada: "User") -> ApiCaller:
    return api_caller(ada)


def pytest_unconfigure() -> None:
    shutil.rmtree(_DATA, ignore_errors=True)

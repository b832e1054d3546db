"""No request of a viewer makes the web process compute for long, however large its inputs are.
Function calls are counted instead of time: a million of them take about a second of CPU. Longer computations run
outside the web process (controlplane/common/computing.py), limited by their inputs and by turns.
"""

import json
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any
from urllib.parse import urlencode

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import get_resolver

from controlplane.common import computing
from controlplane.doors.api.api import api
from controlplane.evidence.systems.registry import SYSTEMS, inputs_of
from controlplane.evidence.systems.system import System
from controlplane.evidence.traces import library
from controlplane.evidence.traces.tests.conftest import mooncake_line
from controlplane.people.accounts.tests.test_closed_by_default import concrete, patterns
from controlplane.people.permissions import ROLE_SCOPES
from controlplane.testing import ApiCaller, api_caller
from fleet.kinds.options.option import options_of
from router.contract.redis import redis_keys
from router.contract.values.problem import InvalidInput

pytestmark = [pytest.mark.django_db, pytest.mark.attacks]
MOST_CALLS = 1_000_000
LARGE = 3_000  # requests of the trace; in the web process they would take more than MOST_CALLS
UNASKED = ("api/", "static/", "logout")


@contextmanager
def counted() -> Iterator[list[int]]:
    """Count the calls of Python and built-in functions by this thread."""
    calls = [0]

    def count(frame: Any, event: str, argument: Any) -> None:
        if event in ("call", "c_call"):
            calls[0] += 1

    sys.setprofile(count)
    try:
        yield calls
    finally:
        sys.setprofile(None)


@pytest.fixture
def vera_api(vera: User) -> ApiCaller:
    return api_caller(vera)


@pytest.fixture
def beside(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Run computations in this process that would run outside the web process, without counting them. Summaries of
    built-in traces, computed once per process, are not counted either.
    """
    library.entries(with_built_in=True)
    computing.REMEMBERING.clear()
    names: list[str] = []

    def run(function: Callable[..., Any], given: tuple[Any, ...]) -> Any:
        names.append(function.__module__)
        counting = sys.getprofile()
        sys.setprofile(None)
        try:
            return function(*given)
        finally:
            sys.setprofile(counting)

    monkeypatch.setattr(computing, "_beside", run)
    yield names
    computing.REMEMBERING.clear()


@pytest.fixture
def large(data_dir: Any) -> str:
    """A stored trace whose blocks never follow one another, which takes longest to read."""
    lines = (mooncake_line(timestamp=9 * i, input_length=2048, hash_ids=[i, i + 9, i + 3, i + 6]) for i in range(LARGE))
    folder = data_dir / "folder"
    folder.mkdir()
    (folder / "large.jsonl").write_text("\n".join(lines))
    return "large.jsonl"


def greatest(system: System) -> dict[str, Any]:
    """Set each number to its maximum, as far as the rules between inputs allow."""
    given: dict[str, Any] = {}
    for one in options_of(system.inputs):
        if one.kind in ("int", "float") and is_valid(system, given | {one.name: one.maximum}):
            given[one.name] = one.maximum
    return given


def calls_of(client: Client | ApiCaller, address: str) -> int:
    with counted() as calls:
        assert client.get(address).status_code < 500
    return calls[0]


def is_valid(system: System, given: dict[str, Any]) -> bool:
    try:
        inputs_of(system, given)
    except InvalidInput:
        return False
    return True


@pytest.mark.parametrize("system", SYSTEMS.values(), ids=lambda system: system.slug)
def test_a_system_with_maximal_inputs_leaves_the_web_process_free(
    system: System, vera_api: ApiCaller, vera_client: Client, beside: list[str]
) -> None:
    given = greatest(system)
    assert len(given) > 8
    with counted() as calls:
        answer = vera_api.post(f"/systems/{system.slug}", {"inputs": given})
    assert answer.status_code == 200, answer.content
    assert calls[0] < MOST_CALLS
    pages = f"/systems/{system.slug}/?{urlencode(given)}", f"/systems/{system.slug}/figures/"
    counts = [calls_of(vera_client, page) for page in pages]
    assert max(*counts, calls_of(vera_api, f"/systems/{system.slug}/figures")) < MOST_CALLS


def test_the_product_of_runs_and_requests_is_bounded_and_its_limit_named(vera_api: ApiCaller) -> None:
    answer = vera_api.post("/systems/tutti", {"inputs": {"runs": 9, "requests": 1_000}})
    assert answer.status_code == 422
    (problem,) = answer.json()["errors"]
    assert (problem["path"], problem["value"]) == ("inputs.requests", 1_000)
    assert "at most 444 with 9 runs: 4,000 in all" in problem["message"]


def test_a_large_trace_is_always_read_outside_the_web_process(
    large: str,
    vera_api: ApiCaller,
    vera_client: Client,
    beside: list[str],
    monkeypatch: pytest.MonkeyPatch,
    data_dir: Any,
) -> None:
    monkeypatch.setenv("WEIR_TRACE_DIR", str(data_dir / "folder"))
    doors: list[Callable[[], Any]] = [
        lambda: vera_api.get(f"/traces/{large}"),
        lambda: vera_client.get("/experiments/traces/"),
        lambda: vera_api.post("/systems/offload", {"inputs": {"trace": large}}),
        lambda: vera_client.get("/systems/offload/", {"trace": large}),
    ]
    for door in doors:
        with counted() as calls:
            assert door().status_code == 200
        assert calls[0] < MOST_CALLS
    assert vera_api.get(f"/traces/{large}").json()["summary"]["requests"] == LARGE
    assert beside == ["controlplane.evidence.traces.summary", "controlplane.evidence.systems.offload_trace"]
    with counted() as calls:
        library.registry.read(library.content(large), 1)
    assert calls[0] > MOST_CALLS / 10  # so the limit would be exceeded


def test_the_texts_of_a_form_that_viewers_may_post_are_read_only_up_to_their_limit(vera_client: Client) -> None:
    """The form shows the command of an experiment to everybody who fills it in."""
    values = {"seeds": "1 " * 400_000, "more_arms": "a\n" * 400_000, "slo": json.dumps(dict.fromkeys(range(60_000)))}
    vera_client.post("/experiments/curl", {"name": "x"})  # The first request of a process imports what it needs.
    for name, text in values.items():
        with counted() as calls:
            answer = vera_client.post("/experiments/curl", {"name": "x", name: text})
        assert (answer.status_code, calls[0] < MOST_CALLS / 5) == (200, True), name


def pages() -> Iterator[str]:
    return (concrete(route) for route in patterns(get_resolver()) if not route.startswith(UNASKED))


def addresses() -> Iterator[str]:
    """Return all addresses of the web process that a viewer may GET."""
    return chain(pages(), (f"/api/v1{address}" for address in operations()))


def operations() -> Iterator[str]:
    """Return the address of each operation that a viewer may GET, with its numbers at their maximum."""
    for path, methods in api.get_openapi_schema()["paths"].items():
        operation = methods.get("get", {})
        scopes = {scope for way in operation.get("security", ()) for each in way.values() for scope in each}
        if operation and scopes <= ROLE_SCOPES["viewer"]:
            yield f"{filled(path)}?{urlencode(numbers(operation))}"


def numbers(operation: dict[str, Any]) -> dict[str, Any]:
    asked = [each for each in operation.get("parameters", ()) if each["in"] == "query"]
    return {each["name"]: each["schema"]["maximum"] for each in asked if "maximum" in each["schema"]}


def filled(path: str) -> str:
    known = {"{slug}": "tutti", "{name}": "recorded:demo" if "/traces/" in path else "default", "{request_id}": "none"}
    for part, value in known.items():
        path = path.replace(part, value)
    return re.sub(r"{\w+}", "1", path).removeprefix("/api/v1")


def test_no_page_and_no_operation_of_a_viewer_computes_for_long(
    vera_client: Client, vera_api: ApiCaller, beside: list[str], live_redis: Any
) -> None:
    """Redis holds a tenth of the maximal recorded traffic."""
    record_traffic(live_redis, redis_keys.TRAFFIC_KEPT // 10)
    asked = [(vera_client, address) for address in pages()] + [(vera_api, address) for address in operations()]
    calls = {address: calls_of(client, address) for client, address in asked}
    assert len(calls) > 100
    assert {address: count for address, count in calls.items() if count >= MOST_CALLS} == {}


def record_traffic(live_redis: Any, entries: int) -> None:
    sizes = {"input_tokens": 600, "output_tokens": 3, "block_tokens": 512, "blocks": "AAAAAAAAAAA="}
    entry = json.dumps({"schema": 1, "at": 1, "pool": "demo", "outcome": "ok"} | sizes)
    pipe = live_redis.pipeline()
    for _ in range(entries):
        pipe.xadd(redis_keys.TRAFFIC, {"p": "demo", "t": entry})
    pipe.execute()

"""Real vLLM: callers with different keys share no block, and refusals and missing features of an engine are
reported."""

import hashlib
import json
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import pytest

from router.contract.redis.api_keys import MARK
from router.tests.agents.__main__ import BLOCK, ENGINES, MODEL, ON_CPU, Receipt, get, process, receipts, until
from router.tests.engines.hybrids import command
from router.tests.engines.request_kinds import LIMITS
from router.tests.ports import free_ports
from router.tests.tokenize.shapes import CHAT, RESPONSES
from router.tokenize import salt

pytestmark = [pytest.mark.engines, pytest.mark.timeout(900)]
KEYS = {name: f"{MARK.decode()}of-{name}" for name in ("alice", "bob")}
LONG = " ".join(f"river {number} weir token" for number in range(80))
SAID = [{"role": "user", "content": LONG}]


def body_of(path: str) -> dict[str, Any]:
    """Return a prompt that is sent to no other API."""
    text = f"{path}: {LONG}"
    said = [{"role": "user", "content": text}]
    made: dict[str, dict[str, Any]] = {"/v1/completions": {"prompt": text}, RESPONSES: {"input": text}}
    return made.get(path, {"messages": said})


@pytest.fixture(scope="module")
def routers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, str]]:
    """The URLs of two routers with one engine each: one router gives every key a separate salt; the other's engine
    caches no prefixes.
    """
    folder = tmp_path_factory.mktemp("callers")
    (folder / "model").symlink_to(ENGINES / "tiny-model")
    hashes = [{"name": name, "sha256": hashlib.sha256(key.encode()).hexdigest()} for name, key in KEYS.items()]
    (folder / "keys.json").write_text(json.dumps({"required": False, "salt_by_key": True, "keys": hashes}))
    urls, options = {}, {"salts": "--enable-prefix-caching", "uncached": "--no-enable-prefix-caching"}
    with ExitStack() as stack:
        for name, option in options.items():
            router, *ports = free_ports(4)
            words = command(folder, ports, ("--block-size", str(BLOCK), option))
            stack.enter_context(process(words, folder / f"{name}.log", **ON_CPU))
            events = f"tcp://127.0.0.1:{ports[1]}?replay=tcp://127.0.0.1:{ports[2]}&topic=kv"
            listed = f"http://127.0.0.1:{ports[0]};id={name};events={events};tokenizer={folder / 'model'}"
            weir = ["-m", "router", "--port", router, "--instances", listed, "--keys", folder / "keys.json"]
            stack.enter_context(process([ENGINES.parent / ".venv/bin/python", *weir], folder / f"{name}-router.log"))
            urls[name] = f"http://127.0.0.1:{router}"
        for url, index in zip(urls.values(), ("exact", "none"), strict=True):
            until(lambda url=url, index=index: get(f"{url}/healthz")["instances"][0]["index"] == index, url)
        yield urls


def ask(url: str, path: str, caller: str = "", **body: Any) -> tuple[int, Any, str]:
    """Return status, answer and the request's id."""
    head = {"content-type": "application/json"}
    head |= {"authorization": f"Bearer {KEYS[caller]}"} if caller else {}
    made = {"model": MODEL, LIMITS[path]: 1, "temperature": 0, **(body or body_of(path))}
    try:
        asked = urllib.request.Request(url + path, json.dumps(made).encode(), head)
        with urllib.request.urlopen(asked, timeout=300) as answer:
            return answer.status, json.load(answer), answer.headers["x-request-id"]
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read()), error.headers["x-request-id"]


def told(url: str, request_id: str) -> Receipt:
    return next(each for each in receipts(url, 0.0) if each["request_id"] == request_id)


@pytest.mark.parametrize("path", LIMITS)
def test_no_caller_hits_blocks_computed_for_another_key_and_its_own_hits_are_predicted_exactly(
    routers: Mapping[str, str], path: str
) -> None:
    url, seen = routers["salts"], []
    for caller in ("alice", "bob", ""):
        for _ in range(2):
            status, _, name = ask(url, path, caller)
            made = told(url, name)
            assert (status, made["index"], made["predicted_cached"]) == (200, "exact", made["cached_tokens"])
            seen.append(made["cached_tokens"])
    assert seen[::2] == [0, 0, 0]
    assert min(seen[1::2]) > 10 * BLOCK
    _, _, name = ask(url, path, **body_of(path), cache_salt=salt.of_key(None, "alice"))
    assert told(url, name)["cached_tokens"] == 0


def test_no_hits_are_predicted_or_reported_for_an_engine_without_prefix_caching(
    routers: Mapping[str, str],
) -> None:
    url = routers["uncached"]
    for _ in range(3):
        made = told(url, ask(url, CHAT)[2])
        assert (made["index"], made["predicted_cached"], made["cached_tokens"] or 0) == ("none", 0, 0)
    assert "prefix caching is off" in made["index_reason"]


def test_the_engine_refuses_an_item_named_by_its_id_and_reports_the_name(
    routers: Mapping[str, str],
) -> None:
    """The Vercel AI SDK names an assistant's turn by id, unless its option `store` is false."""
    url, turn = routers["salts"], {"role": "user", "content": "so?"}
    status, first, _ = ask(url, RESPONSES)
    assert status == 200
    named = {"type": "item_reference", "id": first["output"][0]["id"]}
    status, answer, _ = ask(url, RESPONSES, input=[*SAID, named, turn])
    assert (status, "item_reference" in answer["error"]["message"]) == (400, True)
    status, _, _ = ask(url, RESPONSES, input=[*SAID, first["output"][0], turn])
    assert status == 200

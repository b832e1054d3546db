"""A real collector (rotel) receives what the router exports: one trace from the client to every engine."""

import re
import subprocess
import tempfile
from collections.abc import AsyncIterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
import pytest

from router.spans.settings import SpanSettings
from router.telemetry import tracer
from router.tests.conftest import World, entry
from router.tests.engine import ANSWER, hang_up, reply
from router.tests.ports import free_port
from router.tests.spans.test_requests import OFFLOADED, SAMPLED, SPAN, TRACE, parent

pytestmark = pytest.mark.spans

SHOWN = re.compile(r"Trace ID\s*: (\w+)\s+Parent ID\s*: (\w*)\s+ID\s*: (\w+)\s+Name\s*: (.+?)\s*\n")


class Rotel:
    def __init__(self, folder: Path) -> None:
        found = find_spec("rotel")
        assert found is not None, "rotel is not installed: make test-spans installs it (requirements-spans.txt)"
        assert found.origin is not None
        self.port = free_port()
        self.log = tempfile.TemporaryFile(mode="w+")  # noqa: SIM115 - open as long as the process
        addresses = [
            "--otlp-http-endpoint",
            f"127.0.0.1:{self.port}",
            "--otlp-grpc-endpoint",
            f"127.0.0.1:{free_port()}",
        ]
        shown = ["--debug-log", "traces", "--debug-log-verbosity", "detailed", "--exporter", "blackhole"]
        program = Path(found.origin).parent / "rotel-agent"
        files = ["--pid-file", str(folder / "pid"), "--log-file", str(folder / "log")]
        self.process = subprocess.Popen(
            [program, "start", *files, *addresses, *shown], stdout=self.log, stderr=subprocess.STDOUT
        )

    def shown(self) -> str:
        self.log.seek(0)
        return self.log.read()

    def listens(self) -> bool:
        assert self.process.poll() is None, self.shown()
        try:
            return httpx.get(f"http://127.0.0.1:{self.port}/").status_code > 0
        except httpx.TransportError:
            return False

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
        self.log.close()


@pytest.fixture
async def rotel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Rotel]:
    monkeypatch.setattr(tracer, "MAKE_S", 0.01)
    made = Rotel(tmp_path)
    try:
        yield made
    finally:
        made.stop()


async def test_one_trace_over_an_offload_and_a_retry(world: Any, rotel: Rotel) -> None:
    held = ANSWER | {"usage": {"prompt_tokens": 100}, "kv_transfer_params": {"do_remote_prefill": True}}
    spans = SpanSettings(f"http://127.0.0.1:{rotel.port}/v1/traces", delay_s=0.05, gzip=True)
    w: World = await world(reply(held), None, None, strategy="adaptive_v1", spans=spans, **OFFLOADED)
    w.engines[1].script = w.engines[2].script = [hang_up]  # whichever of them decodes first
    kv, roles = {"connector": "nixl", "kv": {"bytes_per_token": 10}}, ("prefill", "decode", "decode")
    w.published.fleet(*(entry(f"demo-{i}", w.engines[i].url, role=role, **kv) for i, role in enumerate(roles)))
    pool = w.router.pools.get("demo")
    await w.until(lambda: pool is not None and pool.endpoints["demo-2"].role == "decode")
    await w.until(rotel.listens, "rotel")
    answer = await w.ask(prompt="the quick brown fox " * 400, stream=True, headers=SAMPLED)
    assert answer.headers["x-weir-flow"] == "offload_nixl"

    found: list[tuple[str, str, str, str]] = []
    await w.until(lambda: found.extend(SHOWN.findall(rotel.shown())) or found, "spans")
    assert {trace for trace, *_ in found} == {TRACE}
    names = [name for *_, name in found]
    assert names == [
        *("POST /v1/completions", "decide", "decide", "prefill", "prefill"),
        *("text_completion llama", "text_completion llama", "transfer", "decode"),
    ]
    ids = {id_: name for *_, id_, name in found}
    assert [above for _, above, _, name in found if name.startswith("POST")] == [SPAN]
    assert all(above in ids or above == SPAN for _, above, *_ in found)
    asked = [parent(one, i)[1] for one in w.engines for i in range(len(one.received))]
    assert sorted(ids[span] for span in asked) == ["prefill"] * 2 + ["text_completion llama"] * 2
    assert len(set(asked)) == 4

"""Creating a pool with the form: with engines that start, with engines for which this host lacks something, and with
running engines.
"""

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import expect

from controlplane.doors.up.plan import celery
from controlplane.testing_browser import ROOT, Web, ended, serving
from fleet.kinds import KINDS
from fleet.node import process
from fleet.observe.lacking import OF_TRTLLM
from fleet.tests.discovery.other_engines import SERVERS, OtherEngine, sglang_info
from router.tests.certificates import Authority
from router.tests.ports import engine_ports, free_port

pytestmark = pytest.mark.browser
PREPARED = "from controlplane.traffic.policies.services import ensure_default_policy; ensure_default_policy()"
STARTED_MS = 90_000


@pytest.fixture(scope="module")
def web() -> Iterator[Web]:
    """A web process with a worker that carries out what is applied."""
    with serving() as served:
        served.run(PREPARED)
        served.environment["WEIR_ENGINE_PORTS"] = "{}-{}".format(*engine_ports())
        argv = celery(
            sys.executable, "control@local", "control,node.local", "--concurrency=4", "--control", "--node", "local"
        )
        with (served.folder / "worker.log").open("wb") as log:
            worker = subprocess.Popen(argv, cwd=ROOT, env=served.environment, stdout=log, stderr=log)
        served.processes["worker"] = worker
        try:
            yield served
        finally:
            served.stop("worker")
            for pid, started in process.find({"WEIR_FLEET": str(served.folder)}):
                process.stop(pid, started, grace_s=0)


def choose(page: Any, kind: str) -> None:
    page.wait_for_load_state()  # from then on htmx notices changes
    page.select_option("#f-kind", kind)
    expect(page.locator("#pool-fields")).to_contain_text(f"{KINDS[kind].title} options")


def test_a_pool_of_simulated_engines_goes_from_the_form_to_ready(web: Web, open_page: Any) -> None:
    opened = open_page("otto")
    page = opened.goto("/fleet/")
    page.get_by_text("Add a pool").click()
    page.fill("#f-name", "night")
    page.fill("#f-model", "llama-3.1-8b")
    choose(page, "sim")
    assert page.input_value("#f-name") == "night", "what was typed stays when the kind changes"
    page.locator("#more-options > summary").click()
    page.fill("[id='f-engine.time_scale']", "20")
    page.get_by_role("button", name="Show changes").last.click()
    plan = page.locator("main")
    expect(plan).to_contain_text("-m fleet.simengine")
    expect(plan).to_contain_text("--time-scale 20")
    assert page.locator("main dl.kv").first.inner_text().split()[-2:] == ["time_scale", "20"], "only what is set"
    assert page.evaluate("document.documentElement.scrollHeight") < 1_500
    page.fill("#reason", "for the night shift")
    page.get_by_text("Apply 1 change").click()
    page.wait_for_url("**/fleet/", timeout=STARTED_MS)
    pool = page.locator("section", has=page.locator("#pool-night"))
    expect(pool).to_contain_text("1 of 1 ready", timeout=STARTED_MS)
    page.click("#to-night-0")
    expect(page.locator(".timeline")).to_contain_text("ready")
    assert opened.faults == []


def test_a_vllm_pool_shows_its_command_line_and_what_this_host_lacks(web: Web, open_page: Any, tmp_path: Path) -> None:
    page = open_page("otto").goto("/fleet/new-pool?kind=vllm")
    page.fill("#f-name", "chat")
    page.fill("#f-model", "llama-3.1-8b")
    page.fill("[id='f-engine.python']", str(tmp_path / "bin" / "python"))
    page.fill("[id='f-engine.model']", str(tmp_path / "weights"))
    page.locator("#more-options > summary").click()
    page.fill("[id='f-engine.environment']", "HF_TOKEN=hf_very_secret\nNCCL_DEBUG=INFO")
    page.get_by_role("button", name="Show changes").last.click()
    page.get_by_text("Command and files").click()
    said = page.locator("main").inner_text()
    assert f"{tmp_path}/bin/python -m vllm.entrypoints.cli.main serve {tmp_path}/weights " in said
    assert "--served-model-name llama-3.1-8b" in said
    assert "NCCL_DEBUG='(hidden)'" in said
    assert "Host checks failed." in said
    assert "set engine.python to the interpreter of vLLM's environment" in said
    assert "set engine.model to the model's folder" in said
    for shown in page.locator("code, p.mono").all():
        assert "HF_TOKEN=hf_very_secret" not in shown.inner_text()


def test_an_invalid_field_says_why_at_its_place(web: Web, open_page: Any) -> None:
    page = open_page("otto").goto("/fleet/new-pool?kind=sim")
    page.fill("#f-name", "No Such Name")
    page.fill("#f-model", "m")
    page.locator("#more-options > summary").click()
    page.fill("[id='f-engine.time_scale']", "fast")
    page.get_by_role("button", name="Show changes").last.click()
    expect(page.locator("[role='alert']")).to_contain_text("Please correct ")
    for name in ("f-name", "f-engine.time_scale"):
        assert page.locator(f"[id='{name}']").get_attribute("aria-invalid") == "true"
    assert page.input_value("[id='f-engine.time_scale']") == "fast"
    expect(page.locator("[id='f-engine.time_scale']")).to_be_visible()


@pytest.fixture
def engines() -> Iterator[list[str]]:
    """Four engines that someone has started by hand."""
    ports = [free_port() for _ in range(4)]
    argv = [sys.executable, "-m", "fleet.simengine", "--model", "llama-3.1-8b", "--time-scale", "10"]
    made = [subprocess.Popen([*argv, "--port", str(port)], cwd=ROOT) for port in ports]
    yield [f"http://127.0.0.1:{port}" for port in ports]
    for engine in made:
        engine.kill()
        engine.wait()


def answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=5).is_success
    except httpx.TransportError:
        return False


def test_running_engines_are_adopted_observed_and_served(web: Web, engines: list[str], open_page: Any) -> None:
    """One form and one click are enough."""
    opened = open_page("otto")
    page = opened.goto("/fleet/")
    assert ended(lambda: all(map(answers, engines)), STARTED_MS / 1000)
    page.get_by_text("Adopt a running fleet").click()
    page.fill("#f-urls", "\n".join(engines))
    page.get_by_role("button", name="Look").click()
    found = page.locator("#found")
    expect(found).to_contain_text("4 answering")
    expect(found.get_by_text("vLLM")).to_have_count(4)
    page.get_by_role("button", name="Adopt, and observe").click()
    page.wait_for_url("**/fleet/", timeout=STARTED_MS)
    pool = page.locator("section", has=page.locator("#pool-adopted"))
    expect(pool).to_contain_text("4 of 4 ready", timeout=STARTED_MS)
    expect(pool).to_contain_text("observed only")
    page = opened.goto("/fleet/pools/adopted/")
    page.fill("#serve-reason", "it looks right")
    page.get_by_role("button", name="Serve it through Weir").click()
    expect(page.locator("main")).not_to_contain_text("observed only")
    assert opened.faults == []


def test_a_mixed_fleet_is_adopted_by_following_the_page(web: Web, open_page: Any, tmp_path: Path) -> None:
    """vLLM with a key and TLS, SGLang with ranks, TensorRT-LLM with KV events: as a new user would, by trial and
    error."""
    authority, key = Authority(tmp_path, "own"), tmp_path / "engine.key"
    key.write_text("sk-engine-1")
    vllm = OtherEngine(SERVERS["vllm"], secure=authority.issue("127.0.0.1").server())
    vllm.key = key.read_text()
    sglang = OtherEngine({**SERVERS["sglang"], "/server_info": sglang_info(dp_size=4)})
    trtllm = OtherEngine({**SERVERS["trtllm"], "/version": '{"version": "1.4.0rc1"}'})
    opened, began = open_page("otto"), time.monotonic()
    tries: tuple[tuple[str, OtherEngine, tuple[tuple[str, str, str], ...]], ...] = (
        (
            "one",
            vllm,
            (
                ("", "", "no authority that is trusted here has signed it"),
                ("authorities", f"file:{authority.path}", "the engine asks for a key, and none is named"),
                ("engine_key", f"file:{key}", "1 answering"),
            ),
        ),
        ("two", sglang, (("", "", "4 ranks behind each"),)),
        ("three", trtllm, (("", "", OF_TRTLLM), ("kv_endpoint", "tcp://{host}:5557", "1 answering"))),
    )
    for name, engine, steps in tries:
        page = opened.goto("/fleet/adopt")
        page.fill("#f-urls", engine.url)
        page.fill("#f-name", name)
        for field, value, said in steps:
            if field:
                page.fill(f"#f-{field}", value)
            page.get_by_role("button", name="Look").click()
            expect(page.locator("main")).to_contain_text(said)
        page.get_by_role("button", name="Adopt, and observe").click()
        page.wait_for_url("**/fleet/", timeout=STARTED_MS)
        pool = page.locator("section", has=page.locator(f"#pool-{name}"))
        expect(pool).to_contain_text("1 of 1 ready", timeout=STARTED_MS)
        page = opened.goto(f"/fleet/pools/{name}/")
        page.fill("#serve-reason", "it looks right")
        page.get_by_role("button", name="Serve it through Weir").click()
        expect(page.locator("main")).not_to_contain_text("observed only")
        engine.close()
    print(f"ADOPTED three pools in {time.monotonic() - began:.0f} s")
    assert opened.faults == []

"""Live and the wall show a delivery beside its policy, count down, and keep an abort in red."""

import re
import time
from typing import Any

import pytest
from playwright.sync_api import expect

from controlplane.live.dashboard import step
from controlplane.live.dashboard.tests.browser.conftest import RunningFleet, write_delivery
from router.contract.redis import codec, redis_keys
from router.contract.redis.use import SavingLine, SavingLines

pytestmark = pytest.mark.browser


@pytest.mark.parametrize("path", ["/live", "/wall"])
def test_a_running_delivery_counts_down(running: RunningFleet, open_page: Any, path: str) -> None:
    write_delivery(running)
    opened = open_page("otto")
    page = opened.goto(path)
    line = page.locator(".delivery-line")
    expect(line).to_contain_text("v3 → v4 canary 25 % · heavy 1.04× (0.97–1.12×) · 4:")
    first = line.inner_text()
    expect(line).not_to_have_text(first)
    assert opened.faults == []


@pytest.mark.parametrize("path", ["/live", "/wall"])
def test_an_abort_is_red_and_needs_attention(running: RunningFleet, open_page: Any, path: str) -> None:
    write_delivery(running, state="aborted", word="aborted", step="", figure="", next_at=None, why="heavy TTFT × 2")
    page = open_page("otto").goto(path)
    expect(page.locator(".delivery-line[data-state=aborted]")).to_contain_text("v3 → v4 aborted")
    expect(page.locator("#attention [data-severity='3']")).to_contain_text("aborted: heavy TTFT × 2")


def test_the_saving_of_the_live_version_is_shown_beside_it_and_leads_to_its_preview(
    running: RunningFleet, open_page: Any
) -> None:
    live = step.current(running.fleet.client, time.time())
    assert live is not None
    policy, version = (live["policies"]["demo"][name] for name in ("policy", "version"))
    line = SavingLine(
        policy=policy,
        version=version,
        before=1,
        pool="demo",
        preview=7,
        requests=2000,
        at=1e9,
        gpu_s=0.01,
        dollars=1e-2,
        low=0.5,
        high=1.5,
    )
    running.fleet.client.set(redis_keys.SAVINGS, codec.encode(SavingLines(lines=(line,))))
    opened = open_page("otto")
    saving = opened.goto("/live").locator("[data-saving=demo]")
    expect(saving).to_contain_text("a day less than v1 (")
    expect(saving.locator("a")).to_have_attribute("href", f"/policies/{policy}/previews/7/")
    expect(opened.goto("/wall").locator("[data-saving]")).to_have_count(0)
    assert opened.faults == []


@pytest.mark.parametrize("path", ["/live", "/wall"])
def test_the_tiers_of_a_pool_are_shown_beside_its_policy_and_follow_it(
    running: RunningFleet, open_page: Any, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    plain, waits = running.fleet.sample, {"backlog_bytes": 0.0}
    monkeypatch.setattr(running.fleet, "sample", lambda *given: plain(*given) | {"kv_tiers": {"disk": dict(waits)}})
    opened = open_page("vera")
    line = opened.goto(path).locator("[data-tiers=demo]")
    for size in (1, 2):
        waits["backlog_bytes"] = size * 2.0**30
        each = rf"{size * len(running.fleet.names)}\.0"
        expect(line).to_contain_text(re.compile(rf"KV tiers disk {each}\sGB to be written"))
    expect(line.locator("a")).to_have_attribute("href", "/fleet/pools/demo/")
    assert opened.faults == []


def test_only_users_with_the_right_are_offered_a_rollback(running: RunningFleet, open_page: Any) -> None:
    write_delivery(running)
    assert open_page("vera").goto("/live").locator("text=Roll back").count() == 0
    page = open_page("otto").goto("/live")
    expect(page.locator("#policies").get_by_text("Roll back")).to_have_attribute("href", "/policies/default/rollback")

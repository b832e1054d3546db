"""All pages while processes are stopped, and once they continue: rows of the table in docs/operate.md."""

import os
import re
import signal
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from controlplane.base.schedule import reports
from controlplane.live.dashboard.tests.browser.conftest import RunningFleet
from controlplane.testing_browser import Web
from router.contract.redis import codec, redis_keys
from router.contract.redis.fleet_status import StepReport

pytestmark = pytest.mark.browser

LIVE = ("/live", "/wall?kiosk=1")
OTHERS = ("/fleet/", "/requests/")
UPDATED = re.compile(r"^updated \d+(\.\d)? s ago$")
OLD = re.compile(r"^data \d+(\.\d)? (s|min) old$")


def banner(pages: dict[str, Page], words: str) -> None:
    for page in pages.values():
        expect(page.locator("#banners .banner")).to_contain_text(words)


def state(pages: dict[str, Page], level: str, words: str) -> None:
    """The sentence of the wall."""
    expect(pages[LIVE[1]].locator("#state")).to_have_attribute("data-level", level)
    expect(pages[LIVE[1]].locator("#state")).to_contain_text(words)


def is_well(pages: dict[str, Page]) -> None:
    for path, page in pages.items():
        expect(page.locator("#banners .banner")).to_have_count(0)
        if path in LIVE:
            expect(page.locator("#age-text")).to_have_text(UPDATED)
            expect(page.locator("#counts")).to_have_text("8 ready")
    state(pages, "well", "All is well")


def is_last_known(pages: dict[str, Page], age: re.Pattern[str]) -> None:
    for page in (pages[path] for path in LIVE):
        expect(page.locator("#age-text")).to_have_text(age)
        expect(page.locator("#counts")).to_have_text("8 ready, last known")


def test_all_pages_name_silent_processes_keep_what_is_known_and_recover(
    running: RunningFleet, open_page: Any, web: Web
) -> None:
    pages = {path: open_page().goto(path) for path in (*LIVE, *OTHERS)}
    is_well(pages)
    running.paused = True  # routers, workers and engines
    banner(pages, "The router is down")
    is_last_known(pages, UPDATED)
    state(pages, "trouble", "no heartbeat")
    running.paused = False
    is_well(pages)
    for name, words in (("web", "Disconnected from the control plane"), ("redis", "Redis is down")):
        os.kill(web.processes[name].pid, signal.SIGSTOP)
        try:
            banner(pages, words)
            is_last_known(pages, OLD)
            state(pages, "unknown", "Not known since")
        finally:
            os.kill(web.processes[name].pid, signal.SIGCONT)
        is_well(pages)


REFUSED = StepReport(
    at=0.0, every_s=1.0, took_s=0.0, what="the lease", worker="control@a", error="attempt to write a readonly database"
)


def test_all_pages_distinguish_silent_senders(running: RunningFleet, open_page: Any) -> None:
    pages = {path: open_page().goto(path) for path in (*LIVE, *OTHERS)}
    is_well(pages)
    running.fleet.silent, running.controlled = {"demo-0"}, False
    for page in (pages[path] for path in LIVE):
        offline = re.compile(r"^\s*1 offline\s*7 ready\s*$")
        expect(page.locator("#counts")).to_have_text(offline, timeout=60_000)  # a new Redis gives it 20 s more
        expect(page.locator("#age-text")).to_have_text(UPDATED)  # by the web process
    banner(pages, "nothing is started, stopped or replaced")
    state(pages, "trouble", ", and 1 more")  # their order depends on which was noticed first
    running.fleet.silent, running.controlled = {"routers"}, True
    banner(pages, "The router is down")
    expect(pages[LIVE[0]].locator("[data-strip=warm] [data-part=verdict]")).to_have_text("unknown")
    expect(pages[LIVE[0]].locator("#counts")).to_have_text("8 ready")
    running.fleet.silent = set()
    is_well(pages)
    running.fleet.client.hset(redis_keys.STEPS, reports.LEASE, codec.encode(REFUSED))
    banner(pages, "The database is read-only")
    state(pages, "trouble", "database: read-only")
    running.fleet.client.delete(redis_keys.STEPS)
    is_well(pages)


SAID: list[tuple[list[tuple[int, str, str]], str, str]] = [
    # (severity, subject, reason) of each entry of attention; level and sentence of the wall
    ([], "well", "All is well"),
    ([(1, "demo", "the autoscaler would scale from 4 to 6: 7 wait")], "well", "All is well"),
    (
        [
            (3, "demo-3", "failed: the process was killed by SIGKILL (signal 9) while ready: its log ends with: up"),
            (2, "chat", "slow"),
            (1, "b", "late"),
        ],
        "trouble",
        "demo-3 failed: the process was killed by SIGKILL while ready, and 1 more",
    ),
    (
        [(3, "demo-3", "unreachable: no answer for 3.6 s: GET http://127.0.0.1:20000/health took longer than 0.5 s")],
        "trouble",
        "demo-3 unreachable: no answer for 3.6 s",
    ),
    (
        [(2, "demo · warm", "TTFT p90 2.1 s over 60 s, SLO 1.5 s (n = 40)")],
        "look",
        "demo · warm: TTFT p90 2.1 s over 60 s, SLO 1.5 s",
    ),
]


def test_the_wall_says_in_one_sentence_what_is_wrong_or_that_nothing_is(running: RunningFleet, open_page: Any) -> None:
    page = open_page().goto("/wall")
    read = """async ([entries, pools, seconds, missed = []]) => {
      const { wallState } = await import("/static/js/wall_state.js");
      const attention = entries.map(([severity, subject, reason]) => ({ severity, subject, reason, pools: [] }));
      const { level, text } = wallState({ at: 0, pools, health: {}, attention }, "", seconds, missed);
      return [level, text];
    }"""
    for entries, level, text in SAID:
        assert page.evaluate(read, [entries, {"demo": {}}, 1]) == [level, text]
    both = ["warm", "heavy"]
    assert page.evaluate(read, [[], {"demo": {}}, 1, both]) == ["look", "warm and heavy requests miss their SLO"]
    assert page.evaluate(read, [[(3, "a", "down")], {"demo": {}}, 1, both]) == ["trouble", "a: down"]
    assert page.evaluate(read, [[], {"demo": {}}, 4, both])[0] == "unknown"
    assert page.evaluate(read, [[], {}, 1]) == ["unknown", "No pool is declared"]

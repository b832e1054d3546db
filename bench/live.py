"""The cost of watching: a fake fleet, many viewers, and one tab with Chromium.

    .venv/bin/python -m bench.live [--instances 100] [--viewers 50] [--seconds 15] [--heap-seconds 3600]

Goals with 100 instances and 50 viewers: web process and building of frames together ≤ 0.1 core, a tab ≤ 0.3 core; with
1,000 instances 0.2 core, and a message of 10 kB. With
--heap-seconds the tabs stay open that long, and their heaps after a collection of garbage are read every minute: flat
once the charts hold their longest window.
Figures are CPU seconds per second, so a busy machine does not change them much. Writes bench/out/live.json.
"""

import argparse
import asyncio
import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import django
import httpx
import redis
import websockets
from playwright.sync_api import Browser, Page, sync_playwright

from controlplane import testing_browser

OUT = Path(__file__).parent / "out" / "live.json"
WARM_UP_S = 5.0
TABS = {"live": "/live", "wall": "/wall?kiosk=1"}


class Writer(threading.Thread):
    """Plays the workers: writes samples every second, and the frame, whose CPU time is counted."""

    def __init__(self, client: redis.Redis, instances: int) -> None:
        super().__init__(daemon=True)
        os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")
        django.setup()
        from controlplane.live.dashboard.step import step
        from controlplane.live.dashboard.tests.fake_fleet import FakeFleet

        self.step, self.client, self.fleet = step, client, FakeFleet(client, size=instances, routers=2)
        self.stopping = threading.Event()
        self.build_s: list[float] = []
        self.bytes = 0

    def run(self) -> None:
        while not self.stopping.wait(1 - time.time() % 1):
            self.fleet.write()
            began = time.thread_time()
            text = self.step(self.client, time.time(), "worker")
            self.build_s.append(time.thread_time() - began)
            self.bytes = len(text or b"")


def cpu_s(pid: int) -> float:
    """Return the CPU time of all threads, from the scheduler's own clock if there is one: ticks of 10 ms miss work of
    0.1 ms."""
    threads = list(Path(f"/proc/{pid}/task").glob("*/schedstat"))
    if threads:
        return sum(int(thread.read_text().split()[0]) for thread in threads) / 1e9
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def sign_in(url: str) -> str:
    with httpx.Client(base_url=url, follow_redirects=True, timeout=60) as client:
        client.get("/login")
        form = {
            "username": "vera",
            "password": testing_browser.PASSWORD,
            "csrfmiddlewaretoken": client.cookies["csrftoken"],
        }
        client.post("/login", data=form, headers={"Referer": url}).raise_for_status()
        return "; ".join(f"{name}={value}" for name, value in client.cookies.items())


async def watch(url: str, cookie: str, until: float, received: list[int]) -> None:
    headers = {"Cookie": cookie, "Origin": url}
    async with websockets.connect(
        url.replace("http", "ws", 1) + "/ws/live?seconds=900&folded=1&deflate=1",
        additional_headers=headers,
        max_size=None,
        compression=None,
    ) as socket:
        while (left := until - time.time()) > 0:
            try:
                received.append(len(await asyncio.wait_for(socket.recv(), left)))
            except TimeoutError:
                return


def measure_server(web: testing_browser.Web, viewers: int, seconds: float) -> dict[str, Any]:
    pid, cookie, received = web.processes["web"].pid, sign_in(web.url), []
    marks: list[float] = []

    async def all_watch() -> None:
        until = time.time() + WARM_UP_S + seconds
        tasks = [asyncio.create_task(watch(web.url, cookie, until, received)) for _ in range(viewers)]
        await asyncio.sleep(WARM_UP_S)
        received.clear()
        marks.append(cpu_s(pid))
        await asyncio.gather(*tasks)
        marks.append(cpu_s(pid))

    asyncio.run(all_watch())
    return {
        "web_cores": round((marks[1] - marks[0]) / seconds, 4),
        "messages_per_viewer_s": round(len(received) / viewers / seconds, 3),
        "mb_per_s": round(sum(received) / seconds / 1e6, 3),
    }


def opened(browser: Browser, web: testing_browser.Web, path: str) -> Page:
    context = browser.new_context(viewport={"width": 1920, "height": 1080})
    context.add_cookies(web.cookies("vera"))
    page = context.new_page()
    page.goto(web.url + path)
    page.wait_for_function("() => document.body.dataset.data === 'live'", timeout=60_000)
    return page


def measure_heaps(browser: Browser, web: testing_browser.Web, seconds: float) -> dict[str, dict[str, list[float]]]:
    """Return, for every minute, the MB of each tab and its number of nodes."""
    sessions = {}
    for name, path in TABS.items():
        page = opened(browser, web, path)
        sessions[name] = page.context.new_cdp_session(page)
        sessions[name].send("Performance.enable")
    heaps: dict[str, dict[str, list[float]]] = {name: {"heap_mb": [], "nodes": []} for name in TABS}
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(60)
        for name, session in sessions.items():
            session.send("HeapProfiler.collectGarbage")
            metrics = {one["name"]: one["value"] for one in session.send("Performance.getMetrics")["metrics"]}
            heaps[name]["heap_mb"].append(round(metrics["JSHeapUsedSize"] / 1e6, 2))
            heaps[name]["nodes"].append(metrics["Nodes"])
    return heaps


def measure_tab(browser: Browser, web: testing_browser.Web, path: str, seconds: float) -> dict[str, Any]:
    page = opened(browser, web, path)
    page.wait_for_timeout(WARM_UP_S * 1000)
    session = page.context.new_cdp_session(page)
    whole = browser.new_browser_cdp_session()
    session.send("Performance.enable")

    def reading() -> dict[str, float]:
        metrics = {metric["name"]: metric["value"] for metric in session.send("Performance.getMetrics")["metrics"]}
        processes = whole.send("SystemInfo.getProcessInfo")["processInfo"]
        metrics["processes"] = sum(process["cpuTime"] for process in processes if process["type"] == "renderer")
        return metrics

    before = reading()
    page.wait_for_timeout(seconds * 1000)
    after = reading()
    page.context.close()

    def share(name: str) -> float:
        return round((after[name] - before[name]) / seconds, 4)

    return {
        "renderer_cores": share("processes"),
        "main_thread_cores": share("TaskDuration"),
        "script_cores": share("ScriptDuration"),
        "layout_cores": round(share("LayoutDuration") + share("RecalcStyleDuration"), 4),
        "heap_mb": round(after["JSHeapUsedSize"] / 1e6, 1),
        "nodes": after["Nodes"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--instances", type=int, default=100)
    parser.add_argument("--viewers", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--heap-seconds", type=float, default=0.0)
    asked = parser.parse_args()
    with testing_browser.serving() as web:
        writer = Writer(web.redis, asked.instances)
        writer.start()
        figures: dict[str, Any] = {"instances": asked.instances, "viewers": asked.viewers}
        figures |= measure_server(web, asked.viewers, asked.seconds)
        if testing_browser.CHROMIUM:
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(executable_path=testing_browser.CHROMIUM, args=["--no-sandbox"])
                for name, path in TABS.items():
                    figures[name] = measure_tab(browser, web, path, asked.seconds)
                if asked.heap_seconds:
                    figures["heaps"] = measure_heaps(browser, web, asked.heap_seconds)
                browser.close()
        writer.stopping.set()
        writer.join()
    figures["frame_kb"] = round(writer.bytes / 1000, 1)
    figures["frame_build_cores"] = round(sum(writer.build_s) / len(writer.build_s), 4)
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(json.dumps(figures, indent=2) + "\n")
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()

"""Write docs/img/*.png in both themes: a Weir of its own, some traffic, an experiment, a delivery, a preview.

make screenshots
"""

import json
import secrets
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

from chromium import find
from playwright.sync_api import Browser, Page, sync_playwright

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from controlplane.tests.real_up import RealUp, running

IMAGES = Path(__file__).parent / "img"
SIZE = {"width": 1440, "height": 900}
WALL = {"width": 1920, "height": 1080}
THEMES = ("light", "dark")
TRAFFIC_S = 120  # of demo traffic before the pictures
SETTLE_MS = 3_000  # several frames of live data
EXPERIMENT = {
    "name": "Does the cache pay?",
    "question": "Which route serves agentic sessions with the lowest time to first token?",
    "trace": "agentic-demo",
    "pool": "demo",
    "duration_s": 600,
    "time_scale": 10,
    "arms": ["round_robin", "cache_aware", "adaptive_v1"],
}
DELIVERY_S = 150  # until the canary of PLAN has figures
PLAN = {
    "steps": [
        {"mode": "shadow", "for_s": 30},
        {"mode": "canary", "share": 0.5, "for_s": 1800},
        {"mode": "full", "bake_s": 1800},
    ],
    "guards": [
        {"metric": "ttft", "classes": ["warm"], "worse": 0.1, "fine": 0.25},
        {"metric": "slow", "classes": ["warm"], "worse": 0.05},
        {"metric": "errors", "ratio": 1.5},
    ],
}


class Api:
    def __init__(self, weir: RealUp) -> None:
        self.base = f"http://127.0.0.1:{weir.web_port}"
        self.token = (weir.folder / "token").read_text().strip()

    def call(self, method: str, path: str, body: dict[str, Any] | None = None, etag: str = "") -> tuple[Any, str]:
        request = urllib.request.Request(  # noqa: S310 - our own server
            f"{self.base}/api/v1{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"authorization": f"Bearer {self.token}", "content-type": "application/json"},
        )
        if etag:
            request.add_header("if-match", etag)
        with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310
            return json.loads(answer.read()), answer.headers.get("etag", "")


def run_experiment(api: Api) -> int:
    made, _ = api.call("POST", "/experiments", EXPERIMENT)
    while made["status"] in ("queued", "running"):
        time.sleep(2)
        made, _ = api.call("GET", f"/experiments/{made['id']}")
    print(f"experiment {made['id']} {made['status']} {made['cause']}")
    return int(made["id"])


def run_delivery(api: Api) -> int:
    """Until its canary has figures."""
    _, etag = api.call("POST", "/policies/default/draft", {})
    api.call("PATCH", "/policies/default/draft", {"overrides": {"classes.heavy_new_tokens": 15_000}}, etag)
    body = {"reason": "Heavy requests queue behind larger ones", "plan": PLAN}
    made, _ = api.call("POST", "/policies/default/draft/deliver", body)
    api.call("POST", f"/deliveries/{made['id']}/start", {})
    time.sleep(DELIVERY_S)
    return int(made["id"])


def open_draft(api: Api) -> None:
    """With a change in it, so that there is a diff to show."""
    _, etag = api.call("POST", "/policies/default/draft", {})
    change = {"overrides": {"classes.heavy_new_tokens": 12_000, "affinity.ttl_s": 900}}
    api.call("PATCH", "/policies/default/draft", change, etag)


def run_preview(api: Api) -> None:
    """Of the draft that is open, so that its page shows what it would change."""
    made, _ = api.call("POST", "/policies/default/draft/preview", {})
    while made["status"] in ("queued", "running"):
        time.sleep(1)
        made, _ = api.call("GET", f"/policies/default/previews/{made['id']}")
    print(f"preview {made['id']} {made['status']} {made['cause']}")


def sign_in(page: Page, password: str) -> None:
    page.goto("/login")
    page.fill("input[name=username]", "admin")
    page.fill("input[name=password]", password)
    page.click("main button[type=submit]")
    page.wait_for_url("**/live*")


def shoot(browser: Browser, api: Api, password: str, theme: Any, pages: dict[str, str]) -> None:
    context = browser.new_context(viewport=SIZE, color_scheme=theme, base_url=api.base)
    page = context.new_page()
    page.on("console", lambda message: print(f"  console: {message.text}") if message.type == "error" else None)
    sign_in(page, password)
    for name, path in pages.items():
        page.set_viewport_size(WALL if name == "wall" else SIZE)
        page.goto(path)
        page.wait_for_timeout(SETTLE_MS)
        page.screenshot(path=str(IMAGES / f"{name}-{theme}.png"))
        print(f"{name}-{theme}.png  {page.title()}")
    context.close()


def main() -> None:
    executable = find()
    if executable is None:
        sys.exit("Chromium is missing: apt-get install chromium")
    IMAGES.mkdir(exist_ok=True)
    password = secrets.token_urlsafe(12)
    with running(WEIR_ADMIN_PASSWORD=password) as weir, sync_playwright() as playwright:
        weir.wait_for("instances of pool demo are ready")
        began, api = time.monotonic(), Api(weir)
        experiment = run_experiment(api)
        time.sleep(max(0.0, TRAFFIC_S - (time.monotonic() - began)))
        delivery = run_delivery(api)
        open_draft(api)
        run_preview(api)
        pages = {
            "live": "/live",
            "wall": "/wall?kiosk=1",
            "policy": "/policies/default/draft",
            "policy-diff": "/policies/default/draft/review",
            "preview": "/policies/default/draft#preview",
            "delivery": f"/deliveries/{delivery}/",
            "fleet": "/fleet/",
            "requests": "/requests/",
            "experiment": f"/experiments/{experiment}/#comparison",
        }
        browser = playwright.chromium.launch(
            executable_path=executable, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        for theme in THEMES:
            shoot(browser, api, password, theme, pages)
        browser.close()
        weir.stop()


if __name__ == "__main__":
    main()

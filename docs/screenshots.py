"""Write docs/img/*.png in both themes, from a separate Weir with traffic, an experiment, a preview and a delivery.

make screenshots                     all of them
make screenshots PICTURES="live wall"
"""

import argparse
import json
import secrets
import sys
import threading
import time
import urllib.request
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import yaml
from chromium import find
from playwright.sync_api import BrowserContext, Page, sync_playwright

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from controlplane.evidence.experiments.matrix import presets
from controlplane.tests.real_up import RealUp, running

DOCS = Path(__file__).parent
IMAGES = DOCS / "img"
SIZE = (1440, 900)
WALL = (1920, 1080)
STORY = (1200, 750)  # a picture of the README's story, legible at half its size
THEMES = ("light", "dark")
SETTLE_MS = 3_000  # several frames of live data
PATIENCE_MS = 180_000  # for a page on a busy machine
CHANGE = {"overrides": {"classes.heavy_new_tokens": 12_000, "affinity.ttl_s": 900}}
TIERS = {
    "name": "What each tier below HBM saves",
    "trace": "documents-reread",
    "pool": "demo",
    "mode": "twin",
    "duration_s": 2_400,
    "load_factor": 2,
    "arms": presets.tiers({}, {}),
}
EXPERIMENT = {  # in the twin: a replay would measure this machine, too
    "name": "Does the cache pay?",
    "question": "Which strategy serves agentic sessions with the lowest time to first token?",
    "trace": "agentic-demo",
    "pool": "demo",
    "mode": "twin",
    "duration_s": 600,
    "arms": ["round_robin", "cache_aware", "adaptive_v1"],
}
PROVIDER = {  # for the sign-in page, which sends no request to the provider
    "WEIR_OIDC_ISSUER": "https://id.example.com/realms/company",
    "WEIR_OIDC_CLIENT_ID": "weir",
    "WEIR_OIDC_CLIENT_SECRET": "unused",
    "WEIR_OIDC_ROLE_CLAIM": "groups",
    "WEIR_OIDC_ROLES": "admin=weir-admins",
}
CONTEXT_SERVERS = DOCS.parent / "examples" / "fleet-pd-dwdp.yaml"
START_S = 300.0  # at most, on a busy machine
DELIVERY_S = 150  # until the canary of PLAN has results
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


@dataclass(frozen=True)
class Picture:
    name: str
    path: str
    size: tuple[int, int] = SIZE
    job: str = ""  # command that runs before the picture, besides the delivery


BEFORE = "before sign-in"
PICTURES = [
    Picture("live", "/live"),
    Picture("wall", "/wall?kiosk=1", WALL),
    Picture("policy", "/policies/default/draft", job="preview"),
    Picture("preview", "/policies/default/draft#preview", job="preview"),
    Picture("tuning", "/policies/default/tunings/{tuning}/", job="tuning"),
    Picture("delivery", "/deliveries/{delivery}/"),
    Picture("fleet", "/fleet/"),
    Picture("models", "/models/", job="adopted"),
    Picture("adopted", "/fleet/pools/elsewhere/", job="adopted"),
    Picture("use", "/use/?range=day", job="use"),
    Picture("sign-in", "/login", STORY, job=BEFORE),
    Picture("embedded", "{embedder}", (1980, 1200), job="embedded"),
    Picture("requests", "/requests/"),
    Picture("experiment", "/experiments/{experiment}/#comparison", job="experiment"),
    Picture("dwdp", "/systems/dwdp/"),
    Picture("dwdp-played", "/experiments/{dwdp}/#comparison", job="dwdp"),
    Picture("tiers", "/systems/tutti/"),
    Picture("tiers-played", "/experiments/{tiers}/#comparison", job="tiers"),
    Picture("story-1-change", "/policies/default/draft", STORY),
    Picture("story-2-preview", "/policies/default/previews/{preview}/", STORY, job="preview"),
    Picture("story-3-deliver", "/deliveries/{delivery}/", STORY),
    Picture("story-4-rollback", "/policies/default/rollback", STORY, job="live"),
]


def wait_for(api: Api, path: str, job: Any) -> None:
    while job["status"] in ("queued", "running"):
        time.sleep(2)
        job, _ = api.call("GET", path)
    print(f"{path} {job['status']} {job['cause']}")


def start_delivery(api: Api) -> int:
    open_draft(api)
    body = {"reason": "Heavy requests queue behind larger ones", "plan": PLAN}
    made, _ = api.call("POST", "/policies/default/draft/deliver", body)
    api.call("POST", f"/deliveries/{made['id']}/start", {})
    return int(made["id"])


def open_draft(api: Api) -> None:
    """Open a draft with changes, so that there is a diff to show."""
    _, etag = api.call("POST", "/policies/default/draft", {})
    api.call("PATCH", "/policies/default/draft", CHANGE, etag)


def run_experiment(api: Api, body: dict[str, Any]) -> int:
    made, _ = api.call("POST", "/experiments", body)
    wait_for(api, f"/experiments/{made['id']}", made)
    return int(made["id"])


def play_dwdp(api: Api, page: Page) -> int:
    """Play a point in the middle of DWDP's curve, on a pool of context servers."""
    api.call("PUT", "/fleet", yaml.safe_load(CONTEXT_SERVERS.read_text()))
    page.goto("/systems/dwdp/")
    page.get_by_text("Play a point in the twin").click()
    page.select_option("#play", index=5)
    page.get_by_role("button", name="Play this").click()
    page.wait_for_url("**/experiments/*/")
    number = int(page.url.rstrip("/").rpartition("/")[2])
    page.goto("/systems/dwdp/")  # else the picture's address would only move this page to its anchor
    wait_for(api, f"/experiments/{number}", api.call("GET", f"/experiments/{number}")[0])
    return number


def run_preview(api: Api) -> int:
    made, _ = api.call("POST", "/policies/default/draft/preview", {})
    wait_for(api, f"/policies/default/previews/{made['id']}", made)
    return int(made["id"])


def run_tuning(api: Api) -> int:
    made, _ = api.call("POST", "/policies/default/tunings", {"trials": 40, "max_requests": 1000})
    wait_for(api, f"/policies/default/tunings/{made['id']}", made)
    return int(made["id"])


def make_live(api: Api, delivery: int) -> None:
    api.call("POST", f"/deliveries/{delivery}/advance", {"reason": "The canary shows no harm"})
    while api.call("GET", "/policies/default")[0]["live"]["number"] == 1:
        time.sleep(1)


EXPERIMENTS = {"experiment": EXPERIMENT, "tiers": TIERS}
ON_THE_DRAFT = {"preview": run_preview, "tuning": run_tuning}


class Embedder(BaseHTTPRequestHandler):
    """A page of another site that frames the wall."""

    wall = ""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.end_headers()
        frame = f'<iframe src="{self.wall}" width="1900" height="1080"></iframe>'
        head = '<!doctype html><meta name="color-scheme" content="light dark"><title>Status</title>'
        self.wfile.write(
            f'{head}<body style="font: 16px sans-serif; margin: 24px 40px"><h1>Status</h1>{frame}'.encode()
        )

    def log_message(self, *_: Any) -> None:
        pass


def use_keys(api: Api, weir: RealUp) -> None:
    """Send requests of two keys, one of them with a budget."""
    for name, requests in (("assistant", 24), ("nightly-eval", 12)):
        key, _ = api.call("POST", "/keys", {"name": name})
        if name == "assistant":
            api.call("POST", "/budgets", {"key": key["id"], "unit": "tokens", "per": "day", "limit": 100_000})
        for number in range(requests):
            body = {"model": "llama-3.1-8b", "prompt": f"{name} {number} " * 200, "max_tokens": 40}
            request = urllib.request.Request(
                f"http://127.0.0.1:{weir.router_port}/v1/completions",
                data=json.dumps(body).encode(),
                headers={"authorization": f"Bearer {key['key']}", "content-type": "application/json"},
            )
            urllib.request.urlopen(request, timeout=60).close()  # noqa: S310


def adopt(api: Api) -> None:
    """Adopt the demo's engines as a pool that another system runs, and name models that both pools serve."""
    instances, _ = api.call("GET", "/instances?pool=demo")
    urls = [one["url"] for one in instances[:4]]
    found, _ = api.call("POST", "/fleet/discover", {"engine": {"urls": urls}})
    document, _ = api.call("GET", "/fleet")
    pool = {
        "name": "elsewhere",
        "model": found["models"][0],
        "kind": "external",
        "replicas": 4,
        "engine": {"urls": urls},
    }
    document["spec"]["pools"].append(pool)
    api.call("PUT", "/fleet", document)
    split = [{"pool": "demo", "weight": 90}, {"pool": "elsewhere", "weight": 10}]
    names = {"chat-large": {"split": split}, "chat-small": {"pool": "elsewhere", "fallback": [{"pool": "demo"}]}}
    api.call("PUT", "/models?reason=A+tenth+of+the+sessions+elsewhere", {"schema": 1, "models": names})


def new_page(context: BrowserContext) -> Page:
    context.set_default_timeout(PATIENCE_MS)
    page = context.new_page()
    page.on("console", lambda message: print(f"  console: {message.text}") if message.type == "error" else None)
    return page


def sign_in(page: Page, password: str) -> None:
    page.goto("/login")
    page.fill("input[name=username]", "admin")
    page.fill("input[name=password]", password)
    page.click("main button[type=submit]")
    page.wait_for_url("**/live*")


def shoot(page: Page, theme: str, picture: Picture, address: str) -> None:
    width, height = picture.size
    page.set_viewport_size({"width": width, "height": height})
    page.goto(address)
    page.wait_for_timeout(SETTLE_MS)
    page.screenshot(path=IMAGES / f"{picture.name}-{theme}.png")
    print(f"{picture.name}-{theme}.png  {page.title()}")


def asked() -> list[Picture]:
    names = [picture.name for picture in PICTURES]
    parser = argparse.ArgumentParser(description="Write docs/img/*.png.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"only these: {', '.join(names)}")
    wanted = parser.parse_args().names
    if unknown := sorted({*wanted} - {*names}):
        parser.error(f"no picture is named {', '.join(unknown)}; there are {', '.join(names)}")
    return [picture for picture in PICTURES if not wanted or picture.name in wanted]


def prepare(api: Api, weir: RealUp, pictures: list[Picture]) -> dict[str, int]:
    """Create what the pictures show; return the numbers of the addresses by name."""
    jobs = {picture.job for picture in pictures}
    began, ids = time.monotonic(), {}
    if "adopted" in jobs:  # first: no fleet is applied while a delivery runs
        adopt(api)
    if with_delivery := "live" in jobs or any("{delivery}" in picture.path for picture in pictures):
        ids["delivery"] = start_delivery(api)
    if "use" in jobs:
        use_keys(api, weir)
    if "embedded" in jobs:
        Embedder.wall = api.base + api.call("POST", "/shares", {"name": "status page"})[0]["wall"]
    ids |= {name: run_experiment(api, body) for name, body in EXPERIMENTS.items() if name in jobs}
    if with_delivery:
        time.sleep(max(0.0, DELIVERY_S - (time.monotonic() - began)))
    open_draft(api)
    return ids | {name: run(api) for name, run in ON_THE_DRAFT.items() if name in jobs}


def shoot_all(pictures: list[Picture], pages: dict[str, Page], api: Api, ids: dict[str, int]) -> None:
    for picture in pictures:
        if picture.job == "dwdp":
            ids["dwdp"] = play_dwdp(api, pages["light"])
        if picture.job == "live":
            make_live(api, ids["delivery"])
        for theme, page in pages.items():
            shoot(page, theme, picture, picture.path.format(**ids))


def main() -> None:
    pictures = asked()
    executable = find()
    if executable is None:
        sys.exit("Chromium is missing: apt-get install chromium")
    IMAGES.mkdir(exist_ok=True)
    password = secrets.token_urlsafe(12)
    embedder = HTTPServer(("127.0.0.1", 0), Embedder)
    threading.Thread(target=embedder.serve_forever, daemon=True).start()
    origin = f"http://127.0.0.1:{embedder.server_port}"
    with (
        running(WEIR_ADMIN_PASSWORD=password, WEIR_EMBED_ORIGINS=origin, **PROVIDER) as weir,
        sync_playwright() as playwright,
    ):
        weir.wait_for("instances of pool demo are ready", START_S)
        api = Api(weir)
        ids = prepare(api, weir, pictures)
        browser = playwright.chromium.launch(
            executable_path=executable, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        pages = {theme: new_page(browser.new_context(color_scheme=theme, base_url=api.base)) for theme in THEMES}
        pictures = [replace(one, path=one.path.replace("{embedder}", origin)) for one in pictures]
        shoot_all([one for one in pictures if one.job == BEFORE], pages, api, ids)
        for page in pages.values():
            sign_in(page, password)
        shoot_all([one for one in pictures if one.job != BEFORE], pages, api, ids)
        browser.close()
        weir.stop()


if __name__ == "__main__":
    main()

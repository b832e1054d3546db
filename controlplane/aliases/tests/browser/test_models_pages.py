"""The page Models and its draft in Chromium: nothing wrong by axe in either theme, no sideways scrolling on a phone."""

import os
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe

from controlplane.testing_browser import Web
from controlplane.testing_reading import unreadable

pytestmark = pytest.mark.browser

PICTURES = os.environ.get("WEIR_TEST_PICTURES", "")  # a folder to look at them
PATHS = (
    "/models/",
    "/models/draft",
    "/models/draft/name?name=chat-large",
    "/models/draft/review",
    "/models/versions/1/",
)
MAKE = """
from controlplane.aliases import services
from controlplane.audit.services import SYSTEM
from controlplane.policies.services import ensure_default_policy
from fleet.models import AdapterHome, Instance, Pool
ensure_default_policy()
lora = {"enable_lora": True, "max_loras": 4}
for name, model in (("h200", "chat-large"), ("h100", "chat-large-fp8"), ("spot", "chat-large")):
    made = dict(model=model, kind="sim", policy="default", replicas=4, engine=lora)
    Pool.objects.get_or_create(name=name, defaults=made)
large = {"split": [{"pool": "h200", "weight": 90}, {"pool": "h100", "weight": 10}], "fallback": [{"pool": "spot"}]}
bot = {"pool": "h200", "adapter": {"name": "support-bot@v3", "source": "/lora/support-v3", "replicas": 2}}
services.publish_document({"models": {"chat-large": large, "support-bot": bot}}, SYSTEM, "a tenth on the new GPUs")
for number, state in enumerate(("loaded", "failed")):
    row = Instance.objects.create(pool=Pool.objects.get(name="h200"), name=f"h200-{number}", ordinal=number)
    AdapterHome.objects.create(instance=row, epoch=0, name="support-bot@v3", source="/lora/support-v3", state=state,
        text="" if state == "loaded" else "the engine answers 404: No adapter found for /lora/support-v3")
services.open_draft(SYSTEM)
services.save_draft({"models": {"chat-large": {**large, "on": ["saturated"]}, "new": {"pool": "spot"}}}, SYSTEM)
"""


@pytest.fixture(scope="session", autouse=True)
def models(web: Web) -> None:
    web.manage("shell", "--verbosity", "0", "-c", MAKE)


def picture(page, name):
    if PICTURES:
        page.screenshot(path=str(Path(PICTURES) / f"{name}.png"), full_page=True)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_nothing_is_wrong_with_the_pages(open_page, theme):
    opened, found = open_page("otto", color_scheme=theme), {}
    for at, path in enumerate(PATHS):
        page = opened.goto(path)
        picture(page, f"models-{at}-{theme}")
        violations = Axe().run(page).response["violations"]
        found |= {f"{path} {v['id']}": [n["html"][:120] for n in v["nodes"]][:3] for v in violations}
        assert unreadable(page) == [], path
    assert found == {}
    assert opened.faults == []


def test_a_phone_needs_no_sideways_scrolling(open_page):
    opened = open_page("otto", width=360, height=740)
    widths = {}
    for at, path in enumerate(PATHS):
        page = opened.goto(path)
        picture(page, f"models-{at}-phone")
        widths[path] = page.evaluate("document.documentElement.scrollWidth")
    assert all(width <= 360 for width in widths.values()), widths

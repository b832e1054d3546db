"""The page Models and its draft in Chromium: both are accessible."""

import time

import pytest
from playwright.sync_api import expect

from controlplane.live.dashboard.tests.fake_fleet import FakeFleet
from controlplane.pages.playground.tests.test_playground import AnsweringRouter
from controlplane.testing_browser import Web
from controlplane.testing_reading import in_both_themes, too_wide, unreadable
from router.contract.redis import codec, redis_keys
from router.contract.redis.router_status import RouterStatus

pytestmark = pytest.mark.browser

PATHS = (
    "/models/",
    "/models/draft",
    "/models/draft/name?name=chat-large",
    "/models/draft/review",
    "/models/versions/1/",
    "/playground/?model=pool:h200",
)
MAKE = """
from controlplane.traffic.aliases import services
from controlplane.people.audit.services import SYSTEM
from controlplane.traffic.policies.services import ensure_default_policy
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
    web.run(MAKE)


def test_the_pages_are_accessible(open_page):
    opened, found = open_page("otto"), {}
    for path in PATHS:
        page = opened.goto(path)
        found[path] = unreadable(page) + in_both_themes(page) + too_wide(page)
        page.set_viewport_size({"width": 1440, "height": 900})
    assert {path: faults for path, faults in found.items() if faults} == {}
    assert opened.faults == []


def test_the_page_shows_the_answer_with_a_link_to_its_receipt(web, open_page):
    router, fleet = AnsweringRouter(), FakeFleet(web.redis)
    fleet.write_receipt("req-0", time.time())
    web.redis.zadd(redis_keys.ROUTERS, {"router-9": time.time() + 600})
    web.redis.set(
        redis_keys.router_key("router-9"), codec.encode(RouterStatus(id="router-9", at=time.time(), url=router.url))
    )
    opened = open_page("otto")
    page = opened.goto("/models/")
    page.get_by_role("link", name="Ask h200").click()
    page.wait_for_load_state()  # the script that handles keys has loaded
    page.fill("#id_prompt", "What is a weir?")
    page.press("#id_prompt", "Control+Enter")
    expect(page.locator(".turn--assistant .turn-text")).to_have_text("hmA dam.")
    expect(page.locator(".turn-use")).to_have_text(["", "9 prompt tokens, 4 of them cached, 2 written"])
    fleet.write_receipt("req-1", time.time())
    expect(page.locator("#receipt-beside #beside")).to_be_visible()
    expect(page.locator("#receipt-beside #replay")).to_be_visible()
    page.fill("#id_prompt", "And a dam?")
    page.get_by_role("button", name="Ask", exact=True).click()
    expect(page.locator(".turn")).to_have_count(4)
    expect(page.locator("#ask [type=submit]")).to_be_enabled()
    assert [len(body["messages"]) for _, body in router.asked] == [1, 3]
    router.close()
    assert opened.faults == []

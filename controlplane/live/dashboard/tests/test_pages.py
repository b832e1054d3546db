"""Live and the wall as rendered by the server: the frame and its history, which static/js draws."""

import re
import time

import pytest
import redis
from django.test import Client, RequestFactory

from controlplane.live.dashboard import views
from controlplane.live.dashboard.frame.build import class_words
from controlplane.live.dashboard.tests.fake_fleet import FakeFleet
from controlplane.testing import ApiCaller
from router.contract.redis.staleness import SAMPLE_STALE_S
from router.policy.schema import document as documents


def ahead() -> float:
    """A time at which samples become stale only after 5 s, because a busy machine takes up to 5 s to render a page."""
    return time.time() + SAMPLE_STALE_S - 1


def shown(client: Client, path: str) -> str:
    answer = client.get(path)
    assert answer.status_code == 200
    return answer.content.decode()


def test_the_page_of_an_empty_fleet_says_what_to_do(vera_client: Client, live_redis: redis.Redis) -> None:
    text = shown(vera_client, "/live")
    assert "No instances" in text


def test_without_redis_the_page_says_what_still_works(vera_client: Client, redis_away: None) -> None:
    text = shown(vera_client, "/live")
    assert "Redis does not answer" in text
    assert "Routers keep serving" in text
    assert "Instances unknown" in text


def test_a_pool_in_the_url_is_the_only_one_shown(vera_client: Client, live_redis: redis.Redis) -> None:
    FakeFleet(live_redis, size=2).write(ahead())
    FakeFleet(live_redis, size=3, pool="chat").write(ahead())
    text = shown(vera_client, "/live?pool=chat&range=900")
    assert '"pool": "chat"' in text
    assert "<title>chat · Live · Weir</title>" in text
    assert "?range=900&amp;pool=demo" in text or "?pool=demo&amp;range=900" in text


@pytest.mark.parametrize(
    "asked", ["range=9", "range=x", "range=-300", "pool=nope", "slo_ttft_ms=abc", f"slo_ttft_ms={'9' * 400}"]
)
def test_invalid_parameters_in_the_url_show_the_usual_page(
    vera_client: Client, live_redis: redis.Redis, asked: str
) -> None:
    FakeFleet(live_redis, size=1).write(ahead())
    assert '"seconds": 300' in shown(vera_client, f"/live?{asked}")


CLASS_ROW = r"Warm [\d.]+ [\d.]+ m?s [\d.]+ m?s [\d.]+ m?s \d"


def unscripted(page: str) -> str:
    """The content that a browser without JavaScript shows instead of drawings."""
    found = re.search(r'<noscript>\s*<section class="panel stack".*?</noscript>', page, re.DOTALL)
    return " ".join(re.sub(r"<[^>]+>", " ", found[0]).split()) if found else ""


def test_without_scripts_live_is_a_table_of_the_newest_frame(vera_client: Client, live_redis: redis.Redis) -> None:
    fleet, at = FakeFleet(live_redis, size=3), ahead()
    fleet.states["demo-2"] = ("failed", "ended with exit status 1")
    fleet.write(at)
    FakeFleet(live_redis, size=2, pool="chat").write(at)
    text = unscripted(shown(vera_client, "/live"))
    assert re.match(r"All pools at \d+ \w+ \d{4}, \d\d:\d\d:\d\d UTC", text)
    assert "4 ready 1 failed" in text
    assert re.search(r"[\d.]+ req/s, \d+ running, \d+ waiting", text)
    assert re.search(CLASS_ROW, text)
    assert "demo-2 : failed: ended with exit status 1 (since" in text
    chat = unscripted(shown(vera_client, "/live?pool=chat"))
    assert "chat at" in chat
    assert "2 ready" in chat
    assert "demo-2" not in chat


def test_without_scripts_live_says_which_states_are_only_the_last_known(
    vera_client: Client, live_redis: redis.Redis
) -> None:
    fleet, at = FakeFleet(live_redis, size=3), ahead()
    fleet.write(at)
    fleet.write_samples(at - 30)
    fleet.kv["demo-1"] = 0.97
    fleet.write_samples(at - 20)
    text = unscripted(shown(vera_client, "/live"))
    assert "2 ready, last known 1 saturated, last known" in text
    assert "since, since" not in text


def test_the_classes_of_the_only_pool_are_those_of_all(vera_client: Client, live_redis: redis.Redis) -> None:
    FakeFleet(live_redis, size=2).write(ahead())
    assert re.search(CLASS_ROW, unscripted(shown(vera_client, "/live")))


def test_an_slo_in_the_url_reaches_the_charts(vera_client: Client, live_redis: redis.Redis) -> None:
    assert '"asked": {"ttft": 1000.0}' in shown(vera_client, "/live?slo_ttft_ms=1000")


def test_a_kiosk_has_no_navigation(vera_client: Client, live_redis: redis.Redis) -> None:
    FakeFleet(live_redis).write(ahead())
    text = shown(vera_client, "/wall?kiosk=1")
    assert "topbar" not in text
    assert text.count('class="wall-class"') == 3


@pytest.mark.parametrize(
    ("asked", "window"),
    [
        ("from=1000&to=2000", (1000, 2000)),
        ("from=1&to=99999999999", (100_000 - 21_600, 100_000)),
        ("from=1000&to=1059", None),
        ("from=2000&to=1000", None),
        ("from=x&to=2000", None),
        ("to=2000", None),
        ("from=999999999999&to=2000", None),
    ],
)
def test_a_custom_range_is_limited_to_what_is_stored(
    rf: RequestFactory, asked: str, window: tuple[int, int] | None
) -> None:
    now = 100_000.0 if window and window[1] == 100_000 else 2_500.0
    assert views.asked_window(rf.get(f"/live?{asked}"), now) == window


def test_a_custom_range_is_shown_with_its_history(vera_client: Client, live_redis: redis.Redis) -> None:
    FakeFleet(live_redis, size=1).write(ahead())
    now = int(time.time())
    text = shown(vera_client, f"/live?from={now - 600}&to={now - 300}")
    assert f'"window": [{now - 600}, {now - 300}]' in text
    assert "the numbers are live" in text


@pytest.mark.parametrize("path", ["/live", "/wall", "/requests/", "/requests/some-id/"])
def test_strangers_are_sent_to_sign_in(client: Client, db: None, path: str) -> None:
    answer = client.get(path)
    assert answer.status_code == 302
    assert answer.headers["Location"].startswith("/login")


def test_a_class_is_described_only_when_its_thresholds_are_known() -> None:
    limits = {"heavy_new_tokens": 20_000, "warm_hit_share": 0.5, "warm_new_tokens": 5_000}
    assert class_words(limits)["warm"] == "more than 50 % cached or under 5,000 new tokens"
    assert class_words({}) == {}


def test_heavy_is_named_with_the_threshold_of_the_policy() -> None:
    limits = documents.default()["classes"]
    assert class_words(limits)["heavy"] == f"{limits['heavy_new_tokens']:,} new tokens or more"


def test_the_api_returns_the_newest_frame_and_the_history(ci: ApiCaller, live_redis: redis.Redis) -> None:
    FakeFleet(live_redis, size=2).write(ahead())
    live = ci.get("/live")
    assert live.status_code == 200
    assert live.json()["instances"]["id"] == ["demo-0", "demo-1"]
    past = ci.get("/live/history?seconds=60").json()
    assert (past["seconds"], past["bin_s"], len(past["at"])) == (60, 1, 1)
    assert ci.get("/live/history?seconds=59").status_code == 422


def test_without_redis_the_api_is_unavailable(ci: ApiCaller, redis_away: None) -> None:
    for path in ("/live", "/live/history", "/receipts", "/receipts/x"):
        answer = ci.get(path)
        assert answer.status_code == 503
        assert "Redis does not answer" in answer.json()["detail"]

"""The Live page in a browser, as operators use it."""

import re
import time
from itertools import groupby
from typing import Any

import pytest
from playwright.sync_api import expect

from controlplane.base.schedule import reports
from controlplane.common import figures
from controlplane.live.dashboard.frame import slo
from controlplane.live.dashboard.tests.browser.conftest import LAYOUT_SHIFT, RunningFleet, write_delivery
from controlplane.live.dashboard.tests.browser.test_silences import REFUSED
from controlplane.live.dashboard.tests.fake_fleet import FakeFleet
from controlplane.testing_browser import Web, ended
from router.contract.redis import codec, redis_keys

pytestmark = pytest.mark.browser

UPDATED = "() => /updated [0-4]\\.\\d s ago/.test(document.getElementById('age-text').textContent)"

# Within one task, so that nothing changes in between.
WITH_AND_WITHOUT_BANNERS = """() => {
  const tops = () => [...document.querySelectorAll('main > *')].map((part) => part.getBoundingClientRect().top);
  const shown = tops(), box = document.getElementById('banners'), banners = [...box.children];
  box.replaceChildren();
  const without = tops();
  box.replaceChildren(...banners);
  return [shown, without];
}"""


def test_the_first_paint_shows_the_frame_contained_in_the_page(running: RunningFleet, open_page: Any) -> None:
    running.fleet.kv["demo-3"] = 0.97
    running.fleet.states = {"demo-6": ("failed", "out of memory"), "demo-4": ("loading", "")}
    chat = FakeFleet(running.fleet.client, size=3, pool="chat")
    chat.routers = ["router-9"]
    running.beside.append(chat)
    running.write()
    opened = open_page()
    opened.page.route_web_socket("**/ws/**", lambda socket: None)  # sends nothing
    opened.page.clock.set_fixed_time(time.time())  # otherwise the tiles become stale

    def drawn(path: str) -> list[str]:
        opened.goto(path)
        return opened.page.locator(".tile").evaluate_all("(tiles) => tiles.map((tile) => tile.dataset.status)")

    shown = ["failed", "ready", "ready", "ready", "saturated", "loading", "ready", "ready"]
    assert ended(lambda: drawn("/live?pool=demo") == shown, 60)
    page = opened.page
    assert page.locator(".tile [data-part=id]").all_inner_texts() == [f"demo-{i}" for i in (6, 0, 1, 2, 3, 4, 5, 7)]
    assert page.locator('[data-id="demo-3"] [data-part="tick"]').get_attribute("d") == "M95 0v6"
    assert page.locator("#wanted").inner_text() == "6 of 8"
    assert "simulated" in page.locator("#policies").inner_text()
    assert page.locator('[data-class="heavy"] [data-part="means"]').inner_text() == "20,000 new tokens or more"
    assert "ms" in page.locator('[data-class="warm"] [data-line="ttft"]').inner_text()
    assert "demo-6" in page.locator("#attention").inner_text()
    warm = page.locator('[data-strip="warm"]')
    warm.locator("canvas").focus()
    page.keyboard.press("ArrowLeft")
    expect(warm.locator('[data-part="reading"]')).to_contain_text(re.compile(r"p50 \d+(\.\d+)? m?s"))
    assert page.locator('[data-total="running"]').inner_text().isdigit()
    assert ended(lambda: drawn("/live?pool=chat") == ["ready"] * 3, 60)
    assert page.locator(".tile [data-part=id]").all_inner_texts() == ["chat-0", "chat-1", "chat-2"]


def test_no_policy_is_named_for_an_observed_pool(running: RunningFleet, open_page: Any) -> None:
    seen = FakeFleet(running.fleet.client, size=1, pool="seen")
    seen.observed = True
    running.beside.append(seen)
    running.write()
    page = open_page().goto("/live")
    expect(page.locator("#policies p")).to_have_count(2)
    expect(page.locator("#policies")).to_contain_text("seen observed only")
    assert page.locator("#policies").inner_text().count("default v3") == 1


MARKS = """async () => {
  const { Timeline } = await import("/static/js/timeline.js");
  const { draw, mark } = Timeline.prototype;
  Timeline.prototype.draw = function () { globalThis.marks = []; draw.call(this); };
  Timeline.prototype.mark = function (context, event, size) {
    globalThis.marks.push(event.text);
    mark.call(this, context, event, size);
  };
}"""


def test_a_completed_rollout_is_one_line_and_one_mark(running: RunningFleet, open_page: Any) -> None:
    now = time.time()
    begun, ended_at = (
        {"kind": "update", "subject": "demo", "version": 2},
        {"kind": "complete", "subject": "demo", "version": 2},
    )
    running.fleet.write_event(now - 50, "demo: version 2: engine.seed 1 → 2", pools=["demo"], **begun)
    running.fleet.write_event(now - 5, "demo: rollout of v2 complete: 8/8 ready", pools=["demo"], **ended_at)
    page = open_page().drawn("/live")
    said = "demo: version 2: engine.seed 1 → 2; complete after 45 s"
    expect(page.locator("#events li")).to_have_count(1)
    expect(page.locator("#events li")).to_contain_text(said)
    page.evaluate(MARKS)
    page.wait_for_function("() => globalThis.marks?.length > 0")
    assert page.evaluate("globalThis.marks") == [said]


FRAME_READ: list[tuple[str, Any]] = [
    ("verdict({n: 40, rate: 1, ttft_n: 40, ttft: [null, 300, null]}, 300)", "SLO met"),
    ("verdict({n: 40, rate: 1, ttft_n: 40, ttft: [null, 300, null]}, 300, true)", "SLO met again"),
    ("verdict({n: 40, rate: 1, ttft_n: 40, ttft: [null, 301, null]}, 300, true)", "SLO missed"),
    ("verdict({n: 40, rate: 1, ttft_n: 40, ttft: [null, 301, null]}, 300)", "SLO missed"),
    ("isListed({slo: {a: {warm: {listed: true}}, b: {}}}, 'a', 'warm')", True),
    ("isListed({slo: {a: {warm: {listed: true}}, b: {}}}, '', 'warm')", True),
    ("isListed({slo: {a: {warm: {listed: true}}, b: {}}}, 'b', 'warm')", False),
    ("isListed({slo: {a: {warm: {listed: false}}}}, 'a', 'warm')", False),
    ("verdict({n: 19, rate: 1, ttft_n: 19, ttft: [null, 900, null]}, 300)", "too few requests"),
    ("verdict({n: 40, rate: 1, ttft_n: 40, ttft: [null, 1, null]}, undefined)", "no SLO"),
    ("verdict({n: 9, rate: 1, ttft_n: 9, ttft: [null, 1, null]}, undefined)", "too few requests"),
    ("verdict({n: 0, rate: 0, ttft_n: 0, ttft: [null, null, null]}, 300)", "idle"),
    ("verdict({n: 40, rate: 1, errors: 1, refused: 39, ttft_n: 0, ttft: [null, null, null]}, 300)", "most are refused"),
    ("verdict({n: 45, rate: 1, errors: 20, client_errors: 6, ttft_n: 19, ttft: [null, 1, null]}, 300)", "most fail"),
    ("verdict({n: 60, rate: 1, errors: 30, cancelled: 30, ttft_n: 0, ttft: [null]}, 300)", "too few requests"),
    ("verdict(null, 300)", "unknown"),
    (
        "slosOf({pools: {a: {slo: {warm: 300, heavy: 9}}, b: {slo: {warm: 300, heavy: 8}}}}, '', {})",
        {"warm": {"ttft": 300}, "medium": {}, "heavy": {}},
    ),
    ("slosOf({pools: {b: {slo: {heavy: 8}}}}, 'b', {tpot: 50}).heavy", {"ttft": 8, "tpot": 50}),
    ("[[], ['chat', 'demo'], ['demo']].map((pools) => concerns('chat')({pools}))", [True, True, False]),
    ("concerns('')({pools: ['demo']})", True),
]


def test_a_frame_contains_verdicts_slos_and_the_problems_of_a_pool(running: RunningFleet, open_page: Any) -> None:
    page = open_page().goto("/live")
    calls = ", ".join(call for call, _ in FRAME_READ)
    names = "{ verdict, slosOf, concerns, isListed }"
    read = f"async () => {{ const {names} = await import('/static/js/live_frame.js'); return [{calls}]; }}"
    assert page.evaluate(read) == [found for _, found in FRAME_READ]


@pytest.mark.parametrize(("value", "limit"), [(1504, 1500), (1500.04, 1500), (1500, 1500), (300.4, 300), (1240, None)])
def test_a_figure_beside_its_limit_is_formatted_as_on_the_server(open_page: Any, value: float, limit: float) -> None:
    page = open_page().goto("/help")
    written = page.evaluate("async (given) => (await import('/static/js/format.js')).ms(...given)", [value, limit])
    assert written == figures.ms(value, limit)


def test_figures_follow_the_fleet_without_errors_in_the_console(running: RunningFleet, open_page: Any) -> None:
    opened = open_page()
    page = opened.goto("/live")
    page.wait_for_function(UPDATED)
    running.fleet.kv["demo-3"] = 0.97
    expect(page.locator('[data-id="demo-3"]')).to_have_attribute("data-status", "saturated")
    expect(page.locator('[data-id="demo-3"] [data-part="kv"]')).to_have_text("97 %")
    expect(page.locator("#attention")).to_contain_text("demo-3")
    expect(page.locator("#counts")).to_contain_text("1 saturated")
    expect(page.locator("#policies")).to_contain_text(re.compile(r"simulated.*\d/\d routers"))
    assert opened.faults == []


def test_a_published_limit_a_new_pool_and_its_events_appear(running: RunningFleet, open_page: Any) -> None:
    page = open_page().goto("/live")
    page.wait_for_function(UPDATED)
    expect(page.locator('[data-class="heavy"] [data-part="means"]')).to_have_text("20,000 new tokens or more")
    running.fleet.limits["heavy_new_tokens"] = 12_000
    expect(page.locator('[data-class="heavy"] [data-part="means"]')).to_have_text("12,000 new tokens or more")
    known = "() => JSON.parse(document.getElementById('snapshot').textContent).history.at.length"
    chat = FakeFleet(running.fleet.client, size=2, pool="chat")
    chat.routers = ["router-9"]
    chat.write()
    running.fleet.write_event(time.time(), "demo-1 failed", pools=["demo"])
    running.fleet.write_event(time.time(), "chat-1 failed", pools=["chat"])
    expect(page.locator("#events")).to_contain_text("demo-1 failed")
    page.goto(page.url + "?pool=chat")
    expect(page.locator("#events")).to_contain_text("chat-1 failed")
    expect(page.locator("#events")).not_to_contain_text("demo-1 failed")
    page.goto(page.url.partition("?")[0])
    page.wait_for_function(UPDATED)
    loads = 1
    while page.evaluate(known) <= 3 and loads < 30:  # a point per second, and a page may contain those of 2 s ago
        page.reload()
        loads += 1
    assert page.evaluate(known) > 3
    history = "() => JSON.parse(document.getElementById('snapshot').textContent).history.classes['*'].warm.n"
    assert all(page.evaluate(history))


def test_the_tile_of_a_removed_instance_disappears(running: RunningFleet, open_page: Any) -> None:
    opened = open_page()
    page = opened.goto("/live")
    page.wait_for_function(UPDATED)
    running.fleet.size = 5
    expect(page.locator(".tile")).to_have_count(5)
    expect(page.locator("#counts")).to_contain_text("5 ready")
    assert opened.faults == []


def test_engines_without_samples_keep_their_last_known_status(running: RunningFleet, open_page: Any) -> None:
    page = open_page().goto("/live")
    page.wait_for_function(UPDATED)
    running.paused = True
    tile = page.locator('[data-id="demo-0"]')
    expect(tile).to_have_attribute("data-last-known", "")
    shown = page.locator('[data-id="demo-0"] [data-part="kv"]').inner_text()
    expect(page.locator("#counts")).to_have_text("8 ready, last known")
    expect(page.locator("#wanted")).to_have_text("0 of 8")
    expect(page.locator('[data-kind="router"]')).to_contain_text("router is down")
    expect(page.locator("#banners .banner")).to_have_count(1)  # the node worker's is under Needs attention
    expect(page.locator("#attention")).to_contain_text("no instance is sampled")
    expect(tile.locator('[data-part="age"]')).to_have_text(re.compile(r"^(1[5-9]|[2-9]\d) s ago$"))
    assert tile.get_attribute("data-status") == "ready"
    page.locator("#heat").focus()
    page.keyboard.press("ArrowLeft")  # moves to the newest column
    expect(page.locator("#heat-reading")).to_have_text(re.compile(r"· no data · last known ready$"))
    assert page.locator('[data-id="demo-0"] [data-part="kv"]').inner_text() == shown != "0 %"


@pytest.mark.parametrize(
    ("path", "width", "height", "uncovered"),
    [
        ("/live", 1440, 900, (".live-head h1",)),
        ("/live", 390, 844, (".live-head h1",)),
        ("/wall?kiosk=1", 1920, 1080, (".wall-head", ".wall-side")),
    ],
)
def test_a_banner_appears_and_disappears_without_moving_anything(
    running: RunningFleet, open_page: Any, path: str, width: int, height: int, uncovered: tuple[str, ...]
) -> None:
    page = open_page(width=width, height=height).goto(path)
    page.wait_for_function("() => document.body.dataset.data === 'live'")
    expect(page.locator("#banners .banner")).to_have_count(0)
    running.paused = True
    expect(page.locator("#banners .banner")).to_be_visible()
    shown, without = page.evaluate(WITH_AND_WITHOUT_BANNERS)
    assert shown == without
    banner = page.locator("#banners .banner").bounding_box()
    for other in (page.locator(part).bounding_box() for part in uncovered):
        assert (
            banner["y"] + banner["height"] <= other["y"]
            or banner["y"] >= other["y"] + other["height"]
            or banner["x"] + banner["width"] <= other["x"]
        )
    running.paused = False
    expect(page.locator("#banners .banner")).to_have_count(0)


def test_a_killed_web_process_is_reported_and_the_page_recovers_without_a_reload(
    running: RunningFleet, open_page: Any, web: Web
) -> None:
    write_delivery(running)
    page = open_page().goto("/live")
    page.wait_for_function(UPDATED)
    left = page.locator(".delivery-line .number")
    expect(left).to_have_text(re.compile(r"^[34]:\d\d$"))
    page.evaluate("globalThis.sameDocument = true")
    web.stop("web")
    banner = page.locator('[data-kind="connection"]')
    expect(banner).to_contain_text("Disconnected")
    expect(banner).to_contain_text("Retrying in")
    expect(page.locator("#age-text")).to_have_text(re.compile(r"^data \d+(\.\d)? s old$"))
    expect(page.locator('[data-id="demo-0"]')).to_have_attribute("data-last-known", "")
    assert page.locator('[data-id="demo-0"]').get_attribute("data-status") == "ready"
    expect(page.locator('[data-strip="heavy"] [data-part="verdict"]')).to_contain_text("unknown since")
    expect(page.locator("#wanted")).to_have_text("– of 8")
    expect(left).to_have_text("–")
    write_delivery(running)
    web.start()
    expect(banner).to_have_count(0)
    expect(page.locator('[data-strip="heavy"] [data-part="verdict"]')).not_to_contain_text("unknown")
    expect(page.locator("#wanted")).to_have_text("8 of 8")
    page.wait_for_function(UPDATED)
    assert page.evaluate("globalThis.sameDocument") is True


AGES: list[tuple[str, list[float]]] = [
    # (sent_at, at of the frame, received at) of each message; the age of its frame on arrival
    ("[[100, 99.6, 100.1]]", [0.4]),
    ("[[100, 75, 100.1]]", [25]),
    ("[[100, 99.6, 100.1], [101, 100.6, 126.1]]", [0.4, 25.4]),
    ("[[100, 99.6, 103.1], [101, 100.6, 101.1], [102, 101.6, 105.1]]", [0.4, 0.4, 3.4]),
    ("[[100, 99.6, 7000], [101, 100.6, 7001]]", [0.4, 0.4]),
    ("[[100, 99.6, 100.1], [40, 39.6, 101.1], [41, 40.6, 102.1]]", [0.4, 0.4, 0.4]),
    ("[[100, 100.2, 100.1]]", [0]),
    ("[[undefined, 99, 100.1]]", [0]),
]


def test_the_age_of_a_frame_includes_its_age_when_sent_and_its_time_in_transit(open_page: Any) -> None:
    page = open_page().goto("/help")
    for messages, ages in AGES:
        read = f"""async () => {{
          const {{ FrameAges }} = await import("/static/js/frame_age.js");
          const ages = new FrameAges();
          const read = ([sent_at, at, receivedAt]) => ages.stamp({{ sent_at, frame: {{ at }} }}, receivedAt).age;
          return {messages}.map(read);
        }}"""
        assert page.evaluate(read) == pytest.approx(ages), messages


HELD_S = 6


@pytest.mark.parametrize("path", ["/live", "/wall?kiosk=1"])
def test_messages_delayed_in_transit_do_not_make_an_old_frame_look_new(
    running: RunningFleet, open_page: Any, path: str
) -> None:
    opened = open_page()
    page = opened.page
    waiting: list[tuple[float, Any]] = []

    def hold(socket: Any) -> None:
        server = socket.connect_to_server()
        server.on_message(lambda message: waiting.append((time.monotonic() + HELD_S, (socket, message))))

    page.route_web_socket("**/ws/live*", hold)
    opened.goto(path)
    passed_on = 0
    end = time.monotonic() + 60
    while time.monotonic() < end and passed_on < 5:
        page.wait_for_timeout(200)
        while waiting and waiting[0][0] <= time.monotonic():
            socket, message = waiting.pop(0)[1]
            socket.send(message)
            passed_on += 1
        text = page.locator("#age-text").inner_text()
        assert not passed_on or re.fullmatch(r"data \d+(\.\d)? s old", text), text
    assert passed_on == 5


def test_a_lost_redis_has_its_own_banner_until_it_is_back(running: RunningFleet, open_page: Any, web: Web) -> None:
    page = open_page().goto("/live")
    page.wait_for_function(UPDATED)
    running.stop()
    web.stop("redis")
    expect(page.locator('[data-kind="redis"]')).to_contain_text("Redis is down")
    web.start_redis()
    running.fleet.write()
    expect(page.locator('[data-kind="redis"]')).to_have_count(0)


def test_pausing_freezes_the_figures_and_counts_the_missed_frames(running: RunningFleet, open_page: Any) -> None:
    page = open_page().goto("/live")
    page.wait_for_function(UPDATED)
    page.click("#pause")
    running.fleet.kv["demo-1"] = 0.99
    expect(page.locator("#age-text")).to_contain_text("paused 00:")
    page.wait_for_function("() => /[2-9] frames behind/.test(document.getElementById('age-text').textContent)")
    assert page.locator('[data-id="demo-1"]').get_attribute("data-status") == "ready"
    heavy = page.locator(".class-strip[data-strip=heavy] canvas")
    charts = [heavy, page.locator("#heat")]
    before = [chart.evaluate("canvas => canvas.toDataURL()") for chart in charts]
    page.locator(".class-strip[data-strip=warm] canvas").hover()
    for chart, drawn in zip(charts, before, strict=True):  # the time under the pointer is marked on each
        page.wait_for_function("([node, drawn]) => node.toDataURL() !== drawn", arg=[chart.element_handle(), drawn])
    page.locator("#pause").hover()
    page.wait_for_function("([node, drawn]) => node.toDataURL() === drawn", arg=[heavy.element_handle(), before[0]])
    running.fleet.client.hset(redis_keys.STEPS, reports.LEASE, codec.encode(REFUSED))
    expect(page.locator("#banners")).to_contain_text("The database is read-only")
    page.click("#pause")
    expect(page.locator('[data-id="demo-1"]')).to_have_attribute("data-status", "saturated")


TOPS = """() => ['.strip', '.live-main', '#heat', '.live-events']
  .map((part) => document.querySelector(part).getBoundingClientRect().top)"""


@pytest.mark.parametrize(("width", "height"), [(1440, 900), (1920, 1080), (390, 844)])
def test_a_drain_a_rollout_and_a_delivery_move_nothing(
    running: RunningFleet, open_page: Any, width: int, height: int
) -> None:
    fleet = running.fleet
    if width < 500:  # a phone keeps no space for a delivery that is not there: the page moves once, when it starts
        write_delivery(running)
    page = open_page("otto", width=width, height=height).goto("/live")
    page.wait_for_function(UPDATED)
    if width < 500:
        expect(page.locator(".delivery-line")).to_be_attached()  # a frame may be older than the delivery
    page.evaluate(LAYOUT_SHIFT)
    tops = page.evaluate(TOPS)
    for states in (
        {"demo-3": ("draining", "drained by ada")},
        {"demo-0": ("stopping", ""), "demo-1": ("starting", ""), "demo-2": ("loading", ""), "demo-3": ("draining", "")},
        {f"demo-{i}": ("failed", "its configuration changed and it ended with exit status 1") for i in range(6)},
    ):
        fleet.states = dict(states)
        fleet.write_event(time.time(), f"demo: version {len(states)}: engine.seed 1 → 2", kind="update", pools=["demo"])
        for state, _ in states.values():
            expect(page.locator("#counts")).to_contain_text(state)
    write_delivery(running)
    expect(page.locator(".delivery-line")).to_be_attached()
    fleet.busy = 5_000
    expect(page.locator('[data-total="running"]')).to_have_text(re.compile(r"\d\d,\d{3}"))
    assert page.evaluate(TOPS) == tops
    assert page.evaluate("globalThis.shift") <= 0.02


def test_the_url_alone_reproduces_the_view(running: RunningFleet, open_page: Any) -> None:
    page = open_page().goto("/live?range=900&pool=demo&theme=light")
    page.wait_for_function(UPDATED)
    assert page.locator('[data-range="900"]').get_attribute("aria-current") == "true"
    assert page.evaluate("document.documentElement.dataset.theme") == "light"
    page.click('[data-range="3600"]')
    expect(page).to_have_url(re.compile("range=3600"))
    expect(page).to_have_url(re.compile("theme=light"))


def test_each_chart_has_a_table(running: RunningFleet, open_page: Any) -> None:
    page = open_page().goto("/live")
    page.wait_for_function(UPDATED)
    for title, part in (
        ("Instance", "#heat-table"),
        ("Class", "#flow-table"),
        ("Time", "[data-class=warm] [data-chart=ttft] details"),
    ):
        page.locator(f"{part} summary").click()
        expect(page.locator(f"{part} tbody tr").first).to_be_visible()
        assert page.locator(f"{part} th").first.inner_text() == title
        assert page.locator(f"{part} caption").first.inner_text()


def test_a_range_is_chosen_by_drag_keys_or_buttons_and_reset_again(running: RunningFleet, open_page: Any) -> None:
    opened = open_page()
    page = opened.goto("/live")
    page.wait_for_function(UPDATED)
    chart = page.locator("[data-class=warm] [data-chart=ttft] canvas")
    times = "[data-class=warm] [data-chart=ttft] details"
    back = page.locator("#back-to-live")
    expect(back).to_be_hidden()
    chart.scroll_into_view_if_needed()
    box = chart.bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.4, box["y"] + box["height"] * 0.5)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.7, box["y"] + box["height"] * 0.5, steps=5)
    page.mouse.up()
    expect(back).to_be_visible()
    expect(chart).to_have_attribute("aria-label", re.compile("over [12] min"))
    page.locator("[aria-label='Zoom out']").click()
    page.locator("[aria-label='Zoom out']").click()
    expect(back).to_be_hidden()
    expect(chart).to_have_attribute("aria-label", re.compile("over 5 min"))
    chart.focus()
    page.keyboard.press("+")
    expect(back).to_be_visible()
    page.keyboard.press("End")
    expect(page.locator("[data-class=warm] [data-chart=ttft] output")).to_have_text(re.compile("p50 .* ms"))
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile(r"/requests/\?class=warm&sort=ttft&ended_since=20\d\d-.*Z&ended_until=20\d\d-.*Z$"))
    expect(page.locator("#f-class")).to_have_value("warm")
    page.go_back()
    page.wait_for_function(UPDATED)
    chart.press("+")
    back.click()
    expect(back).to_be_hidden()
    page.locator(f"{times} summary").click()
    assert opened.faults == []


def test_screen_readers_read_a_gap_as_no_data(running: RunningFleet, open_page: Any) -> None:
    page = open_page().goto("/live")
    page.wait_for_function(UPDATED)
    page.locator("[data-class=warm] [data-chart=ttft] canvas").focus()
    page.keyboard.press("Home")  # five minutes ago there was no fleet
    expect(page.locator("[data-class=warm] [data-chart=ttft] output")).to_have_text(re.compile(r"· no data$"))
    page.locator("#heat").focus()
    for _ in range(40):
        page.keyboard.press("ArrowLeft")
    expect(page.locator("#heat-reading")).to_have_text(re.compile(r"^demo-\d · [\d:]+ · no data$"))
    page.keyboard.press("Enter")
    page.wait_for_url("**/fleet/instances/demo-*/")


GAP = """async () => {
  const { Chart } = await import("/static/js/live_chart.js");
  const figure = document.body.appendChild(document.createElement("figure"));
  figure.innerHTML = "<canvas></canvas><output></output><details open><div class=chart-table></div></details>";
  const write = (value) => (value == null ? "–" : `${value} %`);
  const lines = ({ kv }) => [{ name: "KV", values: kv, dash: [] }];
  const chart = new Chart(figure, "KV", { write, lines });
  chart.update([100, 101, 102], { kv: [0, null, 7], n: [3, null, 0] }, [], 90, 110);
  const readings = [100, 101, 102, 107].map((at) => chart.timeline.reading(at).split(" · ")[1]);
  const rows = [...figure.querySelectorAll("tbody tr")].map((row) => row.textContent);
  figure.remove();
  const { Timeline } = await import("/static/js/timeline.js");
  const none = new Timeline(document.createElement("canvas"), { write, lines, same: 0 });
  none.update([100], { kv: [null] }, [], 90, 110);
  return [readings, rows, none.rules()];
}"""


def test_a_missing_value_is_not_zero_in_a_reading_and_in_the_table(running: RunningFleet, open_page: Any) -> None:
    readings, rows, empty_axis = open_page().goto("/live").evaluate(GAP)
    assert readings == ["KV 0 %", "no data", "KV 7 %", "no data"]
    assert [row[len("00:00:00") :] for row in rows] == ["7 %0", "––", "0 %3"]
    assert empty_axis == [0, 0.5, 1]


def test_a_custom_range_is_in_the_url_and_its_numbers_stay_live(running: RunningFleet, open_page: Any) -> None:
    now = int(time.time())
    opened = open_page()
    page = opened.goto(f"/live?from={now - 7200}&to={now - 60}")
    page.wait_for_function(UPDATED)
    expect(page.locator("#window")).to_contain_text("the numbers are live")
    expect(page.locator("#heat")).to_have_attribute("aria-label", "KV usage by instance over time: no data")
    page.locator("#custom summary").click()
    page.locator("#custom-from").fill("2020-01-01T00:00:00")
    page.locator("#custom-to").fill("2020-01-01T00:00:10")
    page.locator("#custom button").click()
    assert (
        page.evaluate("document.getElementById('custom-to').validationMessage")
        == "The range must be at least a minute long."
    )
    page.locator("#window a").click()
    expect(page.locator("[data-range='300']")).to_have_attribute("aria-current", "true")
    assert opened.faults == []


def test_a_click_in_the_flow_filters_the_page_and_the_url_keeps_the_filter(
    running: RunningFleet, open_page: Any
) -> None:
    opened = open_page()
    page = opened.goto("/live")
    page.wait_for_function(UPDATED)
    widths = page.locator("#flow .flow-band").evaluate_all(
        "bands => bands.map((band) => band.getAttribute('stroke-width'))"
    )
    assert max(map(float, widths)) > 5  # as wide as the requests, beside names that keep their height
    page.locator("#flow [data-kind=instance][data-name=demo-2]").press("Enter")
    expect(page.locator(".tile")).to_have_count(1)
    expect(page).to_have_url(re.compile("filter=instance%3Ademo-2"))
    page.reload()
    expect(page.locator("#unfilter")).to_have_text("Only instance demo-2 ×")
    expect(page.locator(".tile")).to_have_count(1)
    page.locator("#unfilter").click()
    expect(page.locator(".tile")).to_have_count(8)
    page.locator("#flow [data-kind=class][data-name=heavy]").click()
    expect(page.locator(".class-strip[data-strip=warm]")).to_have_class(re.compile("dim"))
    expect(page.locator("#flow text", has_text="MB/s")).to_have_count(1)
    assert opened.faults == []


def test_the_page_uses_its_width_and_its_charts_are_aligned(
    running: RunningFleet, open_page: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = running.fleet.windows
    monkeypatch.setattr(
        running.fleet, "windows", lambda at: {name: {**one, "moved": {}} for name, one in plain(at).items()}
    )
    page = open_page("otto").drawn("/live")
    free = """() => document.getElementById('flow').getBoundingClientRect().right
        - Math.max(...[...document.querySelectorAll('#flow text')].map((text) => text.getBoundingClientRect().right))"""
    assert ended(lambda: 0 <= page.evaluate(free) < 140)
    for chart in ("ttft", "tpot"):
        tops = [each.bounding_box()["y"] for each in page.locator(f"[data-chart={chart}] canvas").all()]
        assert len({*tops}) == 1, tops
    expect(page.locator("#policies")).to_contain_text("default v3 Adaptive, 1/1 routers")


@pytest.mark.parametrize(("width", "height", "text_px", "least"), [(3840, 2160, 24, 0.75), (3440, 1440, 16, 0.45)])
def test_text_and_charts_are_larger_on_a_screen_of_four_thousand_pixels_but_not_on_a_wide_one(
    running: RunningFleet, open_page: Any, width: int, height: int, text_px: float, least: float
) -> None:
    page = open_page(width=width, height=height).drawn("/live")
    px = "(node) => Number.parseFloat(getComputedStyle(node).fontSize)"
    assert page.locator("html").evaluate(px) == text_px
    assert page.locator("#heat").evaluate(px) == 11 * text_px / 16
    name = page.locator("#flow .flow-name").first
    box = name.bounding_box()
    assert box is not None
    assert box["height"] == pytest.approx(17 * text_px / 16, rel=0.3)
    for path in ("/live", "/fleet/"):
        main = open_page(width=width, height=height).goto(path).locator("main").bounding_box()
        assert main is not None
        assert least < main["width"] / width < 1


def test_the_first_view_shows_the_slo_of_each_class_and_one_switch_sets_the_time_zone(
    running: RunningFleet, open_page: Any
) -> None:
    running.fleet.slo = {"warm": 100.0, "medium": 9_000.0}
    running.fleet.write()
    opened = open_page(timezone_id="Asia/Tokyo")
    page = opened.goto("/live")
    page.wait_for_function(UPDATED)
    for name, word in (("warm", "SLO missed"), ("medium", "SLO met"), ("heavy", "too few requests")):
        expect(page.locator(f".class-strip[data-strip={name}] [data-part=verdict]")).to_have_text(word)
    bottom = page.evaluate("document.getElementById('heat').getBoundingClientRect().bottom")
    assert bottom <= 900
    running.fleet.write_event(1_760_000_000.0, "rollout of v1 complete", pools=["demo"])
    shown = page.locator("#events time")
    expect(shown).to_have_text("17:53:20")
    checked = page.locator("#attention-checked time")
    expect(checked).to_have_attribute("datetime", re.compile(r"Z$"))
    page.click("[data-zone=utc]")
    expect(shown).to_have_text("08:53:20")
    page.goto(page.url)
    expect(page.locator("[data-zone=utc]")).to_have_attribute("aria-pressed", "true")
    expect(shown).to_have_text("08:53:20")
    assert opened.faults == []


JUDGED = """() => {
  const shown = document.querySelector("[data-strip=warm], [data-class=warm]");
  const part = (name) => shown.querySelector(`[data-part=${name}]`).textContent;
  const listed = [...document.querySelectorAll("#attention li")].map((item) => item.textContent);
  return [part("verdict"), part("p90"), listed.find((text) => text.includes("warm")) ?? ""];
}"""


@pytest.mark.parametrize("path", ["/live", "/wall"])
def test_a_class_is_judged_by_one_window_on_its_card_and_under_needs_attention(
    running: RunningFleet, open_page: Any, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slo, "HOLD_S", 4.0)
    running.fleet.slo = {"warm": 2_000.0}
    running.write()
    page = open_page(width=1920, height=1080).goto(path)
    page.wait_for_function(UPDATED)
    looks = []
    for slower, until in ((20.0, "SLO missed+"), (1.0, "SLO met again+"), (1.0, "SLO met")):
        running.fleet.slower = slower
        end = time.monotonic() + 60
        while not looks or looks[-1] != until:
            assert time.monotonic() < end, looks
            verdict, p90, listed = page.evaluate(JUDGED)
            looks.append(verdict + "+" * bool(listed))
            assert f"p90 {p90} over 60 s, SLO 2 s" in listed or not listed
            assert ("met again, for less than 4 s" in listed) == (verdict == "SLO met again")
            page.wait_for_timeout(100)
    order = ["SLO met", "SLO missed", "SLO missed+", "SLO met again+", "SLO met"]
    assert [word for word, _ in groupby(looks)] == order


def test_simulated_gpus_are_named_as_such_beside_their_figures(running: RunningFleet, open_page: Any) -> None:
    opened = open_page(width=1440, height=900)
    page = opened.goto("/live")
    page.wait_for_function(UPDATED)
    strip = page.locator(".strip-figures")
    for text in ("90 % GPU memory, simulated", "2.4 kW GPU power, simulated"):
        expect(strip).to_contain_text(text)
    cut = "labels => labels.filter((label) => label.scrollWidth > label.clientWidth).map((label) => label.textContent)"
    assert strip.locator(".muted").evaluate_all(cut) == []
    expect(page.locator("[aria-labelledby=instances-title] header")).to_contain_text("8 instances; GPUs simulated")
    expect(page.locator(".tile").first).to_contain_text("300 W power")
    page = opened.goto("/wall")
    expect(page.locator(".wall-head")).to_contain_text("90 % memory, 2.4 kW, simulated")


SMALL = """() => [...document.querySelectorAll('a, button, summary, select, input, [role=button]')]
  .filter((node) => node.checkVisibility() && !node.closest('.visually-hidden, .skip-link, p:not([class])'))
  .map((node) => [node, node.getBoundingClientRect()])
  .filter(([, box]) => box.height < 23.5 || box.width < 23.5)
  .map(([node, box]) => `${node.outerHTML.slice(0, 80)} ${box.width}×${box.height}`)"""


def test_no_target_is_smaller_than_24_px(running: RunningFleet, open_page: Any) -> None:
    page = open_page().goto("/live")
    page.wait_for_function(UPDATED)
    assert page.evaluate(SMALL) == []
    page.set_viewport_size({"width": 320, "height": 700})
    page.wait_for_function("document.documentElement.scrollWidth <= 320")
    assert page.evaluate(SMALL) == []


NAMES = """() => {
  globalThis.names = new Set();
  const fillText = CanvasRenderingContext2D.prototype.fillText;
  CanvasRenderingContext2D.prototype.fillText = function (text, ...rest) {
    if (this.canvas.closest("#heat")) globalThis.names.add(text);
    return fillText.call(this, text, ...rest);
  };
}"""


def test_the_name_of_a_failed_instance_is_drawn_whole(running: RunningFleet, open_page: Any) -> None:
    """A failed instance's name is bold, and therefore wider than others."""
    running.fleet.states = {f"demo-{i}": ("failed", "ended with exit status 1") for i in range(6)}
    opened = open_page()
    opened.page.add_init_script(f"({NAMES})()")
    page = opened.goto("/live")
    page.wait_for_function("() => globalThis.names.has('failed')")
    assert {f"demo-{i}" for i in range(6)} <= set(page.evaluate("[...globalThis.names]"))


def test_a_list_of_300_long_names_is_shortened_with_failures_first(running: RunningFleet, open_page: Any) -> None:
    fleet = running.fleet
    fleet.pool, fleet.size = "production-llama-3-1-70b-instruct", 300
    fleet.states = {f"{fleet.pool}-217": ("failed", "ended with exit status 1")}
    fleet.client.flushall()
    fleet.write()
    page = open_page().goto("/live")
    page.wait_for_function(UPDATED)
    first = page.locator(".tile [data-part=id]").first
    expect(first).to_have_text(f"{fleet.pool}-217")
    ends = first.evaluate(
        "name => [name.children[1].getBoundingClientRect(), name.closest('.tile').getBoundingClientRect()]"
        ".map((box) => box.right)"
    )
    assert ends[0] < ends[1]
    assert first.locator("span").last.inner_text() == "ruct-217"
    expect(page.locator("#counts li").first).to_contain_text("1 failed")
    row = page.evaluate("""async () => {
      const { shortened } = await import("/static/js/canvas.js");
      return shortened(document.createElement("canvas").getContext("2d"), "production-llama-3-1-70b-105…111 (7)", 120);
    }""")
    assert re.fullmatch(r"p\S*….*105…111 \(7\)", row)
    flow = page.evaluate("""async () => {
      const { busiest } = await import("/static/js/flow.js");
      const links = Array.from({ length: 60 }, (_, i) => ["warm", "session", `chat-${i}`, i + 1]);
      const arcs = [["chat-0", "chat-59", 1, 9], ["chat-1", "chat-2", 1, 9]];
      return busiest({ links: [...links, ["warm", "session", "", 5]], arcs });
    }""")
    names = [link[2] for link in flow["links"]]
    assert sorted(names) == sorted(["", "chat-0", *(f"chat-{i}" for i in range(44, 60))])
    assert [link[3] for link in flow["links"] if not link[2]] == [sum(range(2, 45)) + 5]
    assert flow["arcs"] == [["chat-0", "chat-59", 1, 9]]
    expect(page.locator("#heat-note")).to_have_text(re.compile(r"^300 instances in \d+ rows, the highest of each$"))
    rows = int(page.locator("#heat-note").inner_text().split()[3])
    assert rows * 11 <= page.evaluate("document.getElementById('heat').clientHeight")

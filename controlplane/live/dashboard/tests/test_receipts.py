"""Receipts: the list and its filters, the explanation of one, and the message when there is none."""

import json
import re
import time
from datetime import UTC, datetime
from typing import Any

import pytest
import redis
from django.test import Client

from controlplane.live.dashboard.tests.fake_fleet import FakeFleet
from controlplane.pages.receipts import explain
from controlplane.pages.receipts.query import ReceiptQuery
from controlplane.pages.receipts.reader import newer_than, search, written_at
from controlplane.testing import ApiCaller
from fleet.models import Pool
from router.contract.redis import redis_keys
from router.contract.redis.receipt import Receipt
from router.tests.values import receipt_of, stored_receipt

NOW = time.time()


@pytest.fixture
def written(live_redis: redis.Redis) -> FakeFleet:
    fleet = FakeFleet(live_redis)
    fleet.write(NOW)
    fleet.write_receipt("req-warm", NOW - 3)
    fleet.write_receipt("req-heavy", NOW - 2, **{"class": "heavy", "instance": "demo-2"})
    fleet.write_receipt(
        "req-failed", NOW - 1, outcome="error", status=502, code="upstream_failed", error="connection reset"
    )
    return fleet


def ids(rows: list[Receipt]) -> list[str]:
    return [row.request_id for row in rows]


@pytest.mark.parametrize(
    ("filters", "found"),
    [
        (ReceiptQuery(), ["req-failed", "req-heavy", "req-warm"]),
        (ReceiptQuery(request_class="heavy"), ["req-heavy"]),
        (ReceiptQuery(instance="demo-2"), ["req-heavy"]),
        (ReceiptQuery(outcome="error"), ["req-failed"]),
        (ReceiptQuery(pool="demo", request_class="warm"), ["req-failed", "req-warm"]),
        (ReceiptQuery(pool="other"), []),
    ],
)
def test_recent_receipts_are_listed_newest_first_and_can_be_filtered(
    written: FakeFleet, live_redis: redis.Redis, filters: ReceiptQuery, found: list[str]
) -> None:
    assert ids(search(live_redis, filters, 10)) == found


def test_receipts_can_be_filtered_by_the_arm_of_a_delivery(
    written: FakeFleet, live_redis: redis.Redis, vera_client: Client, db: None
) -> None:
    written.write_receipt("req-new", NOW, delivery=3, arm="candidate")
    written.write_receipt("req-old", NOW, delivery=3, arm="control")
    assert ids(search(live_redis, ReceiptQuery(delivery="3"), 10)) == ["req-old", "req-new"]
    assert ids(search(live_redis, ReceiptQuery(delivery="3", arm="candidate"), 10)) == ["req-new"]
    page = vera_client.get("/requests/?delivery=3&arm=candidate").content.decode()
    assert "req-new" in page
    assert "req-old" not in page


@pytest.mark.parametrize(
    ("shadow", "said"),
    [
        ({"instance": "demo-2", "changed": True}, "v4 would choose demo-2<"),
        ({"instance": "demo-1"}, "v4 would choose demo-1, too"),
        ({"refused": True, "changed": True}, "v4 would refuse it"),
        ({"error": "no instance is left"}, "v4 could not decide: no instance is left"),
    ],
)
def test_a_receipt_names_its_delivery_and_the_decision_of_the_shadow(
    written: FakeFleet, vera_client: Client, db: None, shadow: dict[str, Any], said: str
) -> None:
    written.write_receipt("req-shadow", NOW, delivery=3, arm="control", shadow={"version": 4, **shadow})
    page = vera_client.get("/requests/req-shadow/").content.decode()
    assert 'href="/deliveries/3/">3</a>, control' in page
    assert said in page


def test_no_more_receipts_than_requested_are_read(written: FakeFleet, live_redis: redis.Redis) -> None:
    assert ids(search(live_redis, ReceiptQuery(), 2)) == ["req-failed", "req-heavy"]


def test_an_unreadable_receipt_is_skipped(written: FakeFleet, live_redis: redis.Redis) -> None:
    live_redis.xadd(redis_keys.RECEIPTS, {"r": "broken"})
    assert len(search(live_redis, ReceiptQuery(), 10)) == 3


def test_many_receipts_are_read_page_by_page(live_redis: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controlplane.pages.receipts.reader.PAGE", 2)
    fleet = FakeFleet(live_redis)
    for i in range(5):
        fleet.write_receipt(f"req-{i}", NOW - 5 + i)
    assert ids(search(live_redis, ReceiptQuery(), 10)) == ["req-4", "req-3", "req-2", "req-1", "req-0"]


def test_rows_newer_than_a_list_are_counted_once(written: FakeFleet, live_redis: redis.Redis) -> None:
    made = written_at(live_redis)
    assert newer_than(live_redis, ReceiptQuery(), made) == 0
    written.write_receipt("req-new", NOW, **{"class": "heavy"})
    assert newer_than(live_redis, ReceiptQuery(), made) == 1
    assert newer_than(live_redis, ReceiptQuery(request_class="warm"), made) == 0


@pytest.fixture
def slow(written: FakeFleet, db: None) -> None:
    """Add receipts beside `written`, whose TTFT is 405 ms: a slow one with a key, a fast one, and one that was not
    streamed.
    """
    slo = {"ttft_p90_ms": {"warm": 1_000, "heavy": 300}}
    Pool.objects.create(name="demo", model="m", kind="sim", policy="default", replicas=1, slo=slo)
    written.write_receipt("req-slow", NOW - 600, ended=NOW, ttft_ms=1_200.0, e2e_ms=9_000.0, key="batch")
    written.write_receipt("req-whole", NOW, ttft_ms=None, e2e_ms=4_000.0, stream=False)


def at(seconds: float) -> str:
    return datetime.fromtimestamp(NOW - seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("sort=ttft&class=warm", ["req-slow", "req-failed", "req-warm", "req-whole"]),
        ("sort=e2e&e2e_over_ms=2950", ["req-slow", "req-whole"]),
        ("ttft_over_ms=405", ["req-slow"]),
        ("slower_than_slo=true", ["req-slow", "req-heavy"]),
        ("slower_than_slo=true&sort=ttft", ["req-slow", "req-heavy"]),
        ("slower_than_slo=true&pool=other", []),
        ("key=batch", ["req-slow"]),
        ("since=60&outcome=ok", ["req-whole", "req-heavy", "req-warm"]),
        ("until=60", ["req-slow"]),
        ("since=900&until=300", ["req-slow"]),
        ("ended_since=595&until=60", ["req-slow"]),  # it was running then
        ("ended_since=590", ["req-whole", "req-failed", "req-heavy", "req-warm"]),
        ("ended_since=595&ended_until=580&sort=ttft", ["req-slow"]),
    ],
)
def test_page_and_api_find_the_same_slow_requests(
    slow: None, vera_client: Client, ci: ApiCaller, query: str, found: list[str]
) -> None:
    query = re.sub(r"\b(\w*since|\w*until)=(\d+)", lambda ago: f"{ago[1]}={at(float(ago[2]))}", query)
    answer = ci.get(f"/receipts?{query}").json()
    assert [row["request_id"] for row in answer["receipts"]] == found
    page = vera_client.get(f"/requests/?{query}").content.decode()
    assert re.findall(r'title="(req-\w+)"', page) == found


def test_the_legend_lists_only_the_phases_that_occur(written: FakeFleet, vera_client: Client) -> None:
    page = vera_client.get("/requests/").content.decode()
    legend = re.sub(r"<[^>]*>|\s+", " ", page.partition('<ul class="phase-legend')[2].partition("</ul>")[0])
    assert legend.split(">")[-1].split() == ["Queue", "Until", "the", "first", "content", "Decode"]


def test_the_page_reports_an_invalid_filter_and_lists_without_it(slow: None, vera_client: Client) -> None:
    page = vera_client.get("/requests/?ttft_over_ms=fast&key=batch").content.decode()
    assert "<strong>TTFT over</strong><span>Must be a number." in page
    assert re.findall(r'title="(req-\w+)"', page) == ["req-slow"]


def test_the_page_reads_a_time_without_a_zone_as_utc_and_a_span_as_ending_now(slow: None, vera_client: Client) -> None:
    for query in (f"since={at(900)[:-1]}&until={at(300)[:-1]}", "last=3600&key=batch"):
        assert "req-slow" in vera_client.get(f"/requests/?{query}").content.decode()
    assert "req-slow" not in vera_client.get("/requests/?last=300").content.decode()


def test_a_request_slower_than_its_slo_is_marked(slow: None, vera_client: Client) -> None:
    listed = vera_client.get("/requests/?key=batch").content.decode()
    assert 'title="Slower than the SLO of 1 s">▲ 1.2 s' in listed
    assert "above the SLO of 1 s" in vera_client.get("/requests/req-slow/").content.decode()
    assert "▲" not in vera_client.get("/requests/req-warm/").content.decode()


def test_a_receipt_is_described_in_sentences(written: FakeFleet) -> None:
    text = " ".join(explain.sentences(receipt_of(written.receipt("req-1", NOW))))
    assert "12,345 tokens (L)" in text
    assert "expected 8,192 of them (66 %) in the cache of demo-1" in text
    assert "Strategy Adaptive of policy default v3 chose demo-1 by the rule “session”" in text
    assert "found 8,192 tokens in its cache, as expected" in text
    assert "answered in full with 180 output tokens after 2.95 s" in text


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"cached_tokens": 0}, "8,192 fewer than the index expected"),
        ({"cached_tokens": 12_000}, "3,808 more than the index expected"),
        (
            {"predicted_tiers": [4096, 4096, 0], "cached_tiers": [0, 0, 8192]},
            "as expected; the index expected 4,096 from the device and 4,096 from host memory, "
            "the engine took 8,192 from disk.",
        ),
        ({"cached_tiers": [0, 0, 0], "cached_tokens": 0}, "than the index expected; the engine took none."),
        ({"outcome": "cancelled"}, "The client went away"),
        (
            {"prefill_instance": "demo-0", "offload": "ok", "prefill_ms": 800.0, "transfer_ms": 52.5},
            "computed on demo-0, and the KV moved from there. The prefill took 800 ms, the transfer 52.5 ms.",
        ),
        ({"prefill_instance": "demo-0", "offload": "ok", "prefill_ms": 800.0}, "The prefill took 800 ms. "),
        (
            {"prefill_instance": "demo-0", "offload": "ok", "pull_ms": 420.0, "prefill_ms": 80.0},
            "on demo-0, and the KV moved from there, as it holds more of it and that would take 420 ms. The prefill",
        ),
        (
            {"prefill_instance": "demo-0", "offload": "ok", "lent_by": "demo-3", "lent_tokens": 2384},
            "the KV moved from there. It took 2,384 tokens of the session's last turn from demo-3.",
        ),
        (
            {"prefill_instance": "demo-0", "offload": "fallback", "offload_reason": "it was too slow"},
            "on demo-0, but was computed by the instance that decoded: it was too slow.",
        ),
        (
            {"outcome": "refused", "instance": "", "status": 429, "code": "queue_full"},
            "The router refused it. HTTP 429, queue_full",
        ),
        ({"outcome": "error", "status": 502, "code": "", "error": "reset"}, "HTTP 502, no code: reset"),
        (
            {"outcome": "client_error", "result": "client_error", "status": 400},
            "request itself was at fault, so it counts",
        ),
        ({"outcome": "client_error", "result": "failed_alike", "status": 500}, "failed alike on two engines"),
        ({"outcome": "error", "result": "failed_before_content"}, "before it had sent any content"),
        ({"outcome": "error", "result": "failed_after_content"}, "in the middle of the answer, which is incomplete"),
        ({"outcome": "error", "result": "router_failed"}, "The router failed, not an engine."),
        (
            {
                "retries": 1,
                "attempts": [{"instance": "demo-0", "status": 200, "result": "failed_before_content"}],
            },
            "retried 1 time(s) before anything was sent to the client (demo-0: 200)",
        ),
        (
            {
                "retries": 1,
                "attempts": [{"instance": "demo-0", "status": None, "error": "refused"}, {"instance": "demo-1"}],
            },
            "retried 1 time(s) before anything was sent to the client (demo-0: refused)",
        ),
    ],
)
def test_the_outcome_is_described_in_sentences(written: FakeFleet, changes: dict[str, Any], said: str) -> None:
    assert said in " ".join(explain.sentences(receipt_of(written.receipt("req-1", NOW, **changes))))


def test_a_receipt_without_details_is_still_explained() -> None:
    assert explain.sentences(receipt_of({"outcome": "ok"})) == ["It was answered in full."]
    assert explain.phases(receipt_of({})) == []


def test_the_bar_s_phases_cover_the_whole_and_no_more(written: FakeFleet) -> None:
    phases = explain.phases(receipt_of(written.receipt("req-1", NOW)))
    assert [(phase.name, round(phase.ms)) for phase in phases] == [("queue", 3), ("first", 402), ("decode", 2545)]
    assert sum(phase.width for phase in phases) == pytest.approx(100)


@pytest.mark.parametrize(
    ("ttft_ms", "pace", "said"),
    [
        (405.0, 10_000.0, False),  # 402 ms for 1,000 tokens, which take 100 ms
        (504.0, 10_000.0, True),
        (33_400.0, 10_000.0, True),
        (33_400.0, 0.0, False),  # the speed of its engines is unknown
        (33_400.0, None, False),
    ],
)
def test_a_wait_far_longer_than_the_prefill_is_not_attributed_to_it(
    written: FakeFleet, ttft_ms: float, pace: float | None, said: bool
) -> None:
    rates = {} if pace is None else {"inputs": {"rates": [pace, 0.0, 0.0, 0.0]}}
    row = written.receipt("req-1", NOW, ttft_ms=ttft_ms, e2e_ms=40_000.0, new_tokens=1_000, **rates)
    told = " ".join(explain.sentences(receipt_of(row)))
    assert ("are not prefill: 1,000 new tokens take about 100 ms" in told) == said
    assert [phase.label for phase in explain.phases(receipt_of(row))] == ["queue", "until the first content", "decode"]


@pytest.mark.parametrize(
    ("pace", "said"),
    [
        (10_000.0, "By that law demo-0 would have begun 427 ms sooner"),
        (1e9, "By that law no other instance would have begun much sooner."),
        (None, ""),
    ],
)
def test_the_law_says_where_a_request_would_have_started_sooner(
    written: FakeFleet, pace: float | None, said: str
) -> None:
    row = written.receipt("req-1", NOW, prompt_tokens=9_216)
    made = json.loads(json.dumps(written.made_from(row)))
    made["inputs"]["rates"] = [pace, 0.0, 0.0, 0.0] if pace else None
    made["candidates"]["cached"] = [9_216, 6_144, *made["candidates"]["cached"][2:]]
    told = " ".join(explain.sentences(receipt_of({**row, **made, "new_tokens": 3_072})))
    assert (said in told) if said else ("law" not in told), told
    assert ("3,072 new tokens behind 1,200 queued take about 427 ms" in told) == (pace == 10_000.0)


def test_a_receipt_lists_events_of_its_router_and_pool_during_the_request(
    written: FakeFleet, vera_client: Client
) -> None:
    written.write_receipt("req-1", NOW)
    written.write_event(NOW + 1, "router router-1 fell silent", kind="router", subject="router-1")
    written.write_event(NOW + 2, "other: version 2", pools=("other",), subject="other")
    written.write_event(NOW + 90, "router router-1 reports again", kind="router", subject="router-1")
    page = vera_client.get("/requests/req-1/").content.decode()
    assert "router router-1 fell silent" in page
    assert "other: version 2" not in page
    assert "reports again" not in page


def test_a_list_ordered_by_the_end_shows_when_requests_ended(written: FakeFleet, vera_client: Client) -> None:
    written.write_receipt("req-1", NOW)
    by_end, by_ttft = (vera_client.get(f"/requests/{query}").content.decode() for query in ("", "?sort=ttft"))
    assert ">Ended</th>" in by_end
    assert ">Received</th>" in by_ttft


def test_a_request_that_reached_no_instance_spent_no_time_in_an_engine(written: FakeFleet) -> None:
    refused = written.receipt("req-1", NOW, instance=None, outcome="refused", ttft_ms=None, first_byte_ms=None)
    assert [(phase.name, phase.width) for phase in explain.phases(receipt_of(refused))] == [("queue", 100)]


def test_without_a_first_token_the_engine_s_time_is_one_phase(written: FakeFleet) -> None:
    """The first byte of an answer that is not streamed comes with its last token."""
    whole = {"ttft_ms": None, "first_byte_ms": 2_949.0}
    phases = explain.phases(receipt_of(written.receipt("req-1", NOW, **whole)))
    assert [phase.name for phase in phases] == ["queue", "engine"]
    offloaded = written.receipt("req-1", NOW, **whole, prefill_instance="demo-7#2", prefill_ms=300.0)
    phases = explain.phases(receipt_of(offloaded))
    assert [(phase.name, round(phase.ms)) for phase in phases] == [("queue", 3), ("prefill", 300), ("engine", 2647)]
    assert phases[1].meaning == "on demo-7#2"


def test_prefill_and_transfer_of_an_offload_are_separate_phases(written: FakeFleet) -> None:
    offloaded = written.receipt("req-1", NOW, prefill_instance="demo-7", prefill_ms=300.0, transfer_ms=99.0)
    names = [(phase.name, round(phase.ms)) for phase in explain.phases(receipt_of(offloaded))]
    assert names == [("queue", 3), ("prefill", 300), ("transfer", 102), ("decode", 2545)]


def test_a_request_is_compared_with_the_typical_one_of_its_class_on_one_scale(written: FakeFleet) -> None:
    own = receipt_of(written.receipt("req-1", NOW))
    others = [receipt_of(written.receipt(f"req-{i}", NOW, e2e_ms=5900.0, ttft_ms=405.0)) for i in range(explain.FEW)]
    found = explain.waterfall(own, others)
    assert (found.n, found.typical_ms) == (explain.FEW, 5900.0)
    assert sum(phase.width for phase in found.typical) == pytest.approx(100)
    assert sum(phase.width for phase in found.own) == pytest.approx(50)
    assert explain.waterfall(own, others[1:]).typical == []  # too few for a typical time
    refused = written.receipt("req-1", NOW, instance=None, ttft_ms=None, first_byte_ms=None)
    assert explain.waterfall(receipt_of(refused), others).typical == []  # its phases differ


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"queue_ms": 2_003.0, "ttft_ms": 2_405.0, "e2e_ms": 4_950.0},
            "It took 4.95 s, 1.7 times the median of 20 recent warm requests (2.95 s); the difference is waiting in "
            "the router's queue: 2 s instead of 3 ms.",
        ),
        (
            {"ttft_ms": 2_405.0, "e2e_ms": 4_950.0, "new_tokens": 20_000},
            "It took 4.95 s, 1.7 times the median of 20 recent warm requests (2.95 s); the difference is waiting for "
            "the first content: 2.4 s for 20,000 new tokens instead of 402 ms for 4,153.",
        ),
        (
            {"ttft_ms": 2_405.0, "output_tokens": 1},
            "It took 2.95 s, about the median of 20 recent warm requests (2.95 s), but spent longer waiting for the "
            "first content: 2.4 s for 4,153 new tokens instead of 402 ms for 4,153.",
        ),
        (
            {"e2e_ms": 3_000.0},
            "It took 3 s, about the median of 20 recent warm requests (2.95 s); 2.6 s (86 %) went into decoding.",
        ),
        (
            {"e2e_ms": 1_000.0},
            "It took 1 s, less than the median of 20 recent warm requests (2.95 s); 595 ms (60 %) went into decoding.",
        ),
        (
            {"e2e_ms": 30_000.0, "output_tokens": 64},
            "It took 30 s, 10.2 times the median of 20 recent warm requests (2.95 s); the difference is after the "
            "first content, without decoding: 29.6 s for 64 output tokens instead of 2.54 s for 180. The rest is "
            "the network, a client that reads slowly, or a process that stood still.",
        ),
        (
            {"ttft_ms": None, "first_byte_ms": 2_949.0},
            "It took 2.95 s; 2.95 s (100 %) went into waiting for the engine.",
        ),
        (
            {"instance": None, "outcome": "refused", "e2e_ms": 5_000.0},
            "It ended after 5 s; 5 s (100 %) went into waiting in the router's queue.",
        ),
        ({"e2e_ms": None}, ""),
    ],
)
def test_one_sentence_says_how_the_time_was_spent(written: FakeFleet, changes: dict[str, Any], said: str) -> None:
    others = [receipt_of(written.receipt(f"req-{i}", NOW)) for i in range(explain.FEW)]
    assert explain.waterfall(receipt_of(written.receipt("req-1", NOW, **changes)), others).sentence == said


@pytest.mark.parametrize(("usual", "decode_ms"), [(2, 20.0), (8, 80.0)])
def test_slow_decoding_compared_with_short_answers_is_attributed_to_decoding(
    written: FakeFleet, usual: int, decode_ms: float
) -> None:
    short = {"output_tokens": usual, "ttft_ms": 400.0, "e2e_ms": 400.0 + decode_ms}
    others = [receipt_of(written.receipt(f"req-{i}", NOW, **short)) for i in range(explain.FEW)]
    own = written.receipt("req-1", NOW, output_tokens=200, ttft_ms=400.0, e2e_ms=400.0 + 54 * 200)
    assert (
        "the difference is decoding: 10.8 s for 200 output tokens"
        in explain.waterfall(receipt_of(own), others).sentence
    )


def test_a_request_of_the_usual_time_with_a_long_gap_says_so(written: FakeFleet) -> None:
    others = [
        receipt_of(written.receipt(f"req-{i}", NOW, ttft_ms=25_000.0, e2e_ms=27_500.0)) for i in range(explain.FEW)
    ]
    own = receipt_of(written.receipt("req-1", NOW, output_tokens=64, e2e_ms=27_000.0))
    assert explain.waterfall(own, others).sentence == (
        "It took 27 s, about the median of 20 recent warm requests (27.5 s), but spent longer after the first content, "
        "without decoding: 26.6 s for 64 output tokens instead of 2.5 s for 180. The rest is the network, a client "
        "that reads slowly, or a process that stood still."
    )


def test_an_instance_that_was_not_scored_is_shown_as_skipped(written: FakeFleet) -> None:
    made = {"id": ["demo-0", "demo-1", "demo-2"], "cached": 0, "score": [1.0, None, 4.0]}
    why = "demo-1 is left: 90,000 tokens of work there, 100 on the least loaded"
    receipt = written.receipt("req-1", NOW, instance="demo-0", candidates=made, reasons=[why])
    rows = explain.candidates(receipt_of(receipt))
    passed = next(row for row in rows if row.candidate.id == "demo-1")
    assert (passed.passed_over, passed.why, passed.bar) == (True, why, None)
    assert [row.bar for row in rows if row is not passed] == [25.0, 100.0]


def test_page_and_rest_count_the_instances_of_a_large_pool_that_were_not_compared(
    vera_client: Client, written: FakeFleet
) -> None:
    made = {"id": ["demo-0"], "cached": 0, "left_out": {"more load": 1_850, "draining": 22}}
    receipt = {**written.receipt("req-large", NOW, instance="demo-0"), "candidates": made}
    written.client.set(redis_keys.receipt_key("req-large"), stored_receipt(receipt))
    page = vera_client.get("/requests/req-large/").content.decode()
    assert "Not compared: 1,850 (more load), 22 (draining)" in page
    answer = vera_client.get("/api/v1/receipts/req-large").json()
    assert answer["left_out"] == {"more load": 1_850, "draining": 22}
    assert explain.left_out(receipt_of({**receipt, "candidates": {"id": [], "left_out": [1]}})) == {}


def test_the_page_lists_and_explains_receipts(vera_client: Client, written: FakeFleet) -> None:
    listed = vera_client.get("/requests/?outcome=error").content.decode()
    assert "req-failed" in listed
    assert "req-warm" not in listed
    one = vera_client.get("/requests/req-warm/").content.decode()
    assert "Why demo-1" in one
    assert "not considered" in one
    assert 'href="/api/v1/receipts/req-warm"' in one
    assert " style=" not in one


def test_filters_by_htmx_return_only_the_table(vera_client: Client, written: FakeFleet) -> None:
    headers = {"HX-Request": "true", "HX-Target": "receipts"}
    text = vera_client.get("/requests/?class=heavy", headers=headers).content.decode()
    assert "<html" not in text
    assert "req-heavy" in text
    for after in ("nan", "inf", "-inf", "1e300", "-1", "soon"):
        assert vera_client.get(f"/requests/?after={after}", headers=headers).status_code == 200


def test_a_request_that_no_policy_decided_has_neither_policy_nor_class(vera_client: Client, written: FakeFleet) -> None:
    nothing = {
        "policy": "",
        "version": 0,
        "strategy": None,
        "flow": None,
        "class": None,
        "instance": None,
        "rule": None,
    }
    refused = {**nothing, "outcome": "refused", "status": 404, "code": "model_not_found"}
    written.write_receipt("req-nobody", NOW + 1, **refused)
    listed = vera_client.get("/requests/?outcome=refused").content.decode()
    one = vera_client.get("/requests/req-nobody/").content.decode()
    assert "req-nobody" in listed
    for page in (listed, one):
        assert "None" not in page
        assert not re.search(r"\bv0\b", page)  # as a whole word, because a token on the page may hold these letters
    assert "badge--class" not in listed


def test_the_page_of_a_missing_receipt_says_what_to_do(vera_client: Client, live_redis: redis.Redis) -> None:
    answer = vera_client.get("/requests/gone/")
    assert answer.status_code == 404
    assert "kept for 60 minutes" in answer.content.decode()


def test_the_list_says_how_many_receipts_there_are(
    vera_client: Client, live_redis: redis.Redis, written: FakeFleet
) -> None:
    there = live_redis.xlen(redis_keys.RECEIPTS)
    assert f"0 of {there} kept match" in vera_client.get("/requests/?instance=nobody").content.decode()
    live_redis.delete(redis_keys.RECEIPTS)
    assert "kept match" not in vera_client.get("/requests/").content.decode()


def test_the_search_leads_to_the_receipt(vera_client: Client) -> None:
    assert vera_client.get("/requests/find/?id=+req-1+").headers["Location"] == "/requests/req-1/"
    assert vera_client.get("/requests/find/?id=").headers["Location"] == "/requests/"


def test_without_redis_the_pages_say_so(vera_client: Client, redis_away: None) -> None:
    assert "Redis does not answer" in vera_client.get("/requests/").content.decode()
    assert vera_client.get("/requests/x/").status_code == 503


def test_markup_in_a_receipt_is_shown_as_text(vera_client: Client, written: FakeFleet) -> None:
    written.write_receipt("req-x", NOW, reasons=["<script>alert(1)</script>"])
    assert "<script>alert" not in vera_client.get("/requests/req-x/").content.decode()


def test_the_api_lists_receipts_and_returns_one(ci: ApiCaller, written: FakeFleet) -> None:
    listed = ci.get("/receipts?class=heavy&limit=5").json()["receipts"]
    assert [(row["request_id"], row["class"]) for row in listed] == [("req-heavy", "heavy")]
    one = ci.get("/receipts/req-heavy").json()
    assert [row["id"] for row in one["candidates"]] == ["demo-0", "demo-1", "demo-2"]
    assert one["ttft_ms"] == 405.0


def test_of_two_requests_with_the_same_id_the_later_links_to_the_earlier(
    vera_client: Client, ci: ApiCaller, db: None, live_redis: redis.Redis
) -> None:
    fleet = FakeFleet(live_redis)
    fleet.write_receipt("same", NOW, own_id="same-2", earlier="same-1")
    fleet.client.set(redis_keys.receipt_key("same-1"), stored_receipt(fleet.receipt("same", NOW - 5, own_id="same-1")))
    page = vera_client.get("/requests/same/").content.decode()
    assert 'href="/requests/same-1/"' in page
    assert "same-2" in page
    assert "same-1" in vera_client.get("/requests/same-1/").content.decode()
    assert ci.get(f"/receipts/{ci.get('/receipts/same').json()['earlier']}").json()["at"] == NOW - 5


def test_page_candidates_and_api_describe_the_lowest_price(
    ci: ApiCaller, vera_client: Client, written: FakeFleet
) -> None:
    price = [1_234.0, "demo-0", 10, 5.0, 5, None, None, None, 2, 0.5, 3, 700.0, 1.0, [1, 2]]
    candidates = {"id": ["demo-0"], "cached": 0}
    made: dict[str, Any] = {"instance": "demo-0", "candidates": candidates, "reasons": [], "price": price}
    written.write_receipt("req-priced", NOW, **made)
    own = "its own wait on demo-0: 10 queued, 5 for 5 new"
    (listed,) = ci.get("/receipts?limit=1").json()["receipts"]
    one = ci.get("/receipts/req-priced").json()
    assert listed["reasons"] == one["reasons"] == ["least price: 1,234 tokens of prefill", own, *one["reasons"][2:]]
    assert [row.why for row in explain.candidates(receipt_of(written.receipt("req-priced", NOW, **made)))] == [own]
    page = vera_client.get("/requests/req-priced/").content.decode()
    assert all(f"<li>{reason}</li>" in page for reason in one["reasons"])


def test_the_api_returns_everything_that_a_router_wrote(ci: ApiCaller, live_redis: redis.Redis) -> None:
    fleet = FakeFleet(live_redis)
    fleet.write_receipt("req-1", NOW)
    one = ci.get("/receipts/req-1").json()
    assert {key: one.get(key, "is not there") for key in one | fleet.receipt("req-1", NOW)} == {
        **fleet.receipt("req-1", NOW),
        "inputs": one["inputs"],
        "candidates": one["candidates"],
        "left_out": {},
        "time": one["time"],
    }
    assert one["time"]["sentence"] == "It took 2.95 s; 2.54 s (86 %) went into decoding."
    assert (one["inputs"]["bound_to"], one["candidates"][1]["running"]) == ("demo-1", 3)
    assert ci.get("/receipts").json()["receipts"] == [fleet.receipt("req-1", NOW)]


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=501", "class=huge", "outcome=lost", "sort=slow", "since=today", "ttft_over_ms=-1"]
)
def test_the_api_refuses_what_is_out_of_range(ci: ApiCaller, live_redis: redis.Redis, query: str) -> None:
    assert ci.get(f"/receipts?{query}").status_code == 422


def test_the_api_returns_404_for_a_missing_receipt(ci: ApiCaller, live_redis: redis.Redis) -> None:
    answer = ci.get("/receipts/gone")
    assert answer.status_code == 404
    assert "'gone'" in answer.json()["detail"]

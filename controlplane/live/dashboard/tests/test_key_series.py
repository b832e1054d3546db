"""The page of one API key: its requests and tokens over time, beside its limits."""

import time

import pytest
from django.test import Client

from controlplane.live.dashboard.tests.fake_fleet import FakeFleet
from controlplane.pages.receipts.key_views import BINS, series
from controlplane.traffic.keys.models import ApiKey
from router.tests.values import receipt_of

NO_LIMITS: dict[str, float | None] = {"requests": None, "tokens": None}


def test_requests_and_tokens_of_a_key_are_counted_per_minute() -> None:
    ends = [
        {"at": 299.0, "key": "batch", "outcome": "ok", "actual_prompt_tokens": 100, "output_tokens": 7},
        {"at": 298.0, "key": "batch", "outcome": "refused", "prompt_tokens": 50},
        {"at": 297.0, "key": "batch", "outcome": "error", "prompt_tokens": 10},
        {"at": 297.0, "key": "batch", "outcome": "client_error"},
        {"at": 296.5, "key": "batch", "outcome": "client_error"},
        {"at": 296.0, "key": "other", "outcome": "ok", "prompt_tokens": 1_000},
        {"at": 151.0, "key": "batch", "outcome": "cancelled", "prompt_tokens": 20},
    ]  # fmt: skip
    found = series(map(receipt_of, ends), "batch", 300.0, 300, NO_LIMITS)
    last = {line: values[-1] for line, values in found["load"].items()}
    assert last == {"served": 12, "refused": 12, "client_errors": 24, "failed": 12, "prompt": 1_320, "output": 84}
    assert found["load"]["prompt"][30] == 20 * 12
    # Nothing is known of the time before the oldest stored receipt.
    assert found["load"]["served"][29:32] == [None, 12, 0]
    assert len(found["at"]) == BINS


def test_receipts_that_ended_before_the_range_are_not_read() -> None:
    def receipts():
        yield receipt_of({"at": 1_000.0, "key": "batch", "outcome": "ok"})
        yield receipt_of({"at": 600.0, "e2e_ms": 1_000.0})
        pytest.fail("read on")

    assert None not in series(receipts(), "batch", 1_001.0, 300, NO_LIMITS)["load"]["served"]


@pytest.fixture
def key(db: None) -> ApiKey:
    return ApiKey.objects.create(name="batch", prefix="p", sha256="s", created_by="ada", requests_per_min=600)


def test_an_operator_sees_a_key_over_time(key: ApiKey, otto_client: Client, live_redis) -> None:
    FakeFleet(live_redis).write_receipt("req-1", time.time() - 1, key="batch")
    page = otto_client.get(f"/keys/{key.pk}/").content.decode()
    assert "600 requests and any number of tokens a minute" in page
    assert 'href="/requests/?key=batch&amp;outcome=refused"' in page
    assert f'href="/keys/{key.pk}/"' in otto_client.get("/keys/").content.decode()
    found = otto_client.get(f"/keys/{key.pk}/series?range=300").json()
    assert found["limits"] == {"requests": 600, "tokens": None}
    assert sum(filter(None, found["load"]["served"])) == 12


def test_a_viewer_cannot_see_a_key(key: ApiKey, vera_client: Client) -> None:
    for path in (f"/keys/{key.pk}/", f"/keys/{key.pk}/series"):
        assert vera_client.get(path).status_code == 403


def test_without_redis_the_charts_are_not_available(key: ApiKey, otto_client: Client, redis_away: None) -> None:
    assert otto_client.get(f"/keys/{key.pk}/").status_code == 200
    assert otto_client.get(f"/keys/{key.pk}/series").status_code == 503

"""Use on its page, over REST and as CSV: the same sums, which are the bill."""

import csv
from datetime import UTC, datetime, timedelta

import pytest

from controlplane.testing import api_caller
from controlplane.use import ledger
from controlplane.use.ledger import Entry
from controlplane.use.models import HELD
from controlplane.use.selectors import IDLE, UseQuery, lines
from controlplane.use.views import span
from router.contract.redis.use import HOUR_S

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("redis_away")]
NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)
DAY = {"from": "2026-03-02T00:00:00Z", "to": "2026-03-03T00:00:00Z"}


def spend(key, pool="chat", model="llama", hours=0, name="", gpu_s=0.0, **counts):
    more = {"requests": 1, "gpu_us": round(gpu_s * 1e6), "micro_dollars": round(gpu_s * 1e6)} | counts
    entry = Entry(key, pool, "" if key == HELD else model)
    ledger.add(NOON + timedelta(hours=hours), HOUR_S, entry, name or f"key {key}", more)


@pytest.fixture
def spent():
    spend("1", gpu_s=100, input_tokens=10, cached_tokens=4, output_tokens=3)
    spend("1", hours=1, gpu_s=50, input_tokens=10, name="renamed")
    spend("2", pool="code", model="coder", gpu_s=300, refused=1)
    spend("", gpu_s=20)
    spend(HELD, gpu_s=400)
    spend(HELD, hours=1, gpu_s=400)
    spend(HELD, pool="code", gpu_s=200)  # less than was charged there


def get(api, **query):
    answer = api.get("/use?" + "&".join(f"{name}={value}" for name, value in (DAY | query).items()))
    assert answer.status_code == 200, answer.content
    return answer.json()["lines"]


def test_lines_sum_to_what_was_held_whatever_they_are_told_apart_by(ci, spent):
    for by in ("key,pool,model", "key", "pool", "model", ""):
        for per in ("", "hour", "day", "month"):
            found = get(ci, by=by, per=per)
            assert sum(line["dollars"] for line in found) == pytest.approx(1000)
            assert sum(line["gpu_seconds"] for line in found) == pytest.approx(1000)
            assert sum(line["requests"] for line in found) == 4


def test_keys_are_told_apart_by_id_and_named_as_last(ci, spent):
    found = get(ci, by="key")
    assert [(line["key"], line["name"], line["dollars"], line["idle"]) for line in found] == [
        ("2", "key 2", 200.0, False),
        ("1", "renamed", 150.0, False),
        ("", "key ", 20.0, False),
        (None, None, 630.0, True),
    ]
    (first,) = (line for line in get(ci, by="key", per="hour") if line["key"] == "1" and line["name"] == "key 1")
    assert (first["start"], first["input_tokens"], first["cached_tokens"], first["output_tokens"]) == (
        "2026-03-02T12:00:00Z",
        10,
        4,
        3,
    )


def test_what_was_never_held_is_charged_as_counted_and_is_not_idle():
    spend("1", gpu_s=9)
    (line,) = lines(UseQuery(NOON, NOON + timedelta(hours=1), ("key",)))
    assert (line.gpu_seconds, line.idle) == (9.0, False)


def test_csv_has_the_same_lines_and_no_formula(ci, spent):
    spend("3", name='=cmd|"/c calc"!A1', hours=2)
    answer = ci.get(f"/use?from={DAY['from']}&to={DAY['to']}&by=key,pool&format=csv")
    assert answer.headers["Content-Type"] == "text/csv; charset=utf-8"
    rows = list(csv.DictReader(answer.content.decode().splitlines()))
    assert [row["name"] for row in rows] == ["key 2", "renamed", "key ", '\'=cmd|"/c calc"!A1', "", ""]
    assert {row["pool"]: float(row["dollars"]) for row in rows if row["key"] == IDLE} == {"chat": 630.0, "code": 0.0}


@pytest.mark.parametrize(
    ("query", "path"),
    [
        ("by=colour", "by"),
        ("per=minute", "per"),
        ("from=2026-03-03T00:00:00Z&to=2026-03-02T00:00:00Z", "from"),
        ("from=2026-01-01T00:00:00Z&to=2026-03-02T00:00:00Z&per=hour", "from"),
        ("from=0001-01-01T00:00:00Z", "from"),
        ("to=soon", "to"),
    ],
)
def test_a_question_that_cannot_be_answered_names_its_field(ci, query, path):
    answer = ci.get(f"/use?{query}")
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["path"] == path


def test_operators_see_use_and_viewers_do_not(otto_client, vera_client, vera, spent):
    assert vera_client.get("/use/").status_code == 403
    assert api_caller(vera).get("/use").status_code == 403
    assert b"/use/" not in vera_client.get("/audit/").content
    assert b"/use/" in otto_client.get("/audit/").content
    assert b"No use in this time" in otto_client.get("/use/?range=day&by=nonsense").content


def test_the_page_shows_what_there_is(otto_client):
    ledger.add(datetime.now(UTC).replace(minute=0, second=0, microsecond=0), HOUR_S, Entry("7", "chat", "llama"), "ci",
               {"requests": 1234, "gpu_us": 3_600_000_000, "micro_dollars": 2_500_000})  # fmt: skip
    for query in ("", "?by=pool&per=day", "?by=model&per=month&range=year", "?per=hour&range=year", "?range=month"):
        page = otto_client.get(f"/use/{query}").content.decode()
        assert "1,234" in page
        assert "$2.5" in page
    assert 'href="/keys/7/"' in otto_client.get("/use/").content.decode()


def test_months_are_those_of_the_calendar():
    assert span("month", NOON) == (NOON.replace(day=1, hour=0), NOON)
    assert span("last_month", NOON) == (datetime(2026, 2, 1, tzinfo=UTC), datetime(2026, 3, 1, tzinfo=UTC))

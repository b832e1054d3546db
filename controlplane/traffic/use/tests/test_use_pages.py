"""Use on its page, over REST and as CSV: the same sums, which are the bill."""

import csv
from datetime import UTC, datetime, timedelta

import pytest

from controlplane.people.audit.models import AuditEntry
from controlplane.testing import api_caller
from controlplane.traffic.keys.models import ApiKey, Budget
from controlplane.traffic.keys.publishing import valid_keys
from controlplane.traffic.use import ledger
from controlplane.traffic.use.ledger import Entry
from controlplane.traffic.use.models import HELD, BudgetSpending
from controlplane.traffic.use.selectors import IDLE, UseQuery, between, lines
from fleet.models import Pool
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
    spend(HELD, pool="code", gpu_s=200)  # less than was charged to keys


def get(api, **query):
    answer = api.get("/use?" + "&".join(f"{name}={value}" for name, value in (DAY | query).items()))
    assert answer.status_code == 200, answer.content
    return answer.json()["lines"]


def test_lines_add_up_to_the_bill_however_they_are_grouped(ci, spent):
    for by in ("key,pool,model", "key", "pool", "model", ""):
        for per in ("", "hour", "day", "month"):
            found = get(ci, by=by, per=per)
            assert sum(line["dollars"] for line in found) == pytest.approx(1000)
            assert sum(line["gpu_seconds"] for line in found) == pytest.approx(1000)
            assert sum(line["requests"] for line in found) == 4


def test_seconds_of_audio_and_images_are_summed(ci, otto_client):
    for hours in (0, 1):
        spend("1", hours=hours, audio_ms=1_250, images=2)
    (line,) = get(ci, by="key")
    assert (line["audio_seconds"], line["images"]) == (2.5, 4)
    now = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    ledger.add(now, HOUR_S, Entry("1", "chat"), "ci", {"requests": 1, "audio_ms": 1_500, "images": 1})
    assert "1.5 s of audio and 1 image." in otto_client.get("/use/").content.decode()


def test_client_errors_are_counted_separately(ci, otto_client):
    spend("1", requests=9, refused=2, client_errors=5)
    (line,) = get(ci, by="key")
    assert [line[name] for name in ("requests", "refused", "failed", "client_errors")] == [9, 2, 0, 5]
    now = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    ledger.add(now, HOUR_S, Entry("1", "chat"), "ci", {"requests": 7, "client_errors": 6})
    page = otto_client.get("/use/").content.decode()
    assert '<td class="number" data-label="Client errors">6</td>' in page


def test_keys_are_distinguished_by_id_and_have_their_latest_name(ci, spent):
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


def test_time_that_was_charged_but_not_held_is_not_idle():
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
def test_an_invalid_question_names_its_field(ci, query, path):
    answer = ci.get(f"/use?{query}")
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["path"] == path


def test_operators_can_see_use_and_viewers_cannot(otto_client, vera_client, vera, spent):
    assert vera_client.get("/use/").status_code == 403
    assert api_caller(vera).get("/use").status_code == 403
    assert b"/use/" not in vera_client.get("/audit/").content
    assert b"/use/" in otto_client.get("/audit/").content
    assert b"No use in this time" in otto_client.get("/use/?range=day&by=nonsense").content


def test_the_page_shows_the_use(otto_client):
    ledger.add(datetime.now(UTC).replace(minute=0, second=0, microsecond=0), HOUR_S, Entry("7", "chat", "llama"), "ci",
               {"requests": 1234, "gpu_us": 3_600_000_000, "micro_dollars": 2_500_000})  # fmt: skip
    for query in ("", "?by=pool&per=day", "?by=model&per=month&range=year", "?per=hour&range=year", "?range=month"):
        page = otto_client.get(f"/use/{query}").content.decode()
        assert "1,234" in page
        assert "$2.50" in page
        assert "View as table" in page
    assert 'href="/keys/7/"' in otto_client.get("/use/").content.decode()


def test_months_are_those_of_the_calendar():
    assert between("month", NOON) == (NOON.replace(day=1, hour=0), NOON)
    assert between("last_month", NOON) == (datetime(2026, 2, 1, tzinfo=UTC), datetime(2026, 3, 1, tzinfo=UTC))


@pytest.fixture
def key(db):
    return ApiKey.objects.create(name="ci", prefix="p", sha256="a" * 64, created_by="ada")


def test_budgets_are_created_changed_and_deleted_over_rest(ada_api, ci, key):
    asked = {"key": key.pk, "unit": "dollars", "per": "month", "limit": 12.5}
    made = ada_api.post("/budgets", asked).json()
    assert (made["limit"], made["warn_at"], made["refuse"], made["used_ratio"]) == (12.5, 0.8, True, 0.0)
    changed = ada_api.patch(f"/budgets/{made['id']}", {"limit": 20, "refuse": False}).json()
    assert (changed["limit"], changed["warn_at"], changed["refuse"]) == (20.0, 0.8, False)
    (listed,) = ci.get("/budgets").json()
    assert (listed["key_name"], listed["unit"], listed["per"], listed["limit"]) == ("ci", "dollars", "month", 20.0)
    assert ci.post("/budgets", asked).status_code == 403
    assert ci.patch(f"/budgets/{made['id']}", {"limit": 1}).status_code == 403
    assert ci.call("DELETE", f"/budgets/{made['id']}").status_code == 403
    assert ada_api.call("DELETE", f"/budgets/{made['id']}").status_code == 204
    assert ci.get("/budgets").json() == []
    assert ada_api.patch(f"/budgets/{made['id']}", {"limit": 1}).status_code == 404


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"limit": 0}, "limit"),
        ({"limit": 0.5, "unit": "tokens"}, "limit"),
        ({"limit": 1e16, "unit": "tokens"}, "limit"),
        ({"limit": 0.001}, "limit"),
        ({"warn_at": 0}, "warn_at"),
        ({"warn_at": 1.5}, "warn_at"),
        ({"per": "year"}, "per"),
        ({"unit": "euros"}, "unit"),
        ({"key": 999}, "key"),
        ({"key": None}, "key"),
        ({"pool": "chat"}, "key"),
        ({"key": None, "pool": "nobody's"}, "pool"),
    ],
)
def test_an_invalid_field_of_a_budget_is_named_everywhere(ada_api, ada_client, key, changes, path):
    asked = {"key": key.pk, "unit": "dollars", "per": "month", "limit": 5} | changes
    answer = ada_api.post("/budgets", asked)
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["path"] == path
    form = {name: value for name, value in asked.items() if value is not None} | {
        "warn_percent": asked.get("warn_at", 0.8) * 100,
        "refuse": "on",
    }
    assert ada_client.post("/use/budgets/add", form).status_code == 422
    assert not Budget.objects.exists()


def test_a_pools_budget_counts_everything_that_the_pool_serves(ada_api, ada_client, otto_client, key, settings):
    settings.BUDGET_TIME_ZONE = "Pacific/Kiritimati"
    Pool.objects.create(name="chat", model="llama", kind="sim")
    now = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    for of in ("", str(key.pk), HELD):
        ledger.add(now, HOUR_S, Entry(of, "chat"), "", {"requests": 3, "input_tokens": 100})
    asked = {"pool": "chat", "unit": "tokens", "per": "month", "limit": 1_000}
    made = ada_api.post("/budgets", asked).json()
    assert (made["key"], made["pool"], made["spent"], made["used_ratio"]) == (None, "chat", 200, 0.2)
    assert ada_api.post("/budgets", asked).json()["errors"][0]["path"] == "per"
    published = valid_keys().pool_budgets["chat"]
    assert [(one.id, one.limit, one.zone) for one in published] == [(str(made["id"]), 1_000, "Pacific/Kiritimati")]
    ever = ada_api.post("/budgets", asked | {"per": "ever", "limit": 2_000}).json()
    assert (ever["period"], ever["ends"], ever["spent"]) == ("ever", None, 200)
    assert ">never</td>" in otto_client.get("/use/").content.decode()
    assert ada_api.call("DELETE", f"/budgets/{ever['id']}").status_code == 204
    assert "1,000 tokens" in otto_client.get("/use/").content.decode()
    assert 'key="",per="month",pool="chat",unit="tokens"} 0.2' in ada_client.get("/metrics").content.decode()
    form = {"pool": "chat", "unit": "tokens", "per": "month", "limit": "500", "warn_percent": "80", "refuse": "on"}
    assert ada_client.post("/use/budgets/add", form).status_code == 302
    assert Budget.objects.get().limit == 500
    subject = AuditEntry.objects.filter(action="budget.change").get().subject
    assert subject == "pool chat"
    assert ada_api.call("DELETE", f"/budgets/{made['id']}").status_code == 204
    assert valid_keys().pool_budgets == {}


def test_a_budget_for_a_revoked_key_and_a_second_of_the_same_kind_are_refused(ada_api, key):
    asked = {"key": key.pk, "unit": "tokens", "per": "day", "limit": 5}
    assert ada_api.post("/budgets", asked).status_code == 201
    assert ada_api.post("/budgets", asked).json()["errors"][0]["path"] == "per"
    row = Budget.objects.get()
    ApiKey.objects.update(revoked_at=datetime.now(UTC))
    assert ada_api.post("/budgets", asked | {"per": "month"}).json()["errors"][0]["path"] == "key"
    assert ada_api.patch(f"/budgets/{row.pk}", {"limit": 9}).status_code == 422
    assert ada_api.patch(f"/budgets/{row.pk}", {"limit": None}).json()["errors"][0]["path"] == "limit"
    assert ada_api.get("/budgets").json() == []


def test_administrators_set_budgets_on_the_page_and_operators_see_them(ada_client, otto_client, key):
    form = {"key": key.pk, "unit": "tokens", "per": "day", "limit": "5000", "warn_percent": "80", "refuse": "on"}
    assert otto_client.post("/use/budgets/add", form).status_code == 403
    assert ada_client.post("/use/budgets/add", form).status_code == 302
    BudgetSpending.objects.update(spent=4_500)
    page = otto_client.get("/use/").content.decode()
    for shown in ("5,000 tokens", "4,500 tokens", "90.0 %", "nearly spent", "refuse more"):
        assert shown in page
    assert "New budget" not in page
    now = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    ledger.add(now, HOUR_S, Entry(str(key.pk), "chat"), "ci", {"requests": 17, "input_tokens": 4_321})
    page = otto_client.get(f"/keys/{key.pk}/").content.decode()
    for shown in ("17 requests, 4,321 input", "4,500 tokens of 5,000 tokens per day spent (90.0 %)"):
        assert shown in page
    row = Budget.objects.get()
    assert ada_client.post("/use/budgets/add", form | {"limit": "6000", "refuse": ""}).status_code == 302
    row.refresh_from_db()
    assert (row.limit, row.refuse) == (6_000, False)
    assert (
        'weir_budget_used_ratio{key="ci",per="day",pool="",unit="tokens"} 0.75'
        in ada_client.get("/metrics").content.decode()
    )
    assert otto_client.post(f"/use/budgets/{row.pk}/delete").status_code == 403
    assert ada_client.post(f"/use/budgets/{row.pk}/delete").status_code == 302
    assert not Budget.objects.exists()

import csv
from datetime import UTC, datetime
from io import StringIO

import pytest
from django.contrib.auth.models import User

from controlplane.people.audit.models import AuditEntry
from controlplane.people.audit.selectors import AuditFilters, page
from controlplane.people.audit.services import SYSTEM, Actor, actor_of, record
from controlplane.people.audit.views import place, words
from controlplane.people.permissions import Principal

OTTO = Actor("user", "otto")


def entries(count: int) -> None:
    for number in range(count):
        record(OTTO, "pool.drain", f"instance demo-{number}", f"reason {number}")


def test_an_entry_remains_when_the_person_is_deleted(otto):
    record(Actor("user", otto.username), "policy.publish", "policy default v2", "because it is better")
    User.objects.all().delete()
    assert AuditEntry.objects.get().actor_name == "otto"


def test_an_entry_names_the_request_that_caused_it(otto_client):
    answer = otto_client.post(
        "/tokens/", {"name": "x", "scopes": ["policy:read"]}, headers={"X-Request-ID": "request-12345"}
    )
    assert answer.headers["X-Request-ID"] == "request-12345"
    assert AuditEntry.objects.get().request_id == "request-12345"


def test_the_actor_of_an_api_request_is_the_token(rf):
    request = rf.get("/")
    request.auth = Principal("token", "ci (otto)", "operator", frozenset(), 1)
    assert actor_of(request) == Actor("token", "ci (otto)")


def test_pages_of_the_log_have_no_gaps(db):
    entries(7)
    first, cursor = page(AuditFilters(), 3)
    second, cursor = page(AuditFilters(before=cursor), 3)
    third, end = page(AuditFilters(before=cursor), 3)
    assert [row.subject[-1] for row in (*first, *second, *third)] == list("6543210")
    assert end is None


def test_a_full_last_page_has_no_next_page(db):
    entries(3)
    assert page(AuditFilters(), 3)[1] is None


@pytest.mark.parametrize(
    ("query", "expected"),
    [("actor=otto", 2), ("actor=weir", 1), ("action=fleet.apply", 1), ("subject=demo-1", 1), ("actor=nobody", 0)],
)
def test_the_page_can_be_filtered(vera_client, query, expected):
    entries(2)
    record(SYSTEM, "fleet.apply", "fleet demo")
    assert vera_client.get(f"/audit/?{query}").content.count(b'data-label="Action"') == expected


def test_the_page_shows_changed_fields_only(vera_client):
    record(OTTO, "x.y", "z", "", {"a": {"b": 1, "c": 2}}, {"a": {"b": 1, "c": 3}})
    content = vera_client.get("/audit/").content.decode()
    assert "a.c" in content
    assert "a.b" not in content


def test_an_added_pool_is_a_separate_change(vera_client):
    kept = {"name": "demo", "model": "m", "replicas": 8}
    record(OTTO, "fleet.applied", "fleet", "", {"pools": [kept]}, {"pools": [{"name": "new", "model": "x"}, kept]})
    content = vera_client.get("/audit/").content.decode()
    assert "<code>pools.new.model</code>" in content
    assert "demo" not in content


def test_many_changes_are_folded_and_written_as_json(vera_client):
    old = {"a": None, "b": [{"c": None}], "d": True, "e": "f", "g": 1, "h": 2}
    record(OTTO, "x.y", "z", "", old, {"a": 1, "b": [], "d": False, "e": "g", "g": 2, "h": 3})
    page = vera_client.get("/audit/").content.decode()
    assert "<summary>6 fields<span" in page
    assert '<span class="diff-old">–</span> → <span class="diff-new">1</span>' in page
    assert '<span class="diff-old">[{&quot;c&quot;: null}]</span>' in page
    assert "None" not in page


def test_text_written_by_people_is_escaped(vera_client):
    record(OTTO, "x.y", "z", "<script>alert(1)</script>")
    assert b"<script>alert(1)" not in vera_client.get("/audit/").content


def test_an_empty_log_describes_its_future_entries(vera_client):
    assert b"Nothing has been changed yet" in vera_client.get("/audit/").content
    assert b"No entry matches the filter" in vera_client.get("/audit/?actor=otto").content


@pytest.mark.parametrize("cursor", ["x", "-1", "9" * 30])
def test_a_forged_cursor_is_not_found(vera_client, cursor):
    assert vera_client.get(f"/audit/?before={cursor}").status_code == 404


@pytest.mark.parametrize(
    ("action", "subject", "href"),
    [
        ("policy.publish", "policy default v43", "/policies/default/versions/43/"),
        ("delivery.fail", "policy default v43", "/policies/default/versions/43/"),
        ("policy.open_draft", "policy default", "/policies/default/"),
        ("instance.drain", "demo-0", "/fleet/instances/demo-0/"),
        ("pool.scale", "demo", "/fleet/pools/demo/"),
        ("budget.create", "pool demo", "/fleet/pools/demo/"),
        ("budget.create", "API key team-a", "/use/"),
        ("key.create", "API key ../x", "/keys/"),
        ("experiment.start", "experiment 7", "/experiments/7/"),
        ("plan.start", "plan 3", "/plans/3/"),
        ("preview.start", "preview 1 of default", "/policies/default/previews/1/"),
        ("tuning.start", "tuning 2 of default", "/policies/default/tunings/2/"),
        ("instance.drain", "../../logout", ""),
        ("x.y", "thing", ""),
    ],
)
def test_a_subject_links_to_its_page(action, subject, href):
    assert place(action, subject) == href


def test_only_who_may_open_its_page_gets_a_link(vera_client, otto_client, ada_client):
    for action, subject in (("budget.create", "API key team-a"), ("user.create", "user vic"), ("pool.scale", "demo")):
        record(OTTO, action, subject)
    links = {"/use/": (otto_client, ada_client), "/users/": (ada_client,), "/fleet/pools/demo/": (vera_client,)}
    for client in (vera_client, otto_client, ada_client):
        page = client.get("/audit/").content.decode().partition("<main")[2]
        for href, allowed in links.items():
            assert (f'href="{href}"' in page) == (client in allowed or href.startswith("/fleet")), href


def test_the_actions_of_a_delivery_are_described():
    assert words("delivery.fail") == "delivery: stopped by a guard"
    assert words("policy.open_draft") == "policy: open draft"


def test_new_settings_are_listed_with_their_values(vera_client):
    record(OTTO, "budget.create", "pool demo", "", None, {"unit": "dollars", "limit": 25.0})
    assert '<span class="diff-new">25.0</span>' in vera_client.get("/audit/").content.decode()


def test_entries_are_limited_by_days_in_utc_and_an_invalid_day_is_named(vera_client):
    entries(1)
    AuditEntry.objects.update(at=datetime(2026, 11, 28, 23, 59, tzinfo=UTC))
    found = [
        vera_client.get(f"/audit/?{query}").content.count(b'data-label="Action"')
        for query in ("since=2026-11-28", "until=2026-11-28", "since=2026-11-29", "until=2026-11-27")
    ]
    assert found == [1, 1, 0, 0]
    page = vera_client.get("/audit/?since=soon").content.decode()
    assert "“soon” is not a day" in page
    assert page.count('data-label="Action"') == 1


def test_matching_entries_are_exported_without_formulas(vera_client):
    entries(2)
    record(OTTO, "x.y", "=1+1", "", {"a": 1}, {"a": 2})
    answer = vera_client.get("/audit/?action=x.y&format=csv")
    assert answer.headers["Content-Type"].startswith("text/csv")
    [row] = csv.DictReader(StringIO(answer.content.decode()))
    assert (row["action"], row["subject"], row["changes"]) == ("x.y", "'=1+1", "a: 1 → 2")

"""Freezes: everybody sees the next one, administrators add and remove them."""

import pytest

from controlplane.traffic.deliveries.models import Freeze

pytestmark = pytest.mark.usefixtures("policy")
WEEKENDS = {
    "name": "Weekends",
    "policies": "default",
    "start": "2026-01-02T18:00",
    "end": "2026-01-05T07:00",
    "zone": "Europe/Berlin",
    "rrule": "FREQ=WEEKLY",
    "behaviour": "hold",
    "reason": "nobody is there",
}


def test_an_administrator_adds_a_freeze_and_everybody_sees_its_next_times(ada_client, vera_client):
    assert ada_client.post("/freezes/", WEEKENDS).status_code == 302
    shown = vera_client.get("/freezes/").content.decode()
    assert shown.count("<time") >= 6
    assert "Weekends" in shown
    assert "requires the role admin" in shown


def test_without_freezes_the_page_says_so(vera_client):
    assert "No freezes" in vera_client.get("/freezes/").content.decode()


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [("rrule", "FREQ=HOURLY", "FREQ must be"), ("zone", "Mars", "name of a time zone"), ("reason", "", "say why")],
)
def test_a_problem_is_shown_at_its_field_and_what_was_typed_is_kept(ada_client, field, value, said):
    response = ada_client.post("/freezes/", {**WEEKENDS, field: value})
    assert response.status_code == 422
    problem = next(each for each in response.context["fields"] if each.name == field)
    assert said in problem.error
    assert not Freeze.objects.exists()


def test_an_unknown_policy_is_named(ada_client):
    response = ada_client.post("/freezes/", {**WEEKENDS, "policies": "default, gone"})
    assert "There is no such policy; allowed: default" in response.content.decode()


def test_a_freeze_can_be_removed_only_once(ada_client, otto_client):
    ada_client.post("/freezes/", WEEKENDS)
    number = Freeze.objects.get().pk
    assert otto_client.post(f"/freezes/{number}/remove").status_code == 403
    assert ada_client.post(f"/freezes/{number}/remove").status_code == 302
    assert ada_client.post(f"/freezes/{number}/remove").status_code == 404
    assert otto_client.post("/freezes/", WEEKENDS).status_code == 403

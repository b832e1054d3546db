"""A plan is shown as fields, which give the same plan again; problems are shown at their fields."""

import pytest

from controlplane.pages.delivery_pages import plan_form
from controlplane.traffic.deliveries.plan.default import default_plan
from controlplane.traffic.deliveries.plan.parsing import parse_plan
from controlplane.traffic.deliveries.plan.types import PoolGuard, Start, Switchback
from router.contract.values.problem import InvalidInput, Problem

POOLS = ("chat", "code")
OFFERED = default_plan(POOLS, shares={"warm": 0.5, "medium": 0.45, "heavy": 0.05})
MORE = {
    "switchback.pairs": "6",
    "pool.metric": "pool.ttft_p90_ms",
    "pool.class": "heavy",
    "pool.above": "800",
    "start.at": "2036-08-03T03:00",
    "start.zone": "Europe/Berlin",
}


def typed(changes=None, choices=None):
    shown = {**plan_form.defaults(), **plan_form.values(OFFERED)}
    fields = {name: value for name, value in shown.items() if isinstance(value, str)}
    chosen = {name: value for name, value in shown.items() if isinstance(value, list)}
    return plan_form.typed({**fields, **(changes or {})}, {**chosen, **(choices or {})})


def test_the_offered_plan_is_unchanged_by_the_form():
    found = typed()
    assert found.errors == {}
    assert parse_plan(found.plan, pools=POOLS) == OFFERED


def test_fields_that_the_offered_plan_lacks_can_be_typed():
    made = parse_plan(typed(MORE).plan, pools=POOLS)
    assert Switchback(300, 30, 6) in made.steps
    assert PoolGuard("pool.ttft_p90_ms", 800.0, 30, "pause", "heavy") in made.guards
    assert made.start == Start("2036-08-03T03:00", "Europe/Berlin", 3600)


def problems(changes, choices=None):
    found = typed(changes, choices)
    try:
        parse_plan(found.plan, pools=POOLS)
    except InvalidInput as error:
        return plan_form.by_field(found, error.problems)
    return plan_form.by_field(found, ())


@pytest.mark.parametrize(
    ("changes", "field", "text"),
    [
        ({"canary1.share": "70"}, "canary1.share", "allowed: 0.1 to 50 %"),
        ({"canary1.share": "half"}, "canary1.share", "'half' is not a number"),
        ({"canary1.share": "30"}, "canary2.share", "the shares of canaries must grow"),
        ({"canary2.for": "soon"}, "canary2.for", "is not a time"),
        ({"canary2.for": "1 s"}, "canary2.for", "allowed: 10 s to 7 d"),
        ({"shadow.for": "2 d"}, "shadow.for", "allowed: 10 s to 1 d"),
        ({**MORE, "switchback.pairs": "2"}, "switchback.pairs", "allowed: 4 to 100"),
        ({"ttft.worse": "0"}, "ttft.worse", "allowed: 0.5 to 1000 %"),
        ({"ttft.fine": ""}, "ttft.fine", "missing"),
        ({"errors.ratio": "1"}, "errors.ratio", "1.05 to 100"),
        ({"pool.metric": "pool.ttft_p90_ms", "pool.above": ""}, "pool.above", "missing"),
        ({"approvals": "x"}, "approvals", "not a whole number"),
        ({"start.at": "2036-08-03T03:00", "start.zone": "Mars"}, "start.zone", "name of a time zone"),
    ],
)
def test_a_problem_is_shown_at_its_field(changes, field, text):
    errors, others = problems(changes)
    assert text in errors[field]
    assert others == []


def test_a_plan_without_pools_or_steps_says_so():
    assert "pools" in problems({}, {"pools": []})[0]
    nothing = dict.fromkeys(("shadow.for", "canary1.share", "canary2.share", "canary3.share", "full"), "")
    assert "shadow.for" in problems(nothing)[0]


def test_a_problem_without_a_field_keeps_its_path():
    problem = Problem("alpha", 7, "must be a number in range", "0.0001 to 0.1")
    assert plan_form.by_field(typed(), (problem,)) == (
        {},
        ["alpha: must be a number in range; allowed: 0.0001 to 0.1"],
    )


@pytest.mark.parametrize(
    ("name", "label"),
    [("canary1.share", "Canary 1, share"), ("ttft.worse", "TTFT, worse"), ("approvals", "Approvals")],
)
def test_the_summary_names_the_field(name, label):
    assert plan_form.label_of(name) == label

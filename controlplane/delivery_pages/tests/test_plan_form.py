"""A plan becomes fields and the fields become the same plan; what is wrong is said at its field."""

import pytest

from controlplane.deliveries import plan as plans
from controlplane.delivery_pages import plan_form
from controlplane.delivery_pages.tests.values import STEPS

POOL_GUARD = {"metric": "pool.ttft_p90_ms", "class": "warm", "above": 800, "for_s": 30, "does": "pause"}
START = {"at": "2036-08-03T03:00", "zone": "Europe/Berlin", "latest_s": 3600}


def canonical(**more):
    return plans.as_dict(plans.parse({"steps": STEPS, **more}, pools=["chat", "code"]))


def posted(plan):
    values = plan_form.values(plan)
    assert values is not None
    values = {**plan_form.defaults(), **values}
    return (
        {name: value for name, value in values.items() if isinstance(value, str)},
        {name: value for name, value in values.items() if isinstance(value, list)},
    )


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"start": START},
        {"guards": [*plans.DEFAULT_GUARDS, POOL_GUARD]},
        {"steps": [{"mode": "full", "bake_s": 0}], "guards": []},
        {"pools": ["code"], "alpha": 0.02, "approvals": {"needed": 2}},
    ],
)
def test_a_plan_survives_the_form(more):
    plan = canonical(**more)
    found = plan_form.typed(*posted(plan), plan)
    assert found.errors == {}
    assert plans.as_dict(plans.parse(found.plan, pools=["chat", "code"])) == plan


def test_a_shape_that_the_form_does_not_have_is_edited_as_json():
    shares = [{"mode": "canary", "share": share / 100, "for_s": 60} for share in (1, 2, 3, 4, 5)]
    assert plan_form.values(canonical(steps=shares)) is None
    twice = [{**plans.DEFAULT_GUARDS[0], "classes": ["warm"]}, {**plans.DEFAULT_GUARDS[0], "classes": ["heavy"]}]
    assert plan_form.values(canonical(guards=twice)) is None


def problems(changes, choices=None):
    plan = canonical()
    fields, chosen = posted(plan)
    found = plan_form.typed({**fields, **changes}, {**chosen, **(choices or {})}, plan)
    try:
        plans.parse(found.plan, pools=["chat", "code"])
    except plans.InvalidPlan as error:
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
        ({"switchback.pairs": "2"}, "switchback.pairs", "allowed: 4 to 100"),
        ({"ttft.worse": "0"}, "ttft.worse", "allowed: 0.5 to 1000 %"),
        ({"ttft.fine": ""}, "ttft.fine", "missing"),
        ({"errors.ratio": "1"}, "errors.ratio", "1.05 to 100"),
        ({"pool.metric": "pool.ttft_p90_ms", "pool.above": ""}, "pool.above", "missing"),
        ({"approvals": "x"}, "approvals", "not a whole number"),
        ({"start.at": "2036-08-03T03:00", "start.zone": "Mars"}, "start.zone", "name of a time zone"),
    ],
)
def test_a_problem_stands_at_its_field(changes, field, text):
    errors, others = problems(changes)
    assert text in errors[field]
    assert others == []


def test_a_plan_without_pools_or_steps_says_so():
    assert "pools" in problems({}, {"pools": []})[0]
    nothing = dict.fromkeys(("shadow.for", "canary1.share", "canary2.share", "switchback.pairs", "full"), "")
    assert "shadow.for" in problems(nothing)[0]


def test_a_problem_without_a_field_keeps_its_path():
    plan = {**canonical(), "alpha": 7}
    found = plan_form.typed(*posted(canonical()), plan)
    with pytest.raises(plans.InvalidPlan) as refused:
        plans.parse(found.plan, pools=["chat", "code"])
    assert plan_form.by_field(found, refused.value.problems) == (
        {},
        ["alpha: must be a number in range; allowed: 0.0001 to 0.1"],
    )


@pytest.mark.parametrize(
    ("name", "label"),
    [("canary1.share", "Canary 1, share"), ("ttft.worse", "TTFT, worse"), ("approvals", "Approvals")],
)
def test_the_summary_names_the_field(name, label):
    assert plan_form.label_of(name) == label

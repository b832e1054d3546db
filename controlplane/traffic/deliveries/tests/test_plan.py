"""Every limit of the plan, and its canonical form."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.traffic.deliveries.plan import stored_plan
from controlplane.traffic.deliveries.plan.default import DEFAULT_GUARDS, default_plan
from controlplane.traffic.deliveries.plan.parsing import parse_plan
from controlplane.traffic.deliveries.plan.reader import NUMBERS
from controlplane.traffic.deliveries.plan.types import Canary, ComparisonGuard
from controlplane.traffic.deliveries.tests.conftest import CANARY, FULL, SHADOW, STEPS
from router.contract.values.problem import InvalidInput

SWITCHBACK = {"mode": "switchback", "block_s": 300, "washout_s": 30, "pairs": 6}
TTFT = {"metric": "ttft", "classes": ["heavy"], "worse": 0.1, "fine": 0.25}
PROMETHEUS = {"metric": "prometheus", "query": "up", "limit": 0.5, "for_looks": 3, "fail_if": "below", "does": "pause"}
POOL = {"metric": "pool.ttft_p90_ms", "class": "warm", "above": 800, "for_s": 30, "does": "pause"}
WHOLE: dict[str, Any] = {
    "schema": 1,
    "pools": ["chat"],
    "steps": [SHADOW, {**CANARY, "max_s": 3600}, {**CANARY, "share": 0.25, "max_s": 3600}, SWITCHBACK, FULL],
    "guards": [TTFT, {"metric": "errors", "ratio": 1.5}, POOL, PROMETHEUS],
    "alpha": 0.01,
    "hold": {"no_data_s": 1800, "error_s": 600},
    "approvals": {"needed": 1, "expires_s": 604800},
    "start": {"at": "2026-08-03T03:00", "zone": "Europe/Berlin", "latest_s": 3600},
}


def problems(value: object, **more: Any) -> dict[str, str]:
    with pytest.raises(InvalidInput) as refused:
        parse_plan(value, **{"pools": ("chat", "night"), **more})
    return {problem.path: problem.text for problem in refused.value.problems}


def changed(**fields: Any) -> dict[str, Any]:
    return {**json.loads(json.dumps(WHOLE)), **fields}


def test_a_whole_plan_equals_its_canonical_form() -> None:
    assert parse_plan(WHOLE, pools=("chat", "night")).canonical == WHOLE


def test_omitted_fields_take_their_defaults() -> None:
    made = parse_plan({"steps": STEPS}, pools=("night", "chat")).canonical
    assert made["pools"] == ["chat", "night"]
    assert made["steps"][1] == {**CANARY, "max_s": 3600}
    assert parse_plan({"steps": STEPS}, pools=("night", "chat")).guards == DEFAULT_GUARDS
    assert (made["alpha"], made["hold"], made["approvals"]) == (
        0.01,
        {"no_data_s": 1800, "error_s": 600},
        {"needed": 0, "expires_s": 604_800},
    )
    assert "start" not in made


def test_the_sha256_depends_on_the_meaning_not_on_the_spelling() -> None:
    one, other = (
        parse_plan({"steps": STEPS}, pools=("a",)),
        parse_plan({"schema": 1, "alpha": 0.01, "steps": STEPS}, pools=("a",)),
    )
    assert one.sha256 == other.sha256
    assert one.sha256 != parse_plan({"steps": STEPS, "alpha": 0.02}, pools=("a",)).sha256


def test_a_stored_plan_can_be_read_without_its_pools() -> None:
    made = parse_plan(WHOLE, pools=("chat",))
    assert stored_plan.read(made.canonical) == made


REFUSED: list[tuple[str, Any, str, str]] = [
    ("no object", [], "", "must be an object"),
    ("another schema", changed(schema=2), "schema", "allowed: 1"),
    ("no steps", {}, "steps", "1 to 20 entries"),
    ("an empty list of steps", changed(steps=[]), "steps", "1 to 20 entries"),
    ("too many steps", changed(steps=[CANARY] * 21), "steps", "1 to 20 entries"),
    ("a step that is no object", changed(steps=["full"]), "steps[0]", "must be an object"),
    ("a step without a mode", changed(steps=[{}]), "steps[0].mode", "missing; allowed: shadow, canary"),
    ("an unknown mode", changed(steps=[{"mode": "rocket"}]), "steps[0].mode", "allowed: shadow, canary"),
    (
        "an unknown field of a step",
        changed(steps=[{**FULL, "x": 1}]),
        "steps[0].x",
        "unknown field; allowed: bake_s, mode",
    ),
    ("an unknown field", changed(x=1), "x", "unknown field; allowed: alpha, approvals"),
    ("a pool of another policy", changed(pools=["x"]), "pools[0]", "allowed: chat, night"),
    ("a pool named twice", changed(pools=["chat", "chat"]), "pools[1]", "named twice"),
    ("pools that are no list", changed(pools="chat"), "pools", "must be a list"),
    (
        "shares that do not grow",
        changed(steps=[CANARY, CANARY]),
        "steps[1].share",
        "must grow; allowed: more than 0.05",
    ),
    ("full before the end", changed(steps=[FULL, CANARY]), "steps[0].mode", "full must be the last step"),
    ("a shadow after a canary", changed(steps=[CANARY, SHADOW]), "steps[1].mode", "must come before"),
    ("a switchback without a canary", changed(steps=[SWITCHBACK, FULL]), "steps[0].mode", "after a canary"),
    ("two switchbacks", changed(steps=[CANARY, SWITCHBACK, SWITCHBACK]), "steps[2].mode", "one switchback"),
    ("max_s below for_s", changed(steps=[{**CANARY, "max_s": 30}]), "steps[0].max_s", "not be less than for_s"),
    (
        "a washout of most of the block",
        changed(steps=[CANARY, {**SWITCHBACK, "washout_s": 200}]),
        "steps[1].washout_s",
        "half",
    ),
    ("an unknown answer to then", changed(steps=[{**CANARY, "then": "go"}]), "steps[0].then", '"", ask'),
    ("a canary that nothing judges", changed(guards=[POOL]), "guards", "a guard of ttft or tpot"),
    ("guards that are no list", changed(guards={}), "guards", "must be a list"),
    ("a guard that is no object", changed(guards=["ttft"]), "guards[0]", "must be an object"),
    ("an unknown metric", changed(guards=[{"metric": "e2e"}]), "guards[0].metric", "ttft, tpot, slow, errors"),
    (
        "an unknown class",
        changed(guards=[{**TTFT, "classes": ["cold"]}]),
        "guards[0].classes[0]",
        "warm, medium, heavy",
    ),
    ("no class", changed(guards=[{**TTFT, "classes": []}]), "guards[0].classes", "1 to 3 entries"),
    ("worse: 0", changed(guards=[{**TTFT, "worse": 0}]), "guards[0].worse", "0.005 to 10"),
    (
        "ttft without fine",
        changed(guards=[{k: v for k, v in TTFT.items() if k != "fine"}]),
        "guards[0].fine",
        "missing",
    ),
    ("slow with fine", changed(guards=[TTFT, {**TTFT, "metric": "slow"}]), "guards[1].fine", "unknown field"),
    (
        "errors with classes",
        changed(guards=[TTFT, {"metric": "errors", "classes": ["warm"]}]),
        "guards[1].classes",
        "unknown",
    ),
    (
        "a pool guard without a limit",
        changed(guards=[TTFT, {k: v for k, v in POOL.items() if k != "above"}]),
        "guards[1].above",
        "missing",
    ),
    (
        "a pool guard that rolls over",
        changed(guards=[TTFT, {**POOL, "does": "beep"}]),
        "guards[1].does",
        "pause, abort",
    ),
    (
        "the same guard twice",
        changed(guards=[TTFT, TTFT]),
        "guards[1]",
        "two guards watch the same metric and class",
    ),
    ("hold that is no object", changed(hold=3), "hold", "must be an object"),
    ("an unknown field of hold", changed(hold={"x": 1}), "hold.x", "unknown field"),
    ("approvals that are null", changed(approvals=None), "approvals", "must be an object"),
    ("a start without a zone", changed(start={"at": "2026-08-03T03:00"}), "start.zone", "time zone"),
    (
        "a start in a place that is a path",
        changed(start={"at": "2026-08-03T03:00", "zone": "../etc"}),
        "start.zone",
        "time zone",
    ),
    ("a start at no time", changed(start={"at": "2026-13-03T03:00", "zone": "UTC"}), "start.at", "2026-08-03T03:00"),
    ("a start with seconds", changed(start={"at": "2026-08-03T03:00:00", "zone": "UTC"}), "start.at", "local date"),
    ("a start that is a list", changed(start=[1]), "start", "must be an object"),
    ("a boolean for a number", changed(alpha=True), "alpha", "0.0001 to 0.1"),
    ("not a number", changed(alpha=float("nan")), "alpha", "0.0001 to 0.1"),
    ("half a second", changed(steps=[{**CANARY, "for_s": 60.5}]), "steps[0].for_s", "60.5 is not a whole number"),
    ("null for a number", changed(alpha=None), "alpha", "null is not allowed"),
]


@pytest.mark.parametrize(("value", "path", "text"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_an_invalid_plan_is_refused(value: Any, path: str, text: str) -> None:
    found = problems(value)
    assert path in found
    assert text in found[path]


@pytest.mark.parametrize("fine", [0.05, 0.1, 1.0])
def test_fine_may_be_below_at_or_above_worse(fine: float) -> None:
    """The two limits bound different mistakes; the default guards have `fine` above `worse`."""
    made = parse_plan(changed(guards=[{**TTFT, "worse": 0.1, "fine": fine}]), pools=("chat",))
    assert made.guards == (ComparisonGuard("ttft", ("heavy",), worse=0.1, fine=fine),)


# The place of each number in a whole plan
PLACES: dict[str, tuple[Any, ...]] = {
    "shadow.sample": ("steps", 0, "sample"),
    "shadow.for_s": ("steps", 0, "for_s"),
    "canary.share": ("steps", 1, "share"),
    "canary.for_s": ("steps", 1, "for_s"),
    "canary.max_s": ("steps", 1, "max_s"),
    "switchback.block_s": ("steps", 3, "block_s"),
    "switchback.washout_s": ("steps", 3, "washout_s"),
    "switchback.pairs": ("steps", 3, "pairs"),
    "full.bake_s": ("steps", 4, "bake_s"),
    "guard.worse": ("guards", 0, "worse"),
    "guard.fine": ("guards", 0, "fine"),
    "guard.ratio": ("guards", 1, "ratio"),
    "guard.above": ("guards", 2, "above"),
    "guard.for_s": ("guards", 2, "for_s"),
    "guard.limit": ("guards", 3, "limit"),
    "guard.for_looks": ("guards", 3, "for_looks"),
    "alpha": ("alpha",),
    "hold.no_data_s": ("hold", "no_data_s"),
    "hold.error_s": ("hold", "error_s"),
    "approvals.needed": ("approvals", "needed"),
    "approvals.expires_s": ("approvals", "expires_s"),
    "start.latest_s": ("start", "latest_s"),
}


def test_every_number_has_a_place() -> None:
    assert set(PLACES) == set(NUMBERS)


def path_of(place: tuple[Any, ...]) -> str:
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place)
    return text.removeprefix(".")


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("side", [0, 1])
def test_a_number_outside_its_limits_is_refused_with_path_value_and_range(name: str, side: int) -> None:
    value, place = changed(), PLACES[name]
    holder: Any = value
    for part in place[:-1]:
        holder = holder[part]
    limit = NUMBERS[name].range[side]
    holder[place[-1]] = wrong = limit + 1 if side else limit - 1
    with pytest.raises(InvalidInput) as refused:
        parse_plan(value, pools=("chat",))
    found = next(problem for problem in refused.value.problems if problem.path == path_of(place))
    assert found.value == wrong
    assert found.allowed == NUMBERS[name].allowed


def test_a_policy_that_requires_approvals_sets_their_minimum() -> None:
    assert parse_plan({"steps": STEPS}, pools=("chat",), approvals_needed=2).approvals.needed == 2
    assert "2 to 10" in problems(WHOLE, approvals_needed=2)["approvals.needed"]


def test_without_a_pool_a_plan_can_only_be_full() -> None:
    assert parse_plan({"steps": [FULL]}, pools=()).pools == ()
    assert parse_plan({"steps": [FULL], "pools": []}, pools=()).is_direct
    assert "no pool uses this policy" in problems({"steps": STEPS}, pools=())["pools"]


def test_a_million_unknown_fields_are_not_all_reported() -> None:
    assert len(problems({"steps": STEPS, **{f"x{n}": 1 for n in range(100_000)}})) <= 10


def test_the_offered_plan_is_valid() -> None:
    offered = default_plan(("chat", "night"), 2)
    assert parse_plan(offered.canonical, pools=("chat", "night"), approvals_needed=2) == offered


def test_the_offered_plan_leaves_out_classes_that_are_rare_in_the_preview() -> None:
    offered = default_plan(("chat",), shares={"warm": 0.9, "medium": 0.099, "heavy": 0.001})
    assert offered.canonical["guards"][0]["classes"] == ["warm", "medium"]
    assert default_plan(("chat",)).canonical["guards"][0]["classes"] == ["warm", "medium", "heavy"]


@pytest.mark.parametrize(
    ("heavy", "shares"),
    [(100, [0.05, 0.25]), (99, [0.05, 0.25, 0.5]), (10, [0.05, 0.25, 0.5]), (9, [0.05, 0.25]), (0, [0.05, 0.25])],
)
def test_the_offered_plan_has_a_larger_canary_for_a_rare_class(heavy: int, shares: list[float]) -> None:
    """The shares are of 1,000 requests; the last canary asks for approval."""
    classes = {"warm": 0.5, "medium": (500 - heavy) / 1000, "heavy": heavy / 1000}
    offered = default_plan(("chat",), shares=classes)
    canaries = [step for step in offered.steps if isinstance(step, Canary)]
    assert [step.share for step in canaries] == shares
    assert [step.then for step in canaries] == [*[""] * (len(canaries) - 1), "ask"]
    assert parse_plan(offered.canonical, pools=("chat",)) == offered


VALUES = st.one_of(st.integers(-10, 10**7), st.floats(allow_nan=True), st.booleans(), st.none(), st.text(max_size=3))
JSON = st.recursive(
    VALUES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4)
)


@given(
    st.dictionaries(
        st.sampled_from(["schema", "pools", "steps", "guards", "alpha", "hold", "approvals", "start"]), JSON, max_size=8
    )
)
def test_any_input_gives_a_plan_or_a_list_of_problems(value: dict[str, Any]) -> None:
    try:
        made = parse_plan(value, pools=("chat",))
    except InvalidInput as error:
        found = error.problems
    else:
        assert stored_plan.read(made.canonical) == made
        return
    assert found
    assert all(isinstance(problem.path, str) and problem.text for problem in found)


@given(
    st.lists(st.floats(0.001, 0.5), min_size=1, max_size=5, unique=True),
    st.lists(st.integers(10, 3600), min_size=5, max_size=5),
)
def test_canaries_must_grow(shares: list[float], seconds: list[int]) -> None:
    def steps(order: list[float]) -> list[dict[str, Any]]:
        return [{"mode": "canary", "share": s, "for_s": n} for s, n in zip(order, seconds, strict=False)]

    made = parse_plan({"steps": steps(sorted(shares))}, pools=("chat",))
    assert [step.share for step in made.steps] == sorted(shares)
    assert stored_plan.read(made.canonical) == made
    if len(shares) > 1:
        with pytest.raises(InvalidInput):
            parse_plan({"steps": steps(sorted(shares, reverse=True))}, pools=("chat",))

"""What instances are there for, and who serves when those are away."""

from typing import Any

from router.policy.decide import decide
from router.policy.schema import document
from router.policy.types import InstanceState, RoutingRequest

POLICY = document.parse(document.default("least_requests"))


def refused(*instances: InstanceState) -> dict[str, str]:
    decision = decide(RoutingRequest(1_000), instances, POLICY, 0.5)
    return {"chosen": decision.instance, **{one.id: one.refused for one in decision.candidates if one.refused}}


def test_who_serves_goes_before_who_helps_however_busy() -> None:
    assert refused(
        InstanceState("p", role="prefill"), InstanceState("d", role="decode"), InstanceState("b", running=40)
    ) == {
        "chosen": "b",
        "p": "it computes prompts for others",
        "d": "it decodes what others have computed",
    }


def test_without_anybody_else_those_that_decode_serve() -> None:
    found = refused(
        InstanceState("p", role="prefill"), InstanceState("d", role="decode"), InstanceState("b", refused="draining")
    )
    assert found == {"chosen": "d", "p": "it computes prompts for others", "b": "draining"}


def test_at_the_last_those_that_compute_prompts_serve() -> None:
    assert (
        refused(InstanceState("p", role="prefill"), InstanceState("d", role="decode", refused="draining"))["chosen"]
        == "p"
    )


def test_a_full_cache_is_set_aside_after_the_roles() -> None:
    full = InstanceState("full", kv_usage=0.99)
    assert refused(full, InstanceState("d", role="decode"))["chosen"] == "full"
    assert refused(full, InstanceState("d", role="decode"), InstanceState("b", running=9))["chosen"] == "b"


def heavy(*instances: InstanceState, **overrides: Any) -> Any:
    made = document.apply_overrides(document.default("least_requests"), {"flow.heavy": "offload", **overrides})
    return decide(RoutingRequest(50_000), instances, document.parse(made), 0.5)


def test_a_heavy_request_is_computed_on_the_least_loaded_other_of_its_connector() -> None:
    decision = heavy(
        InstanceState("a", connector="nixl"),
        InstanceState("b", connector="nixl", running=1, prefill_tokens=9_000),
        InstanceState("c", connector="nixl", running=3, cached_tokens=10_000),
        InstanceState("x", connector="mooncake_store", running=1),
    )
    # work_b = 50000 + 9000 + 2000; work_c = 40000 + 0 + 6000
    assert (decision.instance, decision.flow, decision.prefill, decision.prefill_new_tokens) == (
        "a",
        "offload",
        "c",
        40_000,
    )
    assert decision.reasons[-1] == "prefill on c: least work, 46,000 tokens, to nixl"


def test_those_that_compute_prompts_for_others_do_so() -> None:
    instances = [
        InstanceState("a", connector="nixl"),
        InstanceState("b", connector="nixl", running=30),
        InstanceState("p", role="prefill", connector="nixl", running=5),
        InstanceState("d", role="decode", connector="nixl"),
    ]
    decision = heavy(*instances)
    assert (decision.instance, decision.prefill) == ("a", "p")


def test_without_a_connector_or_a_partner_it_stays_and_the_reason_says_so() -> None:
    bare = heavy(InstanceState("a"), InstanceState("b", connector="nixl", running=1))
    assert (bare.flow, bare.prefill) == ("colocated", "")
    assert bare.reasons[-1] == "prefill stays on a: KV blocks cannot reach it"
    alone = heavy(
        InstanceState("a", connector="nixl"),
        InstanceState("b", connector="nixl", refused="draining"),
        InstanceState("c", connector="nixl", running=512),
        InstanceState("d", connector="nixl", role="decode"),
    )
    assert (alone.instance, alone.flow) == ("a", "colocated")
    assert alone.reasons[-1] == "prefill stays on a: no other instance that is able is connected by nixl"


def test_a_full_prefiller_is_taken_only_when_there_is_no_other() -> None:
    full = InstanceState("full", connector="nixl", kv_usage=0.99, running=1)
    first = InstanceState("a", connector="nixl")
    assert heavy(first, full).prefill == "full"
    assert heavy(first, full, InstanceState("busy", connector="nixl", running=90)).prefill == "busy"


def test_what_is_not_heavy_is_not_offloaded() -> None:
    made = document.apply_overrides(document.default("least_requests"), {"flow.heavy": "offload"})
    pair = [InstanceState("a", connector="nixl"), InstanceState("b", connector="nixl")]
    assert decide(RoutingRequest(39_999), pair, document.parse(made), 0.5).flow == "colocated"

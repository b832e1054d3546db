"""Instances keep to their roles: one that only prefills never decodes, and one that only decodes never prefills."""

from typing import Any

import pytest

from router.policy.decide import decide
from router.policy.schema import document
from router.policy.strategies import STRATEGIES
from router.policy.types import Decision, InstanceState, RoutingRequest

POLICY = document.parse(document.default("least_requests"))


def refused(*instances: InstanceState) -> dict[str, str]:
    decision = decide(RoutingRequest(1_000), instances, POLICY, 0.5)
    return {"chosen": decision.instance, **{one.id: one.refused for one in decision.candidates if one.refused}}


def test_an_instance_of_both_roles_is_preferred_to_a_decoder_however_busy_it_is() -> None:
    assert refused(
        InstanceState("p", role="prefill"), InstanceState("d", role="decode"), InstanceState("b", running=40)
    ) == {
        "chosen": "b",
        "p": "it computes prompts for others",
        "d": "it decodes what others have computed, and the policy never offloads",
    }


def test_an_instance_that_only_decodes_gets_no_prompt_even_as_the_last_one() -> None:
    found = refused(
        InstanceState("p", role="prefill"), InstanceState("d", role="decode"), InstanceState("b", refused="draining")
    )
    assert found == {
        "chosen": "",
        "p": "it computes prompts for others",
        "d": "it decodes what others have computed, and the policy never offloads",
        "b": "draining",
    }


def test_an_instance_that_computes_prompts_for_others_never_decodes() -> None:
    assert refused(InstanceState("p", role="prefill", connector="nixl"))["chosen"] == ""


def offloaded(strategy: str, request: RoutingRequest, *instances: InstanceState, **overrides: Any) -> Decision:
    made = document.apply_overrides(document.default(strategy), overrides)
    return decide(request, instances, document.parse(made), 0.5)


PAIR = (InstanceState("p", role="prefill", connector="nixl"), InstanceState("d", role="decode", connector="nixl"))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_decision_for_an_instance_that_only_decodes_is_an_offload_in_every_class(strategy: str) -> None:
    decision = offloaded(strategy, RoutingRequest(100), *PAIR, **{"flow.heavy": "offload"})
    assert (decision.instance, decision.flow, decision.prefill) == ("d", "offload", "p")


def test_a_request_that_cannot_be_offloaded_never_reaches_an_instance_that_only_decodes() -> None:
    request = RoutingRequest(100, indivisible="several answers to one prompt")
    decision = offloaded("adaptive_offload", request, *PAIR)
    assert decision.instance == ""
    assert decision.reasons[2] == (
        "1 of 2: it decodes what others have computed, and this request cannot be offloaded: "
        "several answers to one prompt"
    )
    assert offloaded("adaptive_offload", request, *PAIR, InstanceState("b")).instance == "b"


def test_requests_that_generate_nothing_go_to_instances_that_compute_prompts() -> None:
    request = RoutingRequest(100, indivisible="/v1/embeddings decodes nothing", generates=False)
    decision = offloaded("least_requests", request, *PAIR)
    assert (decision.instance, decision.flow) == ("p", "colocated")


@pytest.mark.parametrize(
    "prefiller",
    [
        InstanceState("p", role="prefill", connector="nixl", refused="draining"),
        InstanceState("p", role="prefill", connector="nixl", running=512),
        InstanceState("p", role="prefill", connector="mooncake_store"),
    ],
    ids=["not able", "full", "of another connector"],
)
def test_without_a_prefill_instance_a_decode_only_instance_gets_nothing(prefiller: InstanceState) -> None:
    decision = offloaded("adaptive_offload", RoutingRequest(100), prefiller, PAIR[1])
    assert decision.instance == ""
    assert [one.refused for one in decision.candidates][1] == (
        "it decodes what others have computed, and no instance that is able can compute for it"
    )


def test_full_caches_are_excluded_after_roles() -> None:
    full = InstanceState("full", kv_usage=0.99)
    assert refused(full, PAIR[1])["chosen"] == "full"
    assert refused(full, PAIR[1], InstanceState("b", running=9))["chosen"] == "b"


def heavy(*instances: InstanceState, **overrides: Any) -> Any:
    made = document.apply_overrides(document.default("least_requests"), {"flow.heavy": "offload", **overrides})
    return decide(RoutingRequest(50_000), instances, document.parse(made), 0.5)


def test_a_heavy_request_is_computed_on_the_least_loaded_other_instance_of_its_connector() -> None:
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


def test_prefill_instances_compute_prompts_for_decoders() -> None:
    instances = [
        InstanceState("a", connector="nixl"),
        InstanceState("b", connector="nixl", running=30),
        InstanceState("p", role="prefill", connector="nixl", running=5),
        InstanceState("d", role="decode", connector="nixl"),
    ]
    decision = heavy(*instances)
    assert (decision.instance, decision.prefill) == ("a", "p")


def test_without_a_connector_or_partner_a_request_stays_and_the_reason_says_so() -> None:
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
    assert alone.reasons[-1] == "prefill stays on a: no other instance that can prefill is connected by nixl"


def test_a_full_prefill_instance_is_chosen_only_if_there_is_no_other() -> None:
    full = InstanceState("full", connector="nixl", kv_usage=0.99, running=1)
    first = InstanceState("a", connector="nixl")
    assert heavy(first, full).prefill == "full"
    assert heavy(first, full, InstanceState("busy", connector="nixl", running=90)).prefill == "busy"


def test_requests_that_are_not_heavy_are_not_offloaded() -> None:
    made = document.apply_overrides(document.default("least_requests"), {"flow.heavy": "offload"})
    pair = [InstanceState("a", connector="nixl"), InstanceState("b", connector="nixl")]
    assert decide(RoutingRequest(39_999), pair, document.parse(made), 0.5).flow == "colocated"

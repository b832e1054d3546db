"""The twin's outcomes as records."""

from msgspec.structs import replace

from controlplane.evidence.experiments.results import summarize
from controlplane.evidence.experiments.results.twin_records import kv_usage, records_of, token_facts
from controlplane.evidence.twin.simulation.types import Simulated, SimulatedUse, TwinOutcome
from fleet.engine.request import CachedFrom

ANSWERED = Simulated(
    index=7, seed=1, session="s", sent_s=12.34567, input_tokens=1000, output_tokens=50, cached_tokens=400,
    ttft_s=0.1234567, tpot_s=0.008, e2e_s=0.5, instance="demo-0", request_class="medium", outcome="ok", code="",
    queued_s=0.0, shadow_changed=False, cached_from=CachedFrom(0, 300, 100, 0),
)  # fmt: skip
REFUSED = replace(ANSWERED, index=8, ttft_s=None, tpot_s=None, e2e_s=30.0, instance="", outcome="refused", code="full")


def outcome(*requests: Simulated, **instances: SimulatedUse) -> TwinOutcome:
    return TwinOutcome(requests, instances, 60.0, ())


def recorded(*requests: Simulated):
    return records_of(outcome(*requests), trace_classes={7: "warm", 8: "heavy"}, policy_version=3)


def test_an_answer_is_recorded_as_a_client_would_have_seen_it():
    (found,) = recorded(ANSWERED)
    assert (found.sent_s, found.ttft_ms, found.tpot_ms, found.e2e_ms) == (12.3457, 123.457, 8.0, 500.0)
    assert (found.prompt_tokens, found.cached_tokens, found.output_tokens) == (1000, 400, 50)
    assert (found.instance, found.routed_class, found.trace_class, found.policy_version) == (
        ("demo-0", "medium", "warm", "3")
    )
    assert (found.status, found.outcome, found.error) == (200, "ok", "")
    assert (found.cached_device, found.cached_host, found.cached_disk, found.cached_pulled) == (0, 300, 100, 0)


def test_a_refused_request_has_no_latency():
    (found,) = recorded(REFUSED)
    assert (found.outcome, found.status, found.error) == ("refused", 503, "full")
    assert (found.ttft_ms, found.e2e_ms, found.prompt_tokens, found.output_tokens) == (None,) * 4
    assert found.cached_host is None


def test_failures_have_the_status_that_a_router_would_return():
    too_long = replace(REFUSED, outcome="client_error", code="too_long")
    found = recorded(too_long, replace(too_long, index=7, outcome="error", code="out_of_memory"))
    assert [(one.outcome, one.status) for one in found] == [("client_error", 400), ("error", 500)]


def test_figures_are_summarized_from_records_of_the_twin_as_from_a_replay():
    own = summarize.run_results(recorded(ANSWERED, REFUSED), ["demo-0", "demo-1"])
    assert (own["classes"]["all"]["ok"], own["classes"]["heavy"]["refused"]) == (1, 1)
    assert own["classes"]["warm"]["hit_ratio"] == 0.4
    assert own["prompt_tokens_by_instance"] == {"demo-0": 1000, "demo-1": 0}


def test_second_token_and_interruptions_are_means_over_answers():
    long = replace(ANSWERED, second_s=0.2, interruptions=7, transfers=1)
    single = replace(ANSWERED, output_tokens=1)
    assert token_facts(outcome(long, single, REFUSED)) == {
        "second_token_ms": 200.0,
        "interruptions": 3.5,
        "transfers": 0.5,
    }
    assert token_facts(outcome(REFUSED)) == {}


def test_the_use_of_kv_is_over_all_instances_and_seconds():
    def use(*shares: float) -> SimulatedUse:
        return SimulatedUse(shares, (0,) * len(shares), (0,) * len(shares), 0)

    assert kv_usage(outcome(a=use(0.1, 0.5), b=use(0.3, 0.9))) == {"mean": 0.45, "peak": 0.9}
    assert kv_usage(outcome()) == {}

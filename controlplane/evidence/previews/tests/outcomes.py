"""Outcomes of the twin, invented request by request."""

from typing import Any

from controlplane.evidence.twin.simulation.types import Simulated, SimulatedUse, TwinOutcome


def request(index: int, **changes: Any) -> Simulated:
    """A request that demo-0 answered, with a TTFT of 100 ms plus 1 ms for each index."""
    values: dict[str, Any] = {
        "index": index,
        "seed": 1,
        "session": f"s{index}",
        "sent_s": index * 0.5,
        "input_tokens": 1000,
        "output_tokens": 50,
        "cached_tokens": 400,
        "ttft_s": 0.1 + index / 1000,
        "tpot_s": 0.008,
        "e2e_s": 0.5 + index / 1000,
        "instance": "demo-0",
        "request_class": "warm",
        "outcome": "ok",
        "code": "",
        "queued_s": 0.0,
        "shadow_changed": False,
    }
    return Simulated(**values | changes)


def refused(index: int, **changes: Any) -> Simulated:
    nothing = {"ttft_s": None, "tpot_s": None, "instance": "", "cached_tokens": 0}
    return request(index, outcome="refused", code="overloaded", **nothing | changes)


def outcome(
    *requests: Simulated, kv_usage: tuple[float, ...] = (0.2, 0.4), not_modelled: tuple[str, ...] = ()
) -> TwinOutcome:
    use = SimulatedUse(kv_usage, running=(1, 1), waiting=(0, 0), preemptions=0)
    return TwinOutcome(requests, {"demo-0": use}, virtual_s=10.0, not_modelled=not_modelled)

"""Whether a run's figures can be trusted. A slow machine shows up as late requests, late engines, a full CPU; in the
twin no clock runs, and what counts is how well it knows the engines. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

SHARE = 0.1  # of the TTFT p90: less than that cannot have moved a conclusion much
LEAST_MS = 20.0  # of the engine's time: what is below it is never worth a warning
BUSY = 0.97


def replay_warnings(figures: Mapping[str, Any], facts: Mapping[str, Any], time_scale: float) -> list[str]:
    """In words, for a run's own figures and what was measured beside them."""
    everything = figures["classes"]["all"]
    limit = max(LEAST_MS, SHARE * (everything["ttft_p90_ms"] or 0.0))
    found = []
    late = (figures["late_wall_p99_ms"] or 0.0) * time_scale
    if late > limit:
        found.append(
            f"this machine sent requests late: p99 {late:,.0f} ms of the engine's time; "
            f"above {limit:,.0f} ms the load is not the trace's"
        )
    lag = (facts.get("sim_lag_p99_s") or 0.0) * 1000 * time_scale
    if lag > limit:
        found.append(
            f"the sim engines ran late: p99 {lag:,.0f} ms of the engine's time; above {limit:,.0f} ms "
            f"latencies are those of this machine; choose a smaller time scale"
        )
    if (facts.get("machine_busy") or 0.0) > BUSY:
        found.append(f"the machine's CPU was {facts['machine_busy']:.0%} busy during the run")
    at_once, ok = figures["came_at_once"], everything["ok"]
    if at_once > SHARE * ok:
        found.append(
            f"of {at_once:,} of {ok:,} answers all tokens came in one read: their TPOT is not known, "
            "and TPOT is that of the others; choose a smaller time scale"
        )
    return found + _answers(everything)


def twin_warnings(figures: Mapping[str, Any], facts: Mapping[str, Any]) -> list[str]:
    """What the twin leaves out of this pool and this policy, and what speaks against its constants."""
    cautions = [f"the twin: {text}" for text in facts.get("twin", {}).get("cautions", [])]
    left_out = [f"not simulated: {text}" for text in facts.get("not_modelled", [])]
    return cautions + left_out + _answers(figures["classes"]["all"])


def seeds_alike(loads: Mapping[int, str]) -> list[str]:
    """Of simulations, seed → what was played: repeating the same requests adds none, but narrows every interval."""
    if len(set(loads.values())) == len(loads):
        return []
    return [
        "several seeds played the same requests, because this trace leaves nothing to a seed: "
        "count on fewer requests than n says, and on wider intervals"
    ]


def merged(arms: Mapping[str, Sequence[str]]) -> list[str]:
    """Warnings by arm as one list: what every arm has is said once, the others with their arm's name."""
    shared = set.intersection(*map(set, arms.values()))
    own = {f"{name}: {warning}" for name, found in arms.items() for warning in found if warning not in shared}
    return [*sorted(shared), *sorted(own)]


def _answers(everything: Mapping[str, Any]) -> list[str]:
    n, ok = everything["n"], everything["ok"]
    missing = n - ok - everything["cancelled"]
    if n and missing / n > 0.01:
        return [
            f"{missing:,} of {n:,} requests were refused or failed; "
            "latencies are of the answered ones only, so refusing looks fast"
        ]
    return []

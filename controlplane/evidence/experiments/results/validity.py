"""Warns about a run: a slow machine delays requests and engines, and the twin omits some features of engines. Pure."""

from collections.abc import Mapping, Sequence

from controlplane.evidence.experiments.record import RunFacts
from controlplane.evidence.experiments.results.types import ClassResults, WholeRunResults
from fleet.counted import percent

SHARE = 0.1  # share of the TTFT p90; a smaller delay hardly changes a conclusion
LEAST_MS = 20.0  # engine time; a smaller delay needs no warning
BUSY = 0.97


def replay_warnings(results: WholeRunResults, facts: RunFacts, time_scale: float) -> list[str]:
    """Return warnings about a replay, from its results and facts."""
    everything = results["classes"]["all"]
    limit = max(LEAST_MS, SHARE * (everything["ttft_p90_ms"] or 0.0))
    found = []
    late = (results["late_wall_p99_ms"] or 0.0) * time_scale
    if late > limit:
        found.append(
            f"this machine sent requests late: p99 {late:,.0f} ms in the time of the engine; "
            f"above {limit:,.0f} ms the load differs from the trace"
        )
    lag = (facts.sim_lag_p99_s or 0.0) * 1000 * time_scale
    if lag > limit:
        found.append(
            f"the sim engines ran late: p99 {lag:,.0f} ms in the time of the engine; above {limit:,.0f} ms "
            f"latencies are those of this machine; choose a smaller time scale"
        )
    if (busy := facts.machine_busy or 0.0) > BUSY:
        found.append(f"the machine's CPU was {percent(busy)} busy during the run")
    at_once, ok = results["came_at_once"], everything["ok"] or 0
    if at_once > SHARE * ok:
        found.append(
            f"all tokens of {at_once:,} of {ok:,} answers came in one read, so TPOT is that of the others; "
            "choose a smaller time scale"
        )
    return found + _answers(everything)


def twin_warnings(results: WholeRunResults, facts: RunFacts) -> list[str]:
    """Return features of the pool and the policy that the twin omits, and doubts about its constants."""
    cautions = [f"the twin: {text}" for text in (facts.twin.cautions if facts.twin else ())]
    left_out = [f"not simulated: {text}" for text in facts.not_modelled or ()]
    outside = [f"the twin: {text}" for text in facts.outside or ()]
    return cautions + left_out + outside + _answers(results["classes"]["all"])


def seeds_alike(loads: Mapping[int, str]) -> list[str]:
    """Warn about simulations of different seeds whose loads are equal: repeating the same requests narrows every
    interval without adding information."""
    if len(set(loads.values())) == len(loads):
        return []
    return [
        "several seeds played the same requests, because this trace depends on no seed: "
        "the real n is smaller and the intervals are wider"
    ]


def merged(arms: Mapping[str, Sequence[str]]) -> list[str]:
    """Merge warnings by arm into one list: shared ones once, the others with their arm's name."""
    shared = set.intersection(*map(set, arms.values()))
    single = {f"{name}: {text}" for name, texts in arms.items() for text in texts if text not in shared}
    return [*sorted(shared), *sorted(single)]


def _answers(everything: ClassResults) -> list[str]:
    n, ok, cancelled, clients = (everything.get(key) or 0 for key in ("n", "ok", "cancelled", "client_errors"))
    missing = n - ok - cancelled
    found = []
    if n and missing / n > 0.01:
        found.append(
            f"{missing:,} of {n:,} requests were refused or failed; "
            "the latencies in the table are of answered requests only, comparisons count the others as infinitely late"
        )
    if clients:
        found.append(
            f"{clients:,} of {n:,} requests were at fault themselves, most likely longer than an engine's context; "
            "choose a trace of shorter prompts, or engines that take these"
        )
    return found

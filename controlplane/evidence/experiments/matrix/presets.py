"""Arms to start from: the adaptive-prefill-offload design, and other routers' strategies."""

from collections.abc import Iterator, Mapping

from fleet.systems.offload import TRANSFER_RATES
from router.contract.connectors import MOONCAKE_P2P, MOONCAKE_STORE, NIXL
from router.contract.json_value import Json, JsonObject

HEAVY_OF_DESIGN: JsonObject = {"classes.heavy_new_tokens": 20_000}  # not the default, which may differ


def connectors(rate: float, store: str) -> Iterator[tuple[str, dict[str, JsonObject]]]:
    """(name, fleet of an arm) for transfers at a rate; `store`: a pool of the kind sim-store, empty: there is none."""
    link: JsonObject = {"kv_gb_per_s": rate, "kv_busy_gb_per_s": rate}
    yield "NIXL", {"engine": {"kv": NIXL, **link}}
    yield "Mooncake P2P", {"engine": {"kv": MOONCAKE_P2P, **link}}
    if store:
        engine: JsonObject = {"kv": MOONCAKE_STORE, "store_pool": store}
        yield f"the Mooncake store {store}", {"engine": engine, "store": {"gb_per_s": rate}}


def _offload(rate: float, fleet: Mapping[str, JsonObject], over: str = "") -> JsonObject:
    return {
        "name": f"D at {rate:g} GB-s{over and f' over {over}'}",
        "strategy": "adaptive_offload",
        "overrides": HEAVY_OF_DESIGN,
        "fleet": {**fleet},
    }


A: JsonObject = {"name": "A", "strategy": "cache_aware"}
B: JsonObject = {"name": "B", "strategy": "adaptive_v1", "overrides": HEAVY_OF_DESIGN}
C: list[Json] = [
    {"name": f"C at T={t // 1000}k", "strategy": "adaptive_v1", "overrides": {"classes.heavy_new_tokens": t}}
    for t in (10_000, 20_000, 40_000)
]
D: list[Json] = [_offload(rate, dict(connectors(rate, ""))["NIXL"]) for rate in TRANSFER_RATES]


def split(prefill: int, instances: int = 8) -> JsonObject:
    """A fleet in which `prefill` instances prefill and the others decode."""
    return {
        "name": f"static {prefill}P{instances - prefill}D",
        "strategy": "round_robin_pd",
        "fleet": {"replicas": instances, "engine": {"kv": NIXL, "prefill_instances": prefill}},
    }


STATIC = split(6)
SPLITS: list[Json] = [split(prefill) for prefill in (7, 6, 5, 4, 3, 1)]
_NIXL: JsonObject = {**dict(connectors(9.7, ""))["NIXL"]}
_SESSION_FIRST: JsonObject = {**HEAVY_OF_DESIGN, "strategy.order": "session_first"}
OFFLOADS: list[Json] = [
    B,
    {**B, "name": "B, session first", "overrides": _SESSION_FIRST},
    {"name": "D", "strategy": "adaptive_offload", "overrides": HEAVY_OF_DESIGN, "fleet": _NIXL},
    {"name": "D, session first", "strategy": "adaptive_offload", "overrides": _SESSION_FIRST, "fleet": _NIXL},
    {
        "name": "conditional offload",
        "strategy": "conditional_offload",
        # else nothing is moved until something has been moved
        "overrides": {**HEAVY_OF_DESIGN, "strategy.assumed_transfer_gb_per_s": 9.7},
        "fleet": _NIXL,
    },
    {"name": "PPD", "strategy": "ppd", "fleet": _NIXL},
]
PEERS: list[Json] = ["lpwl", "cache_aware", "prefix_hash", "sglang_cache_aware", "dynamo", "llm_d", "lmetric"]
PEERS += ["smetric", "mooncake_conductor", "least_requests", "power_of_two", "round_robin"]


def presets(store: str = "") -> dict[str, tuple[str, list[Json]]]:
    """Name to (what is compared, arms)."""
    over = [_offload(rate, fleet, name) for rate in TRANSFER_RATES for name, fleet in connectors(rate, store)]
    return {
        "design": (
            "The design: cache aware, adaptive, adaptive with offload, and a fixed split of 6 prefill and 2 decode",
            [A, B, D[1], STATIC],
        ),
        "offloads": ("Ways to move a heavy prefill away, and which rule comes first, at 9.7 GB/s", [A, *OFFLOADS]),
        "splits": ("Fixed splits of 8 instances, from 7 prefill and 1 decode to 1 and 7", [A, *SPLITS]),
        "thresholds": ("When a request counts as heavy: from 10,000, 20,000 or 40,000 new tokens", [A, *C]),
        "bandwidths": ("How fast KV moves between instances: 3, 9.7 and 40 GB/s, by connector", [A, *over]),
        "peers": ("Strategies of other routers", PEERS),
    }

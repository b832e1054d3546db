"""Arms to start from: the adaptive-prefill-offload design, and other routers' strategies."""

from typing import Any

NIXL = {"kv": "nixl"}
HEAVY_OF_DESIGN = {"classes.heavy_new_tokens": 20_000}  # not the default, which may differ


def _offload(rate: float) -> dict[str, Any]:
    engine = {**NIXL, "kv_gb_per_s": rate, "kv_busy_gb_per_s": rate}
    return {
        "name": f"D at {rate:g} GB-s",
        "strategy": "adaptive_offload",
        "overrides": HEAVY_OF_DESIGN,
        "fleet": {"engine": engine},
    }


A: dict[str, Any] = {"name": "A", "strategy": "cache_aware"}
B: dict[str, Any] = {"name": "B", "strategy": "adaptive_v1", "overrides": HEAVY_OF_DESIGN}
C: list[Any] = [
    {"name": f"C at T={t // 1000}k", "strategy": "adaptive_v1", "overrides": {"classes.heavy_new_tokens": t}}
    for t in (10_000, 20_000, 40_000)
]
D: list[Any] = [_offload(rate) for rate in (3, 9.7, 40)]
STATIC: dict[str, Any] = {
    "name": "static 6P2D",
    "strategy": "round_robin_pd",
    "fleet": {"replicas": 8, "engine": {**NIXL, "prefill_instances": 6}},
}
PEERS: list[Any] = ["lpwl", "cache_aware", "prefix_hash", "sglang_cache_aware", "dynamo", "llm_d", "lmetric", "smetric"]
PEERS += ["mooncake_conductor", "least_requests", "power_of_two", "round_robin"]

PRESETS: dict[str, tuple[str, list[Any]]] = {
    "design": ("A, B, D and static 6P+2D", [A, B, D[1], STATIC]),
    "thresholds": ("C: the threshold at 10k, 20k and 40k", [A, *C]),
    "bandwidths": ("D at 3, 9.7 and 40 GB/s", [A, *D]),
    "peers": ("strategies of other routers", PEERS),
}

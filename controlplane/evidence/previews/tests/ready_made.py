"""Previews as JSON in every state, as the API returns them."""

from typing import Any


def metric(name: str, live: float | None, draft: float | None, half: float = 10.0, **changes: Any) -> dict[str, Any]:
    """One quantile; its interval is the difference ± `half` ms."""
    if live is None or draft is None:
        unknown = {"difference": None, "relative": None, "low": None, "high": None, "n": 0, "verdict": ""}
        return {"metric": name, "live": live, "draft": draft, **unknown, **changes}
    difference = draft - live
    low, high = difference - half, difference + half
    verdict = "better" if high < 0 else "worse" if low > 0 else "not distinguishable"
    return {
        "metric": name,
        "live": live,
        "draft": draft,
        "difference": difference,
        "relative": difference / live if live else None,
        "low": low,
        "high": high,
        "n": 800,
        "verdict": verdict,
        **changes,
    }


def of_class(n: int, ttft: float = 1.0, half: float = 10.0, **changes: Any) -> dict[str, Any]:
    """A class in which the draft's TTFT is `ttft` times the live one's, and TPOT and E2E are equal."""
    own = {"n": n, **changes}
    tails = {"p50": 1.0, "p90": 2.5, "p99": 6.0}
    rows = {
        **{f"ttft_{p}_ms": (820.0 * f, 820.0 * f * ttft, half * f) for p, f in tails.items()},
        **{f"tpot_{p}_ms": (9.5 * f, 9.5 * f, 0.4) for p, f in tails.items()},
        **{f"e2e_{p}_ms": (3000.0 * f, 2950.0 * f, 200 * f) for p, f in tails.items()},
    }
    return {"n": n, "metrics": [metric(name, *values, **own) for name, values in rows.items()]}


def result(**changes: Any) -> dict[str, Any]:
    return {
        "changed": {
            "decisions": 232,
            "of": 1870,
            "share": 0.12406,
            "low": 0.10911,
            "high": 0.1412,
            "classes": {
                "warm": {"decisions": 22, "of": 1046},
                "medium": {"decisions": 205, "of": 812},
                "heavy": {"decisions": 5, "of": 12},
            },
        },
        "instances": [
            {"id": f"demo-{i}", "live": 233 + i, "draft": 233 + i + (-40, 52, 0, -12)[i % 4]} for i in range(8)
        ],
        "classes": {
            "all": of_class(1870, 1.01, 20.0),
            "warm": of_class(1046, 1.0),
            "medium": of_class(812, 0.78),
            "heavy": of_class(12, 1.09, 900.0, verdict="too few requests"),
        },
        "refused": {"live": 0, "draft": 3},
        "hit_share": {"live": 0.5423, "draft": 0.5811},
        "kv_usage": {"live": 0.41, "draft": 0.4437},
        "new_tokens_per_s": None,
        "saved_tokens_per_s": None,
        "requests_per_s": None,
        "saving": None,
        "canary": None,
        **changes,
    }


def preview(status: str = "done", **changes: Any) -> dict[str, Any]:
    """A preview of the draft's revision 2 against v1."""
    return {
        "id": 7,
        "policy": "default",
        "live_version": 1,
        "draft_revision": 2,
        "draft_sha256": "d" * 64,
        "pool": "demo",
        "status": status,
        "done": 3740 if status == "done" else 0,
        "total": 3740,
        "cause": "",
        "actor": "otto",
        "created_at": 1_763_700_000.0,
        "started_at": 1_763_700_001.0,
        "ended_at": 1_763_700_004.0 if status in ("done", "failed", "cancelled") else None,
        "cached": False,
        "trace": {
            "name": "recorded:demo",
            "source": "recorded",
            "requests": 2000,
            "played": 1870,
            "first_at": 1_763_690_000.0,
            "last_at": 1_763_699_800.0,
            "age_s": 200.0,
        },
        "seeds": [1],
        "twin": {
            "basis": "profile",
            "about": "constants of h100_sxm, Llama-3.1-8B",
            "expected": {"tpot": 0.05, "e2e": 0.07, "ttft_mean": 0.1, "ttft_p99": None},
            "deviation": {
                "metric": "ttft_ms",
                "measured": 512.0,
                "twin": 553.0,
                "relative": 0.08008,
                "n": 1240,
                "since": 1_763_690_000.0,
                "until": 1_763_699_800.0,
            },
        },
        "trust": [],
        "left_s": None,
        "first_result": None,
        "result": result() if status == "done" else None,
        **changes,
    }

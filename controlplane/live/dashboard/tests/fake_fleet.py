"""A fleet that exists only in Redis: everything that Celery, the routers and the web process would have written.
Seeded."""

import json
import math
import random
import time
from collections.abc import Sequence
from typing import Any

import redis

from router.contract.redis import redis_keys
from router.contract.values import sketch
from router.policy.candidates import Candidates
from router.policy.decide import decide
from router.policy.schema import document
from router.policy.types import InstanceState, RoutingRequest
from router.tests.values import stored, stored_receipt

LATENCIES = {"warm": (180.0, 14.0, 40), "medium": (900.0, 18.0, 22), "heavy": (4200.0, 24.0, 9)}  # TTFT ms, TPOT ms, n


class FakeFleet:
    def __init__(self, client: redis.Redis, size: int = 8, pool: str = "demo", routers: int = 1, seed: int = 1) -> None:
        self.client, self.size, self.pool = client, size, pool
        self.routers = [f"router-{i + 1}" for i in range(routers)]
        self.random = random.Random(seed)
        self.states: dict[str, tuple[str, str]] = {}  # instance -> state and reason, if it is not ready
        self.kv: dict[str, float] = {}  # instance -> KV usage to show
        self.busy = 0  # running requests of each instance, in addition to a few
        self.silent: set[str] = set()  # senders that write nothing: instances, "routers"
        self.version = 3
        self.slo: dict[str, float] = {}  # TTFT p90 in ms, by class
        self.slower = 1.0  # factor of all latencies
        self.observed = False
        self.limits = {"heavy_new_tokens": 20_000, "warm_hit_share": 0.5, "warm_new_tokens": 5_000}

    @property
    def names(self) -> list[str]:
        return [f"{self.pool}-{i}" for i in range(self.size)]

    def write(self, now: float | None = None) -> None:
        """Write everything, as of `now`."""
        at = time.time() if now is None else now
        self.write_fleet(at)
        self.write_policy(at)
        self.write_samples(at)
        if "routers" not in self.silent:
            self.write_routers(at)

    def write_fleet(self, at: float) -> None:
        instances = [
            {
                "id": name, "epoch": 1, "url": f"http://127.0.0.1:{20000 + i}", "kind": "sim", "node": "local",
                "state": self.states.get(name, ("ready", ""))[0], "reason": self.states.get(name, ("ready", ""))[1],
                "routable": name not in self.states, "block_size": 16, "kv_blocks": 27_000,
            }
            for i, name in enumerate(self.names)
        ]  # fmt: skip
        value = {"pool": self.pool, "model": "llama-3.1-8b", "at": at, "instances": instances, "slo": self.slo}
        value["observed"] = self.observed
        self.client.sadd(redis_keys.POOLS, self.pool)
        self.client.set(redis_keys.fleet_key(self.pool), stored(value))

    def write_policy(self, at: float) -> None:
        document = {
            "strategy": {"name": "adaptive_v1"},
            "classes": dict(self.limits),
        }
        value = {
            "pool": self.pool, "policy": "default", "version": self.version, "sha256": "0" * 64, "document": document,
            "rollout": {"mode": "full"}, "published_at": at - 600,
        }  # fmt: skip
        self.client.set(redis_keys.policy_key(self.pool), stored(value))

    def write_samples(self, at: float) -> None:
        heard = [(i, name) for i, name in enumerate(self.names) if name not in self.silent]
        self.client.mset({redis_keys.instance_key(name): stored(self.sample(i, name, at)) for i, name in heard})

    def sample(self, i: int, name: str, at: float) -> dict[str, Any]:
        kv = self.kv.get(name, 0.5 + 0.35 * math.sin(at / 17 + i))
        return {
            "id": name, "pool": self.pool, "epoch": 1, "at": at, "kv_usage": kv, "kv_blocks": 27_000, "block_size": 16,
            "running": self.busy + 2 + (i + int(at)) % 5, "waiting": (i + int(at / 3)) % 3,
            "hit_rate": 0.6 + 0.02 * (i % 9),
            "gpu": {"use": 0.4 + 0.01 * (i % 9), "memory": 0.9, "power_w": 300.0, "simulated": True},
            "prompt_tokens_total": at * 900, "generation_tokens_total": (at % 1e6) * 120, "preemptions_total": 0,
            "prefix_queries_total": at * 900, "prefix_hits_total": at * 600, "cached_by_source": {},
        }  # fmt: skip

    def write_routers(self, at: float, version: int | None = None) -> None:
        for router in self.routers:
            value = {
                "id": router, "at": at, "started_at": at - 3600, "pid": 1, "url": "http://127.0.0.1:9",  # refused
                "pools": {self.pool: {"policy": "default", "version": version or self.version, "acked_at": at - 599}},
                "degraded": [], "inflight": {}, "classes": {self.pool: self.windows(at)},
            }  # fmt: skip
            self.client.set(redis_keys.router_key(router), stored(value))
            self.client.zadd(redis_keys.ROUTERS, {router: at})

    def windows(self, at: float) -> dict[str, dict[str, Any]]:
        made = {
            name: self.window(*shape, swing=self.slower * (1 + 0.3 * math.sin(at / 40)))
            for name, shape in LATENCIES.items()
        }
        for i, (window, rule) in enumerate(zip(made.values(), ("session", "least_work", "least_work"), strict=True)):
            window["chosen"] = {rule: {name: 1 + (i + k) % 4 for k, name in enumerate(self.names)}}
        if self.size > 1:
            made["heavy"]["moved"] = {self.names[0]: {self.names[1]: {"n": 6, "size": 12 * 2**30}}}
        return made

    def window(self, ttft: float, tpot: float, n: int, swing: float) -> dict[str, Any]:
        made: dict[str, dict[int, int]] = {"ttft": {}, "tpot": {}, "e2e": {}, "new_tokens": {}}
        for _ in range(n):
            sketch.add(made["ttft"], self.random.lognormvariate(math.log(ttft * swing), 0.5))
            sketch.add(made["tpot"], self.random.lognormvariate(math.log(tpot * swing), 0.2))
        counts = {"n": n, "started_10s": n // 5, "ok": n, "error": 0, "refused": 0, "cancelled": 0, "retries": 0}
        return {**counts, **made, "hit_share": {"n": n, "sum": 0.6 * n}}

    def receipt(self, request_id: str, at: float, **changes: Any) -> dict[str, Any]:
        return {
            "request_id": request_id, "at": at, "router": "router-1", "pool": self.pool, "model": "llama-3.1-8b",
            "endpoint": "/v1/chat/completions", "policy": "default", "version": self.version, "strategy": "adaptive_v1",
            "class": "warm", "flow": "colocated", "instance": "demo-1", "rule": "session",
            "reasons": ["the session is bound to demo-1"], "session": "9f3a11c2", "session_by": None,
            "key": None, "delivery": None, "arm": None, "alias": None, "adapter": None, "target_reason": None,
            "own_id": None, "earlier": None,
            "band": None, "band_asked": None, "band_asked_by": None, "wake_ms": None,
            "prompt_tokens": 12_345, "predicted_cached": 8_192, "new_tokens": 4_153, "cached_tokens": 8_192,
            "predicted_tiers": None, "predicted_store": None, "cached_tiers": None, "index_reason": None,
            "actual_prompt_tokens": 12_345, "output_tokens": 180, "retries": 0,
            "attempts": [{"instance": "demo-1", "status": 200, "result": "served", "error": ""}],
            "stream": True, "status": 200, "outcome": "ok", "result": "served", "fault": "nobody", "error": "",
            "code": "", "index": "approximate", "prefill_instance": None,
            "prefill_ms": None, "transfer_ms": None, "transfer_bytes": None, "offload": None, "offload_reason": None,
            "lent_by": None, "lent_tokens": None, "pull_ms": None,
            "queue_ms": 3.0, "first_byte_ms": 401.0, "ttft_ms": 405.0,
            "tpot_ms": 14.2, "e2e_ms": 2_950.0, **changes,
        }  # fmt: skip

    def write_receipt(self, request_id: str, at: float, ended: float | None = None, **changes: Any) -> None:
        brief = self.receipt(request_id, at, **changes)
        self.client.xadd(redis_keys.RECEIPTS, {"r": stored_receipt(brief)}, id=f"{int((ended or at) * 1000)}-*")
        whole = stored_receipt({**brief, **self.made_from(brief)})
        self.client.set(redis_keys.receipt_key(request_id), whole, ex=redis_keys.RECEIPT_TTL_S)

    def made_from(self, receipt: dict[str, Any]) -> dict[str, Any]:
        """The decision of adaptive_v1 in this receipt."""
        request = RoutingRequest(
            receipt["prompt_tokens"],
            session=receipt["session"],
            bound_to="demo-1",
            held={"demo-0": 1_024, "demo-1": 8_192},
            turn=7,
        )
        fleet = [
            InstanceState("demo-0", running=1),
            InstanceState("demo-1", running=3, prefill_tokens=1_200, kv_usage=0.5),
            InstanceState("demo-2", refused="draining"),
        ]
        candidates = decide(request, fleet, document.parse(document.default("adaptive_v1")), 0.5).candidates
        assert isinstance(candidates, Candidates)
        return {"inputs": candidates.inputs(), "candidates": candidates.columns()}

    def write_event(
        self, at: float, text: str, kind: str = "policy.published", pools: Sequence[str] = (), **more: Any
    ) -> None:
        event = {"at": at, "kind": kind, "subject": "default", "text": text, "actor": "ada", "pools": list(pools)}
        event |= more
        self.client.xadd(redis_keys.EVENTS, {"e": json.dumps(event)})

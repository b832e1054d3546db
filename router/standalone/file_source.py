"""The source of a standalone router: instances, policy and keys from options and files, samples from the instances.

SIGHUP rereads the files. If any of them is invalid, none is applied.
"""

import asyncio
import contextlib
import logging
import signal
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path

import orjson
from prometheus_client.core import Metric

from router.contract.redis.published import ModelsValue, PolicyValue
from router.contract.values.json_value import Json, JsonObject
from router.limits.token_buckets import MINUTE_S, Bucket, Grant, TokenRequest
from router.metrics import of_files
from router.pool.health.stall_troubles import stalled_why
from router.request.call import Call
from router.serving.pools import Pools
from router.serving.prompt.sessions import Sessions
from router.serving.stored import StoredResponses
from router.standalone import POOL
from router.standalone.api_keys import KeysFile, read_keys
from router.standalone.files import (
    DocumentFile,
    key_reference,
    read_instances,
    read_models,
    read_policy,
)
from router.standalone.text import BadInput
from router.standalone.watch import PATIENCE_S, InstanceWatch, Rules, Watched
from router.telemetry.receipts import name, receipt, whole
from router.telemetry.recorder import Recorder

log = logging.getLogger("weir.router")

PROBE_S = 1.0
FIRST_LOOK_S = 2.0
COLLECT_S = 0.2
RECEIPTS_KEPT = 1000
RECEIPTS = "/receipts"
LOOPBACK = ("127.0.0.1", "::1", "::ffff:127.0.0.1")


class LocalBuckets:
    """Grants allowances like the shared buckets (sync/token_bucket_store.py): all kinds or none. A negative amount
    returns tokens."""

    routers = 1

    def __init__(self) -> None:
        self._buckets: dict[str, dict[str, Bucket]] = {}  # by key id and kind

    def keep_only(self, key_ids: Iterable[str]) -> None:
        """Drop the buckets of removed keys; a key that is added again starts with a full bucket."""
        known = set(key_ids)
        self._buckets = {key_id: buckets for key_id, buckets in self._buckets.items() if key_id in known}

    async def borrow(self, key_id: str, token_requests: Sequence[TokenRequest]) -> Grant | None:
        return self.lend(key_id, token_requests, asyncio.get_running_loop().time())

    def lend(self, key_id: str, token_requests: Sequence[TokenRequest], now: float) -> Grant:
        """Grant or refuse the requests. `now`: s, any monotonic clock."""
        kept = self._buckets.setdefault(key_id, {})
        buckets = [
            kept.setdefault(token_request.kind, Bucket(token_request.limit, now)) for token_request in token_requests
        ]
        waits = [
            _wait_s(bucket, token_request, now) for bucket, token_request in zip(buckets, token_requests, strict=True)
        ]
        wait = max(waits, default=0.0)
        granted = [0.0 if wait else min(w.wanted, b.level) for b, w in zip(buckets, token_requests, strict=True)]
        for bucket, token_request, amount in zip(buckets, token_requests, granted, strict=True):
            bucket.level = min(token_request.limit, bucket.level - amount)
        return Grant(wait, tuple(granted), tuple(bucket.level for bucket in buckets))


def _wait_s(bucket: Bucket, token_request: TokenRequest, now: float) -> float:
    """Refill up to `now`; return the seconds until the bucket holds the needed amount, or 0."""
    bucket.take(0.0, token_request.limit, now)
    return max(0.0, token_request.needed - bucket.level) * MINUTE_S / token_request.limit


class FileSource:
    """The source of pools for a standalone router. `instances` is URLs or @FILE. `model` is empty to ask the instances.
    `engine_key` is the key reference for instances that name none. Raise BadInput."""

    def __init__(
        self,
        instances: str,
        policy: Path | None,
        model: str,
        router_id: str,
        keys: Path | None = None,
        models: Path | None = None,
        engine_key: str = "",
        *,
        removes_billing_line: bool = False,
    ) -> None:
        self.id = router_id
        self.routers = 1
        self.pools = Pools()
        self.recorder = Recorder()
        self.sessions = Sessions()
        self.responses = StoredResponses(self.pools)
        self.looked_at: float | None = None
        self._instances = instances
        self._engine_key = key_reference("--engine-key", engine_key)
        self._removes_billing_line = removes_billing_line
        self._policy = policy
        self._keys = keys
        self._models = models
        self._pool = self.pools.get_or_add(POOL)
        self._watch = InstanceWatch(self.pools, self._pool, model)
        self._ending = asyncio.Event()
        self._receipts: deque[Call] = deque(maxlen=RECEIPTS_KEPT)
        self._in_force: DocumentFile | None = None
        self._keys_in_force: KeysFile | None = None
        self._models_in_force: DocumentFile | None = None
        self._buckets = LocalBuckets()
        self.pools.auth.bucket_store = self._buckets if keys is not None else None
        self._refused = ""  # why the last reload was rejected
        self._reloads: Counter[str] = Counter(taken=0, refused=0)
        self._load()

    def _load(self) -> None:
        """Apply all files, or none of them if one raises BadInput."""
        listed = read_instances(self._instances, self._engine_key)
        policy = read_policy(self._policy) if self._policy is not None else None
        keys = read_keys(self._keys) if self._keys is not None else None
        models = read_models(self._models, POOL) if self._models is not None else None
        if models is not None:
            version = self.pools.models_version
            version += self._models_in_force is None or models.sha256 != self._models_in_force.sha256
            self.pools.take_models(ModelsValue(version=version, sha256=models.sha256, document=models.document))
            self._models_in_force = models
        if policy is not None and (self._in_force is None or policy.sha256 != self._in_force.sha256):
            version = self._pool.version + 1
            value = PolicyValue(
                pool=POOL, policy=policy.path, version=version, sha256=policy.sha256, document=policy.document
            )
            self._pool.take_policy(value, time.time())
        self._in_force = policy
        of_keys = (keys.trusted, keys.salt_by_key) if keys is not None else (frozenset[str](), False)
        self._watch.follow(listed, Rules(*of_keys, self._removes_billing_line))
        if keys is not None:
            self._keys_in_force = keys
            self.pools.auth.take(keys.value)
            self._buckets.keep_only(key.id for key in keys.value.keys)

    def reload(self) -> None:
        try:
            self._load()
        except BadInput as error:
            self._refused = str(error)
            self._reloads["refused"] += 1
            log.warning("reload refused, the old state stays: %s", error)
            return
        self._refused = ""
        self._reloads["taken"] += 1
        log.info("reloaded: policy version %d, %d instances", self._pool.version, len(self._watch.watched))

    # Start and end

    async def start(self) -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self.reload)
        await self._look(FIRST_LOOK_S)

    def tasks(self) -> list[Awaitable[None]]:
        return [self._every(PROBE_S, self._look), self._every(COLLECT_S, self._collect)]

    def end(self) -> None:
        self._ending.set()

    async def leave(self) -> None:
        asyncio.get_running_loop().remove_signal_handler(signal.SIGHUP)
        self._watch.close()

    async def _every(self, seconds: float, step: Callable[[], Awaitable[None]]) -> None:
        while not self._ending.is_set():
            due = time.monotonic() + seconds
            try:
                await step()
            except Exception:
                log.exception("step failed")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(due - time.monotonic()):
                    await self._ending.wait()

    async def _look(self, patience_s: float = PATIENCE_S) -> None:
        await self._watch.step(patience_s)
        await self.pools.auth.give_back()
        self.looked_at = time.time()
        self._pool.limit_index()

    async def _collect(self) -> None:
        pending = self.recorder.pending
        while pending:
            self._receipts.append(pending.popleft())

    # Pages

    def degraded(self) -> list[str]:
        refused = [f"the last reload was refused: {self._refused}"] if self._refused else []
        return refused + self._pool.troubles(time.time()) + self.pools.troubles()

    def health(self) -> JsonObject:
        policy, keys, models = self._in_force, self._keys_in_force, self._models_in_force
        return {
            "keys_file": {"path": keys.path, "modified_at": keys.modified_at, "keys": keys.count} if keys else None,
            "models_file": {"path": models.path, "modified_at": models.modified_at} if models else None,
            "policy_file": {
                "path": policy.path if policy else None,
                "modified_at": policy.modified_at if policy else None,
                "sha256": policy.sha256 if policy else None,
                "version": self._pool.version,
                "refused": self._refused or None,
            },
            "instances": [self._described(each) for each in self._watch.watched],
        }

    def _described(self, each: Watched) -> JsonObject:
        endpoints = self._pool.endpoints_of(each.listed.id)
        beliefs = [(endpoint.rank, endpoint.belief) for endpoint in endpoints]
        stalled = stalled_why(endpoints) if each.state == "ready" else ""
        _, belief = min(beliefs, key=lambda one: one[1].index == "exact")  # the worst of several ranks
        of_ranks: list[Json] = [{"rank": rank, "index": one.index, "index_reason": one.why} for rank, one in beliefs]
        return {
            "id": each.listed.id,
            "url": each.listed.url,
            "state": "stalled" if stalled else each.state,
            "reason": stalled or each.reason,
            "models": list(each.models) if each.models is not None else None,
            "index": belief.index,
            "index_reason": belief.why,
            **({"ranks": of_ranks} if len(of_ranks) > 1 else {}),
        }

    def metrics(self) -> Iterable[Metric]:
        return of_files(self._reloads)

    def page(self, path: str, client: str) -> bytes | None:
        """Return the last receipts, newest first. Only this host may read them, because they describe other clients'
        requests."""
        if client not in LOOPBACK or not path.startswith(RECEIPTS):
            return None
        calls = [*self._receipts, *self.recorder.pending][::-1]
        if path == RECEIPTS:
            return orjson.dumps({"receipts": [receipt(call, self.id) for call in calls]})
        wanted = path.removeprefix(RECEIPTS + "/")
        same = [call for call in calls if call.id == wanted] or [call for call in calls if name(call) == wanted]
        if not same:
            return None
        before = [call for call in calls[calls.index(same[0]) + 1 :] if call.id == same[0].id]
        return whole(same[0], self.id, before[0] if before else None)

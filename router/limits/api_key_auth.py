"""Checks of a request's API key: the key's identity, its access to the pool, and its remaining limits. A standalone
router without a key file checks nothing. A router with Redis refuses every request until it has read the keys, because
it cannot know which pools require one. After that a request without a key passes unless one is required.
"""

import asyncio
import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

from router.contract.pools import is_ephemeral
from router.contract.redis.api_keys import (
    KEY_ID,
    MARK,
    ApiKeysValue,
    BatchKey,
    Keyring,
    PublishedKey,
    keyring,
    secret_of,
)
from router.contract.redis.budgets import PublishedBudget
from router.http.client import IncomingRequest
from router.http.errors import ErrorResponse
from router.limits.budgets import Budgets
from router.limits.charge import most_output
from router.limits.pool_prices import PoolPrices
from router.limits.token_buckets import RETRY_S, Allowance, Bucket, BucketStore, Grant, TokenRequest, duration
from router.request.call import Call
from router.request.spending import settle

ROUNDING_S = 0.001
NOT_READ = "has not read the API keys yet"
CANNOT_READ = "cannot read the published API keys"
UNREADABLE_RETRY_S = 5  # seconds; an operator has to act first


@dataclass(slots=True)
class Meter:
    key: PublishedKey
    allowances: dict[str, Allowance] = field(default_factory=dict)  # by limited kind
    buckets: dict[str, Bucket] = field(default_factory=dict)  # used while Redis is unreachable
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)  # one request asks Redis on behalf of all that wait
    # Total need, by kind, of all requests that are asking or waiting
    asking: Counter[str] = field(default_factory=Counter)
    closed_until: float = 0.0  # s, loop time; until then, requests that need `closed_for` or more are rejected
    closed_for: dict[str, float] = field(default_factory=dict)
    wait_s: float = 0.0  # waiting time reported by those rejections
    outcomes: Counter[str] = field(default_factory=Counter)
    tokens: int = 0
    used_at: float = 0.0  # s, Unix
    published_use_at: float = 0.0  # last use written to Redis

    def follow(self, key: PublishedKey) -> None:
        self.key = key
        limits = {"requests": key.requests_per_min, "tokens": key.tokens_per_min}
        for kind, limit in limits.items():
            if limit is None:
                self.allowances.pop(kind, None)
                self.buckets.pop(kind, None)
            elif kind in self.allowances:
                self.allowances[kind].limit = limit
            else:
                self.allowances[kind] = Allowance(limit)


class ApiKeyAuth:
    def __init__(self) -> None:
        self.ring: Keyring | None = None  # last readable keys; None: none so far
        self.unreadable = False  # the newest published keys are unreadable
        self.required_everywhere = False  # every request needs a key, whatever the published keys say
        self.exposed = False  # the router listens beyond the loopback interface
        self.bucket_store: BucketStore | None = None  # None: this router has no keys
        self.meters: dict[str, Meter] = {}  # by key id, only keys in use
        self.budgets = Budgets()
        self.prices = PoolPrices()
        self.pool_budgets: Mapping[str, tuple[PublishedBudget, ...]] = {}
        self.limits_keyless = False  # whether `admit` may refuse, or charge, a request without a key

    def take(self, value: ApiKeysValue) -> None:
        self.ring, self.unreadable = keyring(value), False
        known = {key.id: key for key in self.ring.by_hash.values()}
        self.meters = {name: meter for name, meter in self.meters.items() if name in known}
        for name, meter in self.meters.items():
            meter.follow(known[name])
        self.pool_budgets = self.ring.pool_budgets
        self.limits_keyless = bool(self.ring.required or self.ring.required_everywhere or self.pool_budgets)
        of_all = chain(*self.pool_budgets.values(), *(key.budgets for key in known.values()))
        self.budgets.keep_only({budget.id for budget in of_all})

    @property
    def closed(self) -> str:
        """Return why every request is refused; empty once the keys, and the pools that require one, have been read."""
        if self.bucket_store is None or self.ring is not None:
            return ""
        return f"this router {CANNOT_READ if self.unreadable else NOT_READ}"

    def _refusal(self) -> ErrorResponse:
        if self.unreadable:
            return ErrorResponse(503, "keys_unreadable", self.closed, retry_after_s=UNREADABLE_RETRY_S)
        return ErrorResponse(503, "keys_unknown", f"{self.closed}: retry in a moment", retry_after_s=1)

    def warnings(self) -> list[str]:
        required = self.required_everywhere or (self.ring is not None and self.ring.required_everywhere)
        open_ = not required and not self.closed
        if not (self.exposed and open_):
            return []
        return ["it listens beyond this host and needs no API key: require API keys, or put a gateway in front"]

    def identify(self, incoming: IncomingRequest, own: dict[bytes, bytes], now: float) -> PublishedKey | None:
        """Return the request's key, removed from its headers. `now` is Unix time. Raise ErrorResponse for an
        invalid key."""
        if self.bucket_store is None:
            return None
        secret = secret_of(own)
        if secret is None and self.required_everywhere:
            raise _missing("every pool")
        if self.ring is None:
            raise self._refusal()
        if secret is None:
            return None
        key = self.ring.holder(secret) or self.ring.on_behalf(secret, own.get(KEY_ID, b""))
        if key is None:
            raise ErrorResponse(401, "invalid_api_key", "this API key is not valid, or it has been revoked")
        if key.expires_at is not None and now >= key.expires_at:
            raise ErrorResponse(401, "expired_api_key", f"the API key {key.name} has expired")
        incoming.headers = [header for header in incoming.headers if MARK not in header[1]]
        incoming.key_id = key.id
        return key

    def require_known(self, incoming: IncomingRequest, now: float) -> None:
        """Raise ErrorResponse unless the request has a valid key, which stays in the headers for the web process."""
        given = incoming.headers
        if self.identify(incoming, dict(given), now) is None and self.bucket_store is not None:
            raise _missing("the API of files and batches")
        incoming.headers = given

    def require(self, pools: Sequence[str]) -> None:
        """Raise ErrorResponse if all these pools require a key."""
        ring = self.ring
        if ring is None or not (ring.required or ring.required_everywhere):
            return
        if not all(ring.requires(pool, is_ephemeral(pool)) for pool in pools):
            return
        if pools or ring.required_everywhere:
            raise _missing(f"the pool {pools[0]}" if len(pools) == 1 else "every pool")

    def refusal(self, key: PublishedKey | None, pool: str) -> ErrorResponse | None:
        """Return why the request cannot use the pool; None if it can."""
        if key is not None and not key.serves(pool):
            return ErrorResponse(403, "pool_not_allowed", f"the API key {key.name} does not allow the pool {pool}")
        if key is None and self.ring is not None and self.ring.requires(pool, is_ephemeral(pool)):
            return _missing(f"the pool {pool}")
        return None

    async def admit(self, call: Call) -> None:
        """Check access to the pool and charge the limits. Raise ErrorResponse."""
        key = call.key
        if key is None:
            self.require([call.pool.name])
            if self.pool_budgets:
                await self._reserve(call)
            return
        refusal = self.refusal(key, call.pool.name)
        if refusal is not None:
            raise refusal
        asked = call.alias.name if call.alias is not None else call.request.prompt.model
        if not key.may_ask_for(asked):
            message = f"the API key {key.name} does not allow the model {asked[:100]!r}"
            raise ErrorResponse(403, "model_not_allowed", message)
        call.tenant = f"key {key.id}"
        if isinstance(key, BatchKey):
            call.most = _most(call)
            await self._reserve(call)
            return
        meter = self._meter(key)
        meter.used_at = call.at
        if key.budgets or self.pool_budgets:
            await self._reserve(call)
        if meter.allowances:
            call.most = _most(call)
            await self._charge(call, meter, call.most)

    async def moved(self, call: Call) -> None:
        """Move the request's reservation to the budgets of its fallback pool. Raise ErrorResponse."""
        if self.pool_budgets:
            settle(call.reserved, 0, 0.0, 0)
            await self._reserve(call)

    async def _reserve(self, call: Call) -> None:
        """Reserve the request's highest cost in the budgets of key and pool. Raise ErrorResponse."""
        key, pool = call.key, call.pool.name
        of_key, of_pool = key.budgets if key is not None else (), self.pool_budgets.get(pool, ())
        if not (of_key or of_pool):
            return
        most = call.most = _most(call)
        price = self.prices.of(call.pool) if any(budget.unit == "dollars" for budget in (*of_key, *of_pool)) else 0.0
        if key is not None:
            whose = f"the API key {key.name}"
            await self.budgets.reserve(of_key, whose, most, call.at, call.reserved, price=price)
        await self.budgets.reserve(of_pool, f"the pool {pool}", most, call.at, call.reserved, price=price)

    def _meter(self, key: PublishedKey) -> Meter:
        meter = self.meters.get(key.id)
        if meter is None:
            meter = self.meters[key.id] = Meter(key)
            meter.follow(key)
        return meter

    async def _charge(self, call: Call, meter: Meter, most: int) -> None:
        limit, prompt_tokens = meter.key.tokens_per_min, call.prediction.prompt_tokens
        needs = {"requests": 1.0, "tokens": float(most)}
        if limit is not None and prompt_tokens > limit:
            message = f"the prompt has {prompt_tokens:,} tokens; this API key allows {limit:,} a minute"
            raise ErrorResponse(429, "request_too_large_for_key", message, retry_after_s=60)
        if not _covers(meter, needs):
            try:
                await self._cover(meter, needs)
            finally:
                call.limits = _limit_headers(meter)
        for kind, allowance in meter.allowances.items():
            allowance.held -= needs[kind]
        call.charged = needs["tokens"]
        call.limits = _limit_headers(meter)

    async def _cover(self, meter: Meter, needs: dict[str, float]) -> None:
        meter.asking.update(needs)
        try:
            async with meter.lock:
                if not _covers(meter, needs):
                    await self._borrow(meter, needs)
        finally:
            meter.asking.subtract(needs)

    async def _borrow(self, meter: Meter, needs: dict[str, float]) -> None:
        now = asyncio.get_running_loop().time()
        if now < meter.closed_until and all(needs[kind] >= meter.closed_for[kind] for kind in meter.allowances):
            raise _exceeded(meter, meter.wait_s)
        token_requests = []
        for kind, allowance in meter.allowances.items():
            lack, all_of_them = allowance.lack(needs[kind]), allowance.lack(meter.asking[kind])
            token_requests.append(
                TokenRequest(
                    kind, allowance.limit, lack, min(max(all_of_them, lack) + allowance.block, allowance.limit)
                )
            )
        grant = await self.bucket_store.borrow(meter.key.id, token_requests) if self.bucket_store is not None else None
        if grant is None:
            grant = self._alone(meter, token_requests, now)
        for allowance, granted, left in zip(meter.allowances.values(), grant.granted, grant.left, strict=True):
            allowance.lent(granted, left, now)
        if grant.wait_s:
            meter.closed_until, meter.wait_s, meter.closed_for = now + min(grant.wait_s, RETRY_S), grant.wait_s, needs
            raise _exceeded(meter, grant.wait_s)
        # A full bucket covers only part of a debt larger than itself, so later requests wait until the rest is paid.
        owed = max(allowance.owed_s(needs[kind]) for kind, allowance in meter.allowances.items())
        if owed > ROUNDING_S:
            raise _exceeded(meter, owed)

    def _alone(self, meter: Meter, token_requests: list[TokenRequest], now: float) -> Grant:
        """Grant from this router's share of each limit while Redis is unreachable."""
        routers = self.bucket_store.routers if self.bucket_store is not None else 1
        waits = []
        for token_request in token_requests:
            part = token_request.limit / routers
            bucket = meter.buckets.setdefault(token_request.kind, Bucket(part, now))
            waits.append(bucket.take(token_request.needed, part, now))
        wait = max(waits)
        granted = tuple(0.0 if wait else token_request.needed for token_request in token_requests)
        for token_request, waited in zip(token_requests, waits, strict=True):
            if wait and not waited:
                meter.buckets[token_request.kind].level += token_request.needed
        return Grant(wait, granted, tuple(meter.buckets[token_request.kind].level for token_request in token_requests))

    def settle(self, call: Call) -> None:
        """Replace the finished request's estimated charge by its actual use."""
        if call.key is None and not call.reserved:
            return
        used = _used(call)
        self.prices.saw(call.pool.name, used, call.outcome.dollars)
        settle(call.reserved, int(used), call.outcome.dollars, int(_is_charged(call)))
        if call.key is None:
            return
        meter = self.meters.get(call.key.id)
        if meter is None:
            return
        meter.outcomes[call.outcome.label] += 1
        meter.tokens += int(used) if call.outcome.usage is not None or _has_events(call) else 0
        tokens, requests = meter.allowances.get("tokens"), meter.allowances.get("requests")
        if call.charged is not None and tokens is not None:
            tokens.held += call.charged - used
        if call.charged is not None and requests is not None and not call.outcome.attempts:
            requests.held += 1

    async def give_back(self) -> None:
        """Return surplus tokens to the shared bucket; called once a second."""
        if self.bucket_store is None:
            return
        await self.budgets.report(time.time())
        for meter in list(self.meters.values()):
            idle = time.time() - meter.used_at > 1.0
            surplus = {kind: b.held if idle else b.surplus() for kind, b in meter.allowances.items()}
            token_requests = [
                TokenRequest(kind, meter.allowances[kind].limit, 0.0, -rest)
                for kind, rest in surplus.items()
                if rest > 0
            ]
            if not token_requests:
                continue
            for token_request in token_requests:
                meter.allowances[token_request.kind].held += token_request.wanted
            if await self.bucket_store.borrow(meter.key.id, token_requests) is None:
                return  # the bucket refills by itself

    def uses(self) -> dict[str, float]:
        """Return the last use by key id, for keys used since the previous call."""
        found = {name: meter.used_at for name, meter in self.meters.items() if meter.used_at > meter.published_use_at}
        for name, at in found.items():
            self.meters[name].published_use_at = at
        return found


def _covers(meter: Meter, needs: dict[str, float]) -> bool:
    return all(allowance.held >= needs[kind] for kind, allowance in meter.allowances.items())


def _most(call: Call) -> int:
    """Return the most tokens that the request may need."""
    return call.prediction.prompt_tokens + most_output(call.request.prompt.document, call.api_path)


def _is_charged(call: Call) -> bool:
    return bool(call.outcome.attempts) and call.outcome.computed


def _used(call: Call) -> float:
    """Return the used tokens: reported by the engine, else counted from a stream's events, else estimated; zero if no
    engine computed anything."""
    outcome, usage = call.outcome, call.outcome.usage
    if not _is_charged(call):
        return 0.0
    if usage is not None and usage.prompt_tokens is not None:
        return float(usage.prompt_tokens + outcome.output_tokens)
    if call.most is not None and _has_events(call):
        return float(call.prediction.prompt_tokens + outcome.output_tokens)
    return float(call.most or 0)


def _has_events(call: Call) -> bool:
    """Return whether the events of a stream show its tokens; a picker sees none of the answers that it reports."""
    outcome = call.outcome
    return outcome.streamed and (outcome.first_content is not None or outcome.label not in ("ok", "picked"))


def _missing(what: str) -> ErrorResponse:
    message = f"{what} requires an API key: send it as `Authorization: Bearer`, `x-api-key` or `api-key`"
    return ErrorResponse(401, "missing_api_key", message)


def _exceeded(meter: Meter, wait_s: float) -> ErrorResponse:
    after = max(1, math.ceil(wait_s))
    limits = " and ".join(f"{allowance.limit:,} {kind}" for kind, allowance in meter.allowances.items())
    message = f"the API key {meter.key.name} has used up its limit ({limits} a minute): retry in {after} s"
    return ErrorResponse(429, "rate_limit_exceeded", message, retry_after_s=after)


def _limit_headers(meter: Meter) -> bytes:
    now = asyncio.get_running_loop().time()
    lines = []
    for kind, allowance in meter.allowances.items():
        name, left = kind.encode(), allowance.remaining(now)
        lines.append(b"x-ratelimit-limit-%b: %d\r\n" % (name, allowance.limit))
        lines.append(b"x-ratelimit-remaining-%b: %d\r\n" % (name, left))
        lines.append(b"x-ratelimit-reset-%b: %b\r\n" % (name, duration((allowance.limit - left) / allowance.rate)))
    return b"".join(lines)

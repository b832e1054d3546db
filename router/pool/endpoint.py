"""One instance as the router knows it: its address, its load, its health."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast, get_args

from router.contract import staleness
from router.policy.types import InstanceState, Role
from router.prefix.accuracy import Accuracy
from router.prefix.belief import GUESS
from router.upstream.breaker import Breaker
from router.upstream.connection_pool import ConnectionPool

if TYPE_CHECKING:
    from router.kv_events.feed import Feed

SAMPLE_MAX_AGE_S = staleness.SAMPLE_OFFLINE_S  # KV usage of an older sample is ignored


class Endpoint:
    __slots__ = (
        "_view",
        "approximate",
        "belief",
        "block_size",
        "breaker",
        "changes",
        "connector",
        "decodes",
        "engine_id",
        "epoch",
        "events_url",
        "exact",
        "feed",
        "id",
        "kv",
        "kv_tokens",
        "kv_usage",
        "others",
        "prefill_tokens",
        "reason",
        "reports_cached",
        "requests",
        "role",
        "routable",
        "sampled_at",
        "state",
        "tokenizer",
        "upstream",
        "waiting",
    )

    def __init__(self, entry: Mapping[str, Any]) -> None:
        self.id: str = entry["id"]
        self.epoch: int = entry["epoch"]
        self.upstream = ConnectionPool(entry["url"] or "")
        self.breaker = Breaker()
        self.requests = 0  # of this router, in flight
        self.prefill_tokens = 0  # new tokens of those without a first byte yet
        self.decodes = 0  # in flight after their first byte
        self.others = (0, 0, 0)  # the same three counts of the other routers
        self.kv_usage = 0.0
        self.kv_tokens = 0
        self.waiting = 0
        self.sampled_at = 0.0
        self.engine_id = ""  # from its bootstrap server, where its connector has one
        self.reports_cached = False  # its usage has included cached tokens
        self.feed: Feed | None = None  # of its KV events, while they are followed
        self.exact = Accuracy()
        self.approximate = Accuracy()
        self.belief = GUESS
        self.changes: set[str] = set()  # of its pool: ids of changed instances
        self._view: InstanceState | None = None
        self.update(entry)

    def update(self, entry: Mapping[str, Any]) -> None:
        self.routable: bool = bool(entry["routable"])
        self.state: str = str(entry["state"])
        self.reason: str = str(entry.get("reason") or "")
        self.block_size: int = int(entry.get("block_size") or 16)
        self.events_url = str(entry.get("events") or "")
        self.tokenizer = str(entry.get("tokenizer") or "")
        self.kv_tokens = int(entry.get("kv_blocks") or 0) * self.block_size
        self.role = _role(entry.get("role", "both"))
        self.connector: str = str(entry.get("connector") or "")
        self.kv: Mapping[str, Any] = dict(entry.get("kv") or {})  # parameters of its connector
        self.touch()

    def refusal(self, now: float, open_s: float) -> str:
        """Why it cannot take a request; empty when it can. `now` is the loop's time."""
        if not self.routable:
            return f"{self.state}: {self.reason}" if self.reason else self.state
        return self.breaker.refusal(now, open_s)

    def view(self, refused: str) -> InstanceState:
        """As the policy sees it; rebuilt after a change."""
        view = self._view
        if view is None or view.refused != refused:
            requests, prefill_tokens, decodes = self.others
            view = self._view = InstanceState(
                id=self.id,
                running=self.requests + requests,
                waiting=self.waiting,
                decodes=self.decodes + decodes,
                prefill_tokens=self.prefill_tokens + prefill_tokens,
                kv_usage=self.kv_usage,
                kv_tokens=self.kv_tokens,
                block_size=self.block_size,
                refused=refused,
                role=self.role,
                connector=self.connector,
            )
        return view

    def touch(self) -> None:
        """Mark a change that the policy can see."""
        self._view = None
        self.changes.add(self.id)

    def take_sample(self, sample: dict[str, Any], now: float) -> None:
        """Take scraped metrics, unless they are stale or of an earlier epoch. `now` is Unix time."""
        at = float(sample["at"])
        if sample.get("epoch") not in (None, self.epoch) or now - at > SAMPLE_MAX_AGE_S:
            self.kv_usage, self.waiting = 0.0, 0
        else:
            self.kv_usage = round(float(sample.get("kv_usage") or 0.0), 6)  # receipts write it unrounded
            self.waiting = int(sample.get("waiting") or 0)
            if not self.kv_tokens:
                self.kv_tokens = int(sample.get("kv_blocks") or 0) * int(sample.get("block_size") or self.block_size)
        self.sampled_at = at
        self.touch()

    def take_others(self, load: tuple[int, int, int]) -> None:
        if load != self.others:
            self.others = load
            self.touch()

    def lease(self, tokens: int) -> "Lease":
        """Count a request with this many new tokens as sent here."""
        self.requests += 1
        self.prefill_tokens += tokens
        self.touch()
        return Lease(self, tokens)


def _role(given: object) -> Role:
    """Raises ValueError, so the whole fleet is unreadable: decoding on a prefill instance would be worse."""
    for role in get_args(Role):
        if given == role:
            return cast(Role, role)
    raise ValueError(f"role: {given!r} is none of {', '.join(get_args(Role))}")


class Lease:
    """One request's share of an instance's load, from sending to its end."""

    __slots__ = ("_decoding", "_endpoint", "_tokens", "alone")

    def __init__(self, endpoint: Endpoint, tokens: int) -> None:
        self._endpoint: Endpoint | None = endpoint
        self._tokens = tokens
        self._decoding = False
        self.alone = endpoint.requests == 1  # no other request of this router, up to the first byte

    def charge(self, tokens: int) -> None:
        """Add new tokens: the prompt is computed here after all."""
        endpoint = self._endpoint
        if endpoint is not None and not self._decoding:
            self._tokens += tokens
            endpoint.prefill_tokens += tokens
            endpoint.touch()

    def first_byte(self) -> None:
        """The prompt has been computed."""
        endpoint = self._endpoint
        if endpoint is not None and not self._decoding:
            self._decoding = True
            self.alone = self.alone and endpoint.requests == 1
            endpoint.prefill_tokens -= self._tokens
            endpoint.decodes += 1
            endpoint.touch()

    def end(self) -> None:
        endpoint, self._endpoint = self._endpoint, None
        if endpoint is None:
            return
        endpoint.requests -= 1
        if self._decoding:
            endpoint.decodes -= 1
        else:
            endpoint.prefill_tokens -= self._tokens
        endpoint.touch()

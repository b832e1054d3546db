"""The split of a pool's requests between the live version and a delivery's candidate. Pure: time is an argument.

    off ── watched ──► on ── its watch expired ──► unwatched
     └──────────────────┴─────── stopped ────────► tripped

The last two states, and `unreadable` (this router cannot read the candidate), end only with the next generation. In
every state but `on`, the live version serves all requests. The pool keeps the state: both versions share sessions,
their homes and the KV caches, so nothing is lost when the split ends.
"""

from dataclasses import dataclass

import xxhash

from router.contract.redis.codec import Unreadable
from router.contract.redis.delivery import CELLS, Arm
from router.contract.redis.published import CandidateVersion, Split, SplitRollout
from router.contract.values.json_value import JsonObject
from router.contract.values.problem import InvalidInput
from router.policy.schema import document
from router.policy.schema.parameters import belongs_to_pool
from router.policy.types import ParsedPolicy

SHARES = 2**32


@dataclass(slots=True)
class Assignment:
    """The arm of a request, kept until the request ends. Only the tallies use the fields after `arm`."""

    delivery: int
    generation: int
    arm: Arm
    cell: int
    key: int  # hash of the session, else of the request
    has_session: bool
    request_class: str = ""  # class by the live version's thresholds; empty before the first decision
    log_tokens: float = 0.0  # ln of the prompt's number of tokens
    counted: bool = False
    considered: bool = False  # True after it was considered for a shadow decision


def hashed(salt: str, name: str) -> int:
    """Return a 64-bit hash. The upper half decides the arm, the lowest six bits the cell, independently."""
    return xxhash.xxh64_intdigest((salt + name).encode("utf-8", "surrogatepass"))


def is_candidate(key: int, share: float) -> bool:
    """Return whether the candidate serves this key. If the share grows, no session moves back to the live version."""
    return (key >> 32) < share * SHARES


def cell_of(key: int) -> int:
    return key % CELLS


class SplitState:
    """One generation of a delivery in this router. Times are in seconds on a monotonic clock."""

    __slots__ = ("_state", "_watched_until", "candidate", "counts_from", "rollout", "why")

    def __init__(self, rollout: SplitRollout, candidate: ParsedPolicy | None) -> None:
        """`candidate` is None if it cannot be read."""
        self.rollout = rollout
        self.candidate = candidate
        self._state: Split = "unreadable" if candidate is None else "off"
        self._watched_until = float("-inf")
        self.counts_from = float("inf")  # requests that arrive from this time on are counted
        self.why = ""  # why the delivery was stopped

    @property
    def identity(self) -> tuple[int, int]:
        return self.rollout.delivery, self.rollout.generation

    def follow(self, before: "SplitState", now: float) -> None:
        """Take over the state of `before`. A newer generation starts afresh and keeps only the watch."""
        delivery, generation = before.identity
        if delivery != self.rollout.delivery:
            return
        if generation >= self.rollout.generation:
            self._state, self._watched_until = before._state, before._watched_until
            self.counts_from, self.why = before.counts_from, before.why
        elif before.state(now) == "on":
            self.watched(delivery, before._watched_until, now)

    def state(self, now: float) -> Split:
        if self._state == "on" and now >= self._watched_until:
            self._state = "unwatched"
        return self._state

    def watched(self, delivery: int, until: float, now: float) -> None:
        """Extend the watch: the judge watches the delivery until `until`."""
        state = self.state(now)
        if delivery != self.rollout.delivery or until <= now or state not in ("off", "on"):
            return
        if state == "off":
            self._state, self.counts_from = "on", now + self.rollout.warmup_s
        self._watched_until = max(self._watched_until, until)

    def stopped(self, delivery: int, why: str) -> bool:
        """Stop this delivery if `delivery` is its number or 0 (any). Return True unless it was already stopped."""
        if delivery not in (0, self.rollout.delivery) or self._state in ("tripped", "unreadable"):
            return False
        self._state, self.why = "tripped", why
        return True

    def assign(self, session: str | None, request_id: str, now: float) -> Assignment | None:
        """Return the arm of a request; None while the live version serves all requests."""
        if self.state(now) != "on":
            return None
        rollout = self.rollout
        key = hashed(rollout.salt, session or request_id)
        arm: Arm = "candidate" if is_candidate(key, rollout.share) else "control"
        return Assignment(rollout.delivery, rollout.generation, arm, cell_of(key), key, session is not None)

    def policy_of(self, assigned: Assignment, now: float) -> ParsedPolicy | None:
        """Return the candidate if it decides this request, which may have been assigned in an earlier generation."""
        mine = assigned.arm == "candidate" and assigned.delivery == self.rollout.delivery
        # The request was queued while the delivery stopped
        mine = mine and is_candidate(assigned.key, self.rollout.share)
        return self.candidate if mine and self.state(now) == "on" else None

    def shadow_of(self, assigned: Assignment, now: float) -> ParsedPolicy | None:
        """Return the candidate for a shadow decision on a request assigned in this generation."""
        is_present = (assigned.delivery, assigned.generation) == self.identity
        return self.candidate if is_present and self.state(now) == "on" else None

    def trouble(self, now: float) -> str:
        """Return why a published split is not in effect; empty if it is."""
        state, delivery = self.state(now), self.rollout.delivery
        if state == "unwatched":
            return f"delivery {delivery} has not been watched for too long: the live version serves all requests"
        if state == "tripped":
            return f"delivery {delivery} was stopped, the live version serves all requests: {self.why}"
        return ""


def read_version(version: int, sha256: str, made: JsonObject) -> ParsedPolicy:
    """Parse the policy of a published document. Raise Unreadable."""
    try:
        policy = document.parse(made)
    except InvalidInput as error:
        raise Unreadable(f"version {version}: {error}") from None
    if document.sha256(made) != sha256:
        raise Unreadable(f"version {version}: the document does not match its sha256")
    return policy


def read_candidate(candidate: CandidateVersion, live: ParsedPolicy) -> ParsedPolicy:
    """Parse the candidate, with the live version's pool parameters. Raise Unreadable."""
    try:
        policy = read_version(candidate.version, candidate.sha256, candidate.document)
    except Unreadable as error:
        raise Unreadable(f"candidate {error}") from None
    of_the_pool = {path: value for path, value in live.items() if belongs_to_pool(path)}
    return ParsedPolicy({**policy, **of_the_pool})

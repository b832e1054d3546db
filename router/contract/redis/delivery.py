"""The counts that routers keep during a delivery, and the values that stop it or keep it going. Pure."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Literal

from msgspec import Struct

from router.contract.redis.codec import RedisValue

Arm = Literal["candidate", "control"]
LEAST_MS = 0.001
CELLS = 64  # buckets of sessions by hash, the same in both arms


class Moments(Struct, frozen=True, array_like=True):
    """Sums over requests: y is ln ms, x is ln prompt tokens (estimated on arrival, at least 1)."""

    n: int = 0
    y: float = 0.0
    yy: float = 0.0
    x: float = 0.0
    xx: float = 0.0
    xy: float = 0.0


class MomentSums:
    """Moments with running sums, used by routers and the twin."""

    __slots__ = ("n", "x", "xx", "xy", "y", "yy")

    def __init__(self) -> None:
        self.n = 0
        self.y = self.yy = self.x = self.xx = self.xy = 0.0

    def add(self, ms: float, log_tokens: float) -> None:
        y = math.log(ms if ms > LEAST_MS else LEAST_MS)
        self.n += 1
        self.y += y
        self.yy += y * y
        self.x += log_tokens
        self.xx += log_tokens * log_tokens
        self.xy += log_tokens * y

    def read(self) -> Moments:
        return Moments(self.n, self.y, self.yy, self.x, self.xx, self.xy)


class CellTally(Struct, frozen=True, array_like=True):
    """One arm's requests of one class in one cell. Each count only grows during a generation."""

    n: int = 0  # requests, counted when they are decided
    ttft: Moments = Moments()  # streamed answers whose first byte arrived
    tpot: Moments = Moments()  # streamed answers that sent at least two tokens
    errors: int = 0  # sessions with an error; a request without a session counts as one
    refused: int = 0  # sessions with a refusal
    slow: int = 0  # slow requests among `streamed`, with or without a first byte
    cached_tokens: int = 0  # cached tokens reported by engines
    prompt_tokens: int = 0  # prompt tokens of the same answers
    sessions: int = 0  # counted in the class and cell of their first request
    streamed: int = 0  # streamed requests; only they can count as slow
    ended: int = 0  # ended requests, including those counted in the next two fields
    failed: int = 0  # requests that ended in an error
    turned_away: int = 0  # requests that ended in a refusal
    client_errors: int = 0  # requests among `ended` with a client error; older routers count them as failed

    @property
    def judged(self) -> int:
        """Return the number of ended requests that are evidence about their server."""
        return self.ended - self.client_errors


@dataclass(slots=True)
class CellCounts:
    """A CellTally with running counts, used by routers and the twin."""

    n: int = 0
    ttft: MomentSums = field(default_factory=MomentSums)
    tpot: MomentSums = field(default_factory=MomentSums)
    errors: int = 0
    refused: int = 0
    slow: int = 0
    cached_tokens: int = 0
    prompt_tokens: int = 0
    sessions: int = 0
    streamed: int = 0
    ended: int = 0
    failed: int = 0
    turned_away: int = 0
    client_errors: int = 0

    def read(self, moments: Callable[[MomentSums], Moments] = MomentSums.read) -> CellTally:
        n, ttft, tpot, *counts = _TALLIED(self)
        return CellTally(n, moments(ttft), moments(tpot), *counts)


_TALLIED = attrgetter(*CellTally.__struct_fields__)


class ShadowTally(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Shadow decisions, made again by the candidate."""

    n: int = 0
    changed: int = 0
    refused_more: int = 0  # requests that only the candidate refuses
    raised: int = 0
    to: dict[str, int] = {}  # the candidate's decisions by instance, the most frequent ones
    # The live version's decisions by instance: for instances in `to` and for its own most frequent ones
    live_to: dict[str, int] = {}
    sample: float = 0.0  # current share of requests, 0–1; lowered while shadowing costs too much time
    cpu_s: float = 0.0


class DeliveryTally(RedisValue, tag=1, frozen=True, kw_only=True):
    """weir:delivery:<id>, a field per pool, router start and generation, written as a whole every 5 s, at most 60 KB.
    Some earlier generations are kept, as their answers are still ending.
    """

    delivery: int
    generation: int
    pool: str
    router: str
    life: str
    at: float  # Unix s, for people; readers judge the age by `written`
    written: int  # 1, 2, 3, …; stops growing once the router stops writing
    cells: dict[Arm, dict[str, dict[int, CellTally]]] = {}  # by arm, class and cell; empty cells are left out
    shadow: ShadowTally = ShadowTally()


class StopValue(RedisValue, tag=1, frozen=True, kw_only=True):
    """weir:stop:<pool>, expires; announced on weir:changed. Every router then serves the live version at once."""

    delivery: int = 0  # 0: any delivery
    why: str
    by: str  # origin of the stop: router, person or judge
    request: str = ""  # id of the request that the candidate could not decide
    at: float  # Unix s


class WatchValue(RedisValue, tag=1, frozen=True, kw_only=True):
    """weir:watch:<pool>, renewed by the judge, expires. Routers split requests for its TTL and no longer."""

    delivery: int
    generation: int


class DeliveryLine(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One delivery as a line of text for Live and the wall."""

    delivery: int
    policy: str
    pools: tuple[str, ...]
    base: str  # v43
    candidate: str  # v44
    state: str
    word: str  # name of the state
    step: str  # canary 25 %
    figure: str = ""  # heavy × 1.04 (0.97–1.12)
    next_at: float | None = None  # Unix s, when the step or the bake ends
    since: float  # Unix s, when the state began
    why: str = ""
    ended_by: str = ""  # person who aborted or rolled back; empty: a guard, a router or a timer


class DeliveryLines(RedisValue, tag=1, frozen=True, kw_only=True):
    """weir:deliveries, written by Celery, expires: all open deliveries and those that have ended recently."""

    at: float  # Unix s
    lines: tuple[DeliveryLine, ...] = ()

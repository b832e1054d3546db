"""The recent traffic of a pool from its receipts: requests and sessions of each class. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from controlplane.traffic.deliveries.judge.statistics.comparisons import LEAST_CELLS, effective_cells
from router.contract.redis.delivery import CELLS
from router.contract.redis.receipt import Receipt

RECENT_S = 3600.0  # period before the newest receipt
LEAST_S = 10.0  # shortest span of receipts from which a rate is computed
# Number of equal sessions that give 8 effective cells of 64 on average: 1/cells = 1/sessions + (1 − 1/sessions)/64.
LEAST_SESSIONS = LEAST_CELLS * (CELLS - 1) // (CELLS - LEAST_CELLS)


@dataclass(frozen=True, slots=True)
class ClassTraffic:
    """Requests of one class that a comparison can use, per second."""

    requests: float = 0.0
    sessions: float = 0.0  # effective: the number of equal sessions with the same weight


@dataclass(frozen=True, slots=True)
class RecentTraffic:
    requests: int = 0
    seconds: float = 0.0
    until: float = 0.0  # Unix s of the newest receipt
    shares: Mapping[str, float] = field(default_factory=dict)  # share of the requests by class, 0–1
    classes: Mapping[tuple[str, str], ClassTraffic] = field(default_factory=dict)  # by metric and class

    def of(self, metric: str, name: str) -> ClassTraffic:
        return self.classes.get((metric, name), ClassTraffic())

    @property
    def rate(self) -> float:
        """Return the requests per second."""
        return self.requests / self.seconds if self.seconds else 0.0


def traffic_of(pool: str, receipts: Iterable[Receipt]) -> RecentTraffic | None:
    """Return the traffic of a pool from the receipts of all pools, the newest and oldest of which bound the period.
    None without receipts of this pool."""
    every = list(receipts)
    until = max((each.at for each in every), default=0.0)
    recent = [each for each in every if each.at > until - RECENT_S]
    mine = [each for each in recent if each.pool == pool and each.request_class]
    seconds = until - min((each.at for each in recent), default=until)
    if not mine or seconds < LEAST_S:
        return None
    counts = Counter(each.request_class or "" for each in mine)
    classes = {
        (metric, name): _class_traffic([each for each in mine if each.request_class == name], metric, seconds)
        for metric in ("ttft", "tpot")
        for name in counts
    }
    shares = {name: count / len(mine) for name, count in counts.items()}
    return RecentTraffic(len(mine), seconds, max(each.at for each in mine), shares, classes)


def _class_traffic(receipts: Sequence[Receipt], metric: str, seconds: float) -> ClassTraffic:
    """Count streamed answers only, because other answers have neither TTFT nor TPOT."""
    used = [each for each in receipts if getattr(each, f"{metric}_ms") is not None]
    sessions = Counter(each.session or each.request_id for each in used)
    return ClassTraffic(len(used) / seconds, effective_cells(list(sessions.values())) / seconds)

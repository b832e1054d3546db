"""One engine that serves the load in order of arrival, one prefill at a time; decoding is left out.
Computed KV is written to the tier. *naive* writes follow each prefill immediately, and a load that runs beside them
shares the drives. *slack* writes wait for times without loads: while the GPU computes longer than the drives read, and
for a share of the time between prefills, in which the engine decodes. Blocks that wait to be written are pinned; beyond
a limit, the next prefill waits for them, at the drives' full rate.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from fleet.engine.tiers.devices import BACKLOG_SHARE, NAIVE_SHARE, SLACK_SHARE, TierDevice
from fleet.engine.tiers.loading import lost_to_writes_s, store_s
from fleet.systems.tiers.serving import PrefillJob, TieredEngine

BISECTIONS = 10


@dataclass(frozen=True, slots=True)
class Contention:
    read_share: float = NAIVE_SHARE  # share of its speed that a load keeps beside naive writes [P 6]
    decode_share: float = SLACK_SHARE  # share of the time between prefills in which slack writes run [a]
    backlog_share: float = BACKLOG_SHARE  # share of the KV pool that may wait to be written [a]


@dataclass(frozen=True, slots=True)
class Served:
    """Means over the requests of a run."""

    ttft_s: float
    queue_s: float  # wait for earlier prefills
    writes_s: float  # wait for writes, or delay caused by them
    exposed_s: float  # part of loading that adds to the time
    compute_s: float
    busy_share: float  # share of the time, 0–1; above 1 is not sustained
    backlog_bytes: float  # largest number of bytes that waited to be written


class _Writes:
    """Bytes in transit to the tier, in seconds of writing."""

    def __init__(self, engine: TieredEngine, device: TierDevice | None, contention: Contention) -> None:
        self.kind = device.contention if device else "none"
        self.token_s = store_s(device, engine.layout, 1) if device else 0.0
        self.contention = contention
        self.limit_s = contention.backlog_share * engine.hbm_tokens * self.token_s
        self.backlog_s = self.most_s = 0.0
        self.until = 0.0  # end of the last naive write

    def delay_s(self, start: float, idle_s: float, job: PrefillJob) -> float:
        """Return the delay of a prefill that starts now, `idle_s` after the last one."""
        if self.kind == "naive":
            return lost_to_writes_s(job.load_s, self.until - start, self.contention.read_share)
        self.backlog_s = max(0.0, self.backlog_s - idle_s * self.contention.decode_share)
        if self.kind == "none" or self.backlog_s <= self.limit_s:
            return 0.0
        waited = self.backlog_s - self.limit_s  # nothing is loaded in the meantime
        self.backlog_s = self.limit_s
        return waited

    def computed(self, end: float, job: PrefillJob) -> None:
        if self.kind == "none":
            return
        written_s = job.new * self.token_s
        if self.kind == "naive":
            self.until = max(self.until, end) + written_s
            self.most_s = max(self.most_s, self.until - end)
        else:
            self.backlog_s = max(0.0, self.backlog_s - job.slack_s) + written_s
            self.most_s = max(self.most_s, self.backlog_s)


def serve(
    engine: TieredEngine,
    device: TierDevice | None,
    work: Sequence[PrefillJob],
    gaps: Sequence[float],
    rate: float,
    contention: Contention = Contention(),
) -> Served:
    """Simulate the work. `gaps` are the times between arrivals at one request per second."""
    writes = _Writes(engine, device, contention)
    api_s, tokenize_s, is_written = engine.api_s, engine.tokenize_s, writes.kind != "none"
    delay = now = free = ttft = queued = written = exposed = computed = 0.0
    for job, gap in zip(work, gaps, strict=True):
        prompt, _, _, _, compute_s, exposed_s, _, _, _ = job
        now += gap / rate
        ready = now + api_s + tokenize_s * prompt
        start = ready if ready >= free else free
        if is_written:
            delay = writes.delay_s(start, start - free, job)
        free = start + delay + (compute_s + exposed_s)
        if is_written:
            writes.computed(free, job)
        ttft += free - now
        queued += start - ready
        written += delay
        exposed += exposed_s
        computed += compute_s
    n = len(work)
    busy = (written + exposed + computed) / max(now, 1e-9)
    backlog = writes.most_s * device.write_bytes_per_s if device else 0.0
    return Served(ttft / n, queued / n, written / n, exposed / n, computed / n, busy, backlog)


def middle(runs: Sequence[Served]) -> Served:
    """Return the median of several runs, field by field, as single runs differ by half."""
    return Served(*(median(getattr(run, name) for run in runs) for name in Served.__slots__))


def highest_rate(ttft_s: Callable[[float], float], limit_s: float, highest: float) -> float:
    """Return the requests per second up to which the mean TTFT stays within its limit, by bisection; 0 if it never
    does."""
    low, high = 0.0, highest
    for _ in range(BISECTIONS):
        rate = (low + high) / 2
        low, high = (rate, high) if ttft_s(rate) <= limit_s else (low, rate)
    return low

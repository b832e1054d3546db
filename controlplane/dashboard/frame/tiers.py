"""KV tiers below the GPU, as rows of a table: of one instance, or of all instances of a pool together. Pure."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from controlplane.dashboard.templatetags.figures import significant, size
from fleet.counted import percent
from fleet.engine.tiers.sizes import drive_writes_per_day
from router.contract.redis.sample import InstanceSample, TierSample


@dataclass(frozen=True, slots=True)
class TierRow:
    """None where no instance reports a number."""

    name: str
    used_bytes: float | None
    capacity_bytes: float | None
    free_bytes: float | None  # of its capacity, else of the fullest disk
    read_bytes_per_s: float | None  # over the last minute
    written_bytes_per_s: float | None
    read_speed: float | None  # bytes per second of reading, since the start
    write_speed: float | None
    hits: float | None  # chunks, objects or tokens, since the start
    queries: float | None
    backlog: float | None  # writes under way
    backlog_bytes: float | None
    failed: float | None

    @property
    def writes_per_day(self) -> float | None:
        """How often a day a drive is written over at the rate of the last minute."""
        if self.name != "disk" or not self.capacity_bytes or self.written_bytes_per_s is None:
            return None
        return drive_writes_per_day(self.written_bytes_per_s, self.capacity_bytes)

    @property
    def hit_share(self) -> float | None:
        return self.hits / self.queries if self.hits is not None and self.queries else None


def tier_rows(samples: Iterable[InstanceSample | None]) -> list[TierRow]:
    found: dict[str, list[TierSample]] = {}
    disks = []
    for sample in samples:
        if sample is not None:
            disks += [sample.disk[0]] if sample.disk is not None else []
            for name, tier in sample.kv_tiers.items():
                found.setdefault(name, []).append(tier)
    return [_row(name, tiers, min(disks, default=None)) for name, tiers in found.items()]


def in_words(rows: Iterable[TierRow]) -> str:
    """In one line, for Live and the wall; empty without tiers."""
    return "; ".join(f"{row.name} {', '.join(parts)}" for row in rows if (parts := [*_parts(row)]))


def _parts(row: TierRow) -> Iterator[str]:
    if row.hit_share is not None:
        yield f"{percent(row.hit_share)} hits"
    if row.read_bytes_per_s is not None:
        speed = f" at {size(row.read_speed, '/s')}" if row.read_speed else ""
        yield f"{size(row.read_bytes_per_s, '/s')} read{speed}"
    if row.written_bytes_per_s is not None:
        yield f"{size(row.written_bytes_per_s, '/s')} written"
    if row.backlog_bytes:
        yield f"{size(row.backlog_bytes)} to be written"
    if row.writes_per_day:
        yield f"{significant(row.writes_per_day)} drive writes a day"


def _row(name: str, tiers: list[TierSample], disk_free: int | None) -> TierRow:
    total = {field: _sum(getattr(tier, field) for tier in tiers) for field in TierSample.__struct_fields__}
    whole = TierSample(**total)
    free: float | None = disk_free if name == "disk" else None
    if whole.capacity_bytes and whole.used_bytes is not None:
        free = max(0.0, whole.capacity_bytes - whole.used_bytes)
    return TierRow(
        name=name,
        used_bytes=whole.used_bytes,
        capacity_bytes=whole.capacity_bytes or None,
        free_bytes=free,
        read_bytes_per_s=whole.read_bytes_per_s,
        written_bytes_per_s=whole.written_bytes_per_s,
        read_speed=whole.read_speed,
        write_speed=whole.write_speed,
        hits=whole.hits_total,
        queries=whole.queries_total,
        backlog=whole.backlog,
        backlog_bytes=whole.backlog_bytes,
        failed=whole.failed_total,
    )


def _sum(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None

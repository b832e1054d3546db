"""KV tiers below the GPU as rows of a table, for one instance or for all instances of a pool together. Pure."""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from msgspec.structs import replace

from controlplane.common.figures import significant, size
from fleet.counted import percent
from fleet.engine.tiers.sizes import drive_writes_per_day
from router.contract.redis.sample import InstanceSample, TierSample
from router.contract.values.reading import read_value


@dataclass(frozen=True, slots=True)
class TierRow:
    name: str
    total: TierSample  # sum over the instances; None if none reports a number
    free_bytes: float | None = None  # free part of the capacity, or of the fullest disk

    @property
    def writes_per_day(self) -> float | None:
        """Return the number of times per day that a drive would be overwritten at the rate of the last minute."""
        written, capacity = self.total.written_bytes_per_s, self.total.capacity_bytes
        return (
            drive_writes_per_day(written, capacity)
            if self.name == "disk" and capacity and written is not None
            else None
        )

    @property
    def hit_share(self) -> float | None:
        hits, queries = self.total.hits_total, self.total.queries_total
        return hits / queries if hits is not None and queries else None


def tier_rows(samples: Iterable[InstanceSample | None]) -> list[TierRow]:
    """Sum the tiers by name; a tier shared by several engines counts once."""
    found: dict[str, dict[str, TierSample]] = {}
    disks = []
    for sample in samples:
        if sample is not None:
            disks += [sample.disk[0]] if sample.disk is not None else []
            for name, tier in sample.kv_tiers.items():
                found.setdefault(name, {}).setdefault(tier.page or sample.id, tier)
    return [_row(name, tiers.values(), min(disks, default=None)) for name, tiers in found.items()]


def in_words(rows: Iterable[TierRow]) -> str:
    """Describe the tiers in one line, for Live and the wall; empty without tiers."""
    return "; ".join(f"{row.name} {', '.join(parts)}" for row in rows if (parts := [*_parts(row)]))


def _parts(row: TierRow) -> Iterator[str]:
    total = row.total
    if row.hit_share is not None:
        yield f"{percent(row.hit_share)} hits"
    if total.read_bytes_per_s is not None:
        speed = f" at {size(total.read_speed, '/s')}" if total.read_speed else ""
        yield f"{size(total.read_bytes_per_s, '/s')} read{speed}"
    if total.written_bytes_per_s is not None:
        yield f"{size(total.written_bytes_per_s, '/s')} written"
    if total.backlog_bytes:
        yield f"{size(total.backlog_bytes)} to be written"
    if row.writes_per_day:
        yield f"{significant(row.writes_per_day)} drive writes a day"


def _row(name: str, tiers: Collection[TierSample], disk_free: int | None) -> TierRow:
    figures = (field for field in TierSample.__struct_fields__ if field != "page")
    total = read_value({field: _sum(getattr(tier, field) for tier in tiers) for field in figures}, TierSample)
    free: float | None = disk_free if name == "disk" else None
    if total.capacity_bytes and total.used_bytes is not None:
        free = max(0.0, total.capacity_bytes - total.used_bytes)
    return TierRow(name, replace(total, capacity_bytes=total.capacity_bytes or None), free)


def _sum(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None

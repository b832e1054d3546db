"""The bill: GPU time that the pools' instances held, used or not. Idle is the bill less the charges."""

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta

from django.db import transaction

from controlplane.traffic.use.ledger import Entry, add
from controlplane.traffic.use.models import HELD, HeldUntil
from fleet.control import publish
from fleet.control.publish import HeldGpus
from router.contract.redis.use import HOUR_S, pool_in_use

LONGEST = timedelta(hours=12)  # longest period counted at once: without a control worker nobody knows what ran
NEW = timedelta(minutes=1)  # period counted for a pool on its first count, as it may be older than this ledger


@transaction.atomic
def count(now: datetime) -> None:
    """Count from the last call to now. An instance that started while no control worker ran counts from its start."""
    until = dict(HeldUntil.objects.values_list("pool", "at"))
    by_pool: dict[str, list[HeldGpus]] = {}
    for one in publish.held_gpus():
        by_pool.setdefault(one.pool, []).append(one)
    for pool, instances in by_pool.items():
        begin = max(until.get(pool, now - NEW), now - LONGEST)
        for hour, gpu_s, dollars in _by_hour(instances, begin, now):
            counts = {"gpu_us": round(gpu_s * 1e6), "micro_dollars": round(dollars * 1e6)}
            add(hour, HOUR_S, Entry(HELD, pool_in_use(pool)), HELD, counts)
        HeldUntil.objects.update_or_create(pool=pool, defaults={"at": max(begin, now)})
    HeldUntil.objects.filter(at__lt=now - timedelta(days=1)).exclude(pool__in=by_pool).delete()


def _by_hour(instances: Iterable[HeldGpus], begin: datetime, now: datetime) -> Iterator[tuple[datetime, float, float]]:
    """Yield (hour, GPU-seconds, dollars)."""
    for one in instances:
        at = max(begin, one.since)
        while at < now:
            hour = at.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
            end = min(now, hour + timedelta(seconds=HOUR_S))
            seconds = (end - at).total_seconds()
            yield hour, seconds * one.gpus, seconds * one.dollars_per_hour / 3600
            at = end

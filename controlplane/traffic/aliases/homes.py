"""LoRA adapters and the instances that hold them, for pages and REST."""

from collections import defaultdict
from dataclasses import dataclass

from django.db.models import F

from controlplane.traffic.aliases import selectors
from fleet.models import AdapterDemand, AdapterHome
from router.contract import models


@dataclass(frozen=True, slots=True)
class Home:
    instance: str
    state: str
    text: str


@dataclass(frozen=True, slots=True)
class PlacedAdapter:
    pool: str
    name: str
    source: str
    replicas: int | None  # None if no name uses the adapter
    extra: int
    homes: tuple[Home, ...]

    @property
    def loaded(self) -> int:
        return sum(home.state == AdapterHome.State.LOADED for home in self.homes)

    @property
    def wanted(self) -> int:
        return (self.replicas or 0) + self.extra

    @property
    def state(self) -> str:
        """Return the state for pages; static/css/status.css has a shape for each."""
        if self.replicas is None:
            return "unused"
        if self.loaded >= (self.wanted if self.source else 1):
            return "ready"
        return "degraded" if self.loaded else "failed" if any(h.state == "failed" for h in self.homes) else "loading"


def adapters() -> list[PlacedAdapter]:
    named = models.adapters_of(selectors.live().aliases)
    rows = AdapterHome.objects.filter(epoch=F("instance__epoch")).select_related("instance__pool")
    found: defaultdict[tuple[str, str], list[AdapterHome]] = defaultdict(list)
    for row in rows.order_by("instance__name"):
        found[row.instance.pool.name, row.name].append(row)
    extra = {(one.pool.name, one.name): one.extra for one in AdapterDemand.objects.select_related("pool")}
    placed = []
    for key in sorted(named.keys() | found.keys()):
        adapter, held = named.get(key), found[key]
        homes = tuple(Home(row.instance.name, row.state, row.text) for row in held)
        source = adapter.source if adapter is not None else next((row.source for row in held), "")
        replicas = adapter.replicas if adapter is not None else None
        placed.append(PlacedAdapter(*key, source, replicas, extra.get(key, 0), homes))
    return placed

"""Each endpoint has the sum of the other routers' loads, whether they send changes or totals."""

import random
from collections.abc import Iterator

import pytest

from router.contract.redis.published import DataParallel, FleetValue
from router.contract.redis.router_status import NO_LOAD, Load, RouterLoad, RouterLoadChanges, added
from router.contract.redis.staleness import PEER_GONE_S
from router.pool.endpoint import Endpoint
from router.serving.pools import Pools
from router.sync.peer_loads import PeerLoads
from router.sync.peers import _changes
from router.tests.conftest import instance

SIZE = 12


@pytest.fixture
def pools() -> Pools:
    made = Pools()
    for number in range(2):
        engines = tuple(
            instance(f"pool-{number}-{each}", "http://127.0.0.1:1", dp=DataParallel(2 if each % 3 == 0 else 1))
            for each in range(SIZE)
        )
        made.get_or_add(f"pool-{number}").take_fleet(
            FleetValue(pool=f"pool-{number}", model="m", at=1.0, instances=engines)
        )
    return made


def endpoints(pools: Pools) -> Iterator[Endpoint]:
    return (endpoint for pool in pools.all() for endpoint in pool.endpoints.values())


class Router:
    """Another router with everything that it has in flight."""

    def __init__(self, number: int, pools: Pools, draw: random.Random) -> None:
        self.id, self.pools, self.draw = f"router-{number}", pools, draw
        self.whole: dict[str, Load] = {}
        self.by_rank: dict[str, Load] = {}
        self.pulls: dict[str, int] = {}
        self.told: tuple[dict[str, Load], dict[str, Load], dict[str, int]] = {}, {}, {}

    def change(self) -> None:
        self.by_rank, self.whole = {}, {}
        self.pulls = {endpoint.id: 2 for endpoint in endpoints(self.pools) if self.draw.random() < 0.2}
        for endpoint in endpoints(self.pools):
            requests = self.draw.choice([0, 0, 1, 5])
            load = (requests, requests * 700, requests // 2)
            if requests and endpoint.rank is not None:
                self.by_rank[endpoint.id] = load
            if requests:
                self.whole[endpoint.instance] = added(self.whole.get(endpoint.instance, NO_LOAD), load)

    def message(self) -> RouterLoad | RouterLoadChanges:
        before, self.told = self.told, (self.whole, self.by_rank, self.pulls)
        if before == ({}, {}, {}) or self.draw.random() < 0.2:
            return RouterLoad(id=self.id, inflight=self.whole, ranks=self.by_rank, pulls=self.pulls)
        return RouterLoadChanges(self.id, *map(_changes, before, self.told, (NO_LOAD, NO_LOAD, 0)))

    def on(self, endpoint: Endpoint) -> Load:
        return (self.whole if endpoint.rank is None else self.by_rank).get(endpoint.id, NO_LOAD)


def heard(loads: PeerLoads, message: RouterLoad | RouterLoadChanges, now: float) -> None:
    if isinstance(message, RouterLoad):
        loads.take(message, now)
    else:
        loads.take_changes(message, now)


def expected(routers: list[Router], endpoint: Endpoint) -> Load:
    total = NO_LOAD
    for router in routers:
        total = added(total, router.on(endpoint))
    return total


@pytest.mark.parametrize("seed", range(3))
def test_the_sum_holds_after_every_message(pools: Pools, seed: int) -> None:
    draw = random.Random(seed)
    routers = [Router(number, pools, draw) for number in range(4)]
    loads = PeerLoads(pools)
    for number in range(60):
        router = draw.choice(routers)
        router.change()
        heard(loads, router.message(), float(number))
        known = [each for each in routers if each.told != ({}, {}, {})]
        assert all(endpoint.others == expected(known, endpoint) for endpoint in endpoints(pools))
        pulls = [sum(each.pulls.get(endpoint.id, 0) for each in known) for endpoint in endpoints(pools)]
        assert [endpoint.others_pulls for endpoint in endpoints(pools)] == pulls


def test_endpoints_that_join_later_get_the_load_too(pools: Pools) -> None:
    loads = PeerLoads(pools)
    loads.take(RouterLoad(id="r", inflight={"late-0": (3, 30, 1)}), 0.0)
    value = FleetValue(pool="late", model="m", at=1.0, instances=(instance("late-0", "http://127.0.0.1:1"),))
    pools.get_or_add("late").take_fleet(value)
    loads.share_out_all()
    assert [endpoint.others for endpoint in endpoints(pools) if endpoint.id == "late-0"] == [(3, 30, 1)]


def test_a_router_that_stops_or_falls_silent_has_nothing_in_flight(pools: Pools) -> None:
    loads = PeerLoads(pools)
    of_one = next(endpoints(pools)).instance
    loads.take(RouterLoad(id="stops", inflight={of_one: (3, 30, 1)}), 0.0)
    loads.take_changes(RouterLoadChanges("silent", {of_one: (2, 20, 1)}, pulls={"pool-1-1": 1}), 0.0)
    assert len(loads.peers) == 2
    loads.take(RouterLoad(id="stops", gone=True), 0.1)
    loads.forget_silent(PEER_GONE_S + 0.1)
    assert len(loads.peers) == 0
    assert all((endpoint.others, endpoint.others_pulls) == (NO_LOAD, 0) for endpoint in endpoints(pools))

"""The requests in flight of other routers, and each endpoint's share of them. Routers send every change
(RouterLoadChanges) and, periodically, their whole load (RouterLoad), which repairs missed changes. A message's cost
depends on its changes, not on the number of instances.
"""

from collections.abc import Iterable, Mapping
from typing import TypeVar

from router.contract import ranks
from router.contract.redis.router_status import NO_LOAD, Load, RouterLoad, RouterLoadChanges, added
from router.contract.redis.staleness import PEER_GONE_S
from router.serving.pools import Pools

Value = TypeVar("Value")


class _Peer:
    def __init__(self) -> None:
        self.heard = 0.0  # s, monotonic
        self.whole: dict[str, Load] = {}  # by instance
        self.by_rank: dict[str, Load] = {}  # the part of that load on each data-parallel rank
        self.pulls: dict[str, int] = {}  # KV pulls by source instance or rank

    def take(self, value: RouterLoadChanges) -> None:
        _change(self.whole, value.inflight, NO_LOAD)
        _change(self.by_rank, value.ranks, NO_LOAD)
        _change(self.pulls, value.pulls, 0)

    @property
    def instances(self) -> set[str]:
        return {*self.whole, *map(ranks.instance_of, self.pulls)}


def _change(mine: dict[str, Value], theirs: Mapping[str, Value], nothing: Value) -> None:
    for name, load in theirs.items():
        if load == nothing:
            mine.pop(name, None)
        else:
            mine[name] = load


class PeerLoads:
    def __init__(self, pools: Pools) -> None:
        self._pools = pools
        self.peers: dict[str, _Peer] = {}  # other live routers by id

    def take(self, value: RouterLoad, now: float) -> None:
        """Store a router's whole load; `now` is monotonic."""
        if value.gone:
            self._forget(value.id)
            return
        peer = self.peers.setdefault(value.id, _Peer())
        changed = {name for name, _ in peer.whole.items() ^ value.inflight.items()}
        changed.update(ranks.instance_of(name) for name, _ in peer.by_rank.items() ^ value.ranks.items())
        changed.update(ranks.instance_of(name) for name, _ in peer.pulls.items() ^ value.pulls.items())
        peer.whole, peer.by_rank, peer.pulls = dict(value.inflight), dict(value.ranks), dict(value.pulls)
        peer.heard = now
        self._share_out(changed)

    def take_changes(self, value: RouterLoadChanges, now: float) -> None:
        peer = self.peers.setdefault(value.id, _Peer())
        peer.heard = now
        peer.take(value)
        self._share_out({*value.inflight, *map(ranks.instance_of, (*value.ranks, *value.pulls))})

    def forget_silent(self, now: float) -> None:
        for name in [name for name, peer in self.peers.items() if now - peer.heard > PEER_GONE_S]:
            self._forget(name)

    def _forget(self, router: str) -> None:
        peer = self.peers.pop(router, None)
        if peer is not None:
            self._share_out(peer.instances)

    def share_out_all(self) -> None:
        """Distribute all loads to the endpoints, including new ones."""
        self._share_out({name for peer in self.peers.values() for name in peer.instances})

    def _share_out(self, instances: Iterable[str]) -> None:
        pools, peers = tuple(self._pools.all()), tuple(self.peers.values())
        for name in instances:
            for pool in pools:
                for endpoint in pool.endpoints_of(name):
                    loads = [peer.whole if endpoint.rank is None else peer.by_rank for peer in peers]
                    pulls = sum(peer.pulls.get(endpoint.id, 0) for peer in peers)
                    endpoint.take_others(_sum(endpoint.id, loads), pulls)


def _sum(name: str, loads: Iterable[Mapping[str, Load]]) -> Load:
    total = NO_LOAD
    for by_name in loads:
        load = by_name.get(name)
        if load is not None:
            total = added(total, load)
    return total

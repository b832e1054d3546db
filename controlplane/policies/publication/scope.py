"""What a publication reaches, in words."""

from collections.abc import Iterable
from dataclasses import dataclass

from controlplane.policies import selectors
from controlplane.policies.models import Policy


@dataclass(frozen=True, slots=True)
class Scope:
    pools: tuple[str, ...]
    instances: int

    @property
    def words(self) -> str:
        if not self.pools:
            return "no pool uses this policy yet"
        noun = "pool" if len(self.pools) == 1 else "pools"
        count = f"{self.instances} instance{'' if self.instances == 1 else 's'}"
        return f"{noun} {listed(self.pools)}, {count}, 100 %"


def scope_of(policy: Policy) -> Scope:
    pools = selectors.pools_of(policy)
    return Scope(tuple(pool.name for pool in pools), sum(pool.replicas for pool in pools))


def listed(names: Iterable[str]) -> str:
    """a, b and c."""
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last

"""Which pools a pool needs, as its kind says: they must exist, and none may need itself by a round-about way. Pure."""

from collections.abc import Iterable, Mapping, Sequence

from fleet.kinds import KINDS
from fleet.kinds.option import build, suggestion
from fleet.spec.fleet_spec import PoolSpec
from router.contract.problem import Problem


def needs_of(pool: PoolSpec) -> tuple[str, ...]:
    kind = KINDS[pool.kind]
    return kind.needs(build(kind.spec, pool.engine))


def problems(pools: Sequence[PoolSpec], others: Iterable[str]) -> list[Problem]:
    """`others`: pools that are there without being in the document."""
    asked = {pool.name: needs_of(pool) for pool in pools}
    known = (*asked, *others)
    found = []
    for index, pool in enumerate(pools):
        path = f"spec.pools[{index}].engine"
        found += [
            Problem(path, name, f"needs a pool {name}, which there is not{suggestion(name, known)}")
            for name in asked[pool.name]
            if name not in known
        ]
        if _reaches(asked, pool.name, pool.name):
            found.append(
                Problem(path, pool.name, "needs itself by way of the pools that it needs: it could never start")
            )
    return found


def _reaches(asked: Mapping[str, tuple[str, ...]], start: str, goal: str) -> bool:
    seen: set[str] = set()
    ahead = list(asked.get(start, ()))
    while ahead:
        name = ahead.pop()
        if name == goal:
            return True
        if name not in seen:
            seen.add(name)
            ahead += asked.get(name, ())
    return False

"""Checks of dependencies between pools: they must exist and must not be circular. Pure."""

from collections.abc import Iterable, Mapping, Sequence

from fleet.kinds import KINDS
from fleet.kinds.options.option import build
from fleet.spec.fleet_spec import PoolSpec
from router.contract.values.fields import suggestion
from router.contract.values.problem import Problem


def needs_of(pool: PoolSpec) -> tuple[str, ...]:
    kind = KINDS[pool.kind]
    return kind.needs(build(kind.spec, pool.engine))


def problems(pools: Sequence[PoolSpec], others: Iterable[str]) -> list[Problem]:
    """Return the problems. `others`: existing pools that the document does not name."""
    asked = {pool.name: needs_of(pool) for pool in pools}
    known = (*asked, *others)
    found = []
    for index, pool in enumerate(pools):
        path = f"spec.pools[{index}].engine"
        found += [
            Problem(path, name, f"needs the unknown pool {name}{suggestion(name, known)}")
            for name in asked[pool.name]
            if name not in known
        ]
        if _reaches(asked, pool.name, pool.name):
            found.append(
                Problem(path, pool.name, "depends on itself through the pools that it needs, so it could never start")
            )
    return found


def _reaches(asked: Mapping[str, tuple[str, ...]], start: str, goal: str) -> bool:
    seen: set[str] = set()
    pending = list(asked.get(start, ()))
    while pending:
        name = pending.pop()
        if name == goal:
            return True
        if name not in seen:
            seen.add(name)
            pending += asked.get(name, ())
    return False

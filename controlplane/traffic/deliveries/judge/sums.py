"""The tallies of all routers and their incarnations, added up for one pool. Pure. A router always writes its whole
tally, so reading one twice counts it once. A router that restarts begins a new incarnation; the tally of the earlier
one is kept and still counts.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import add
from typing import Any

from msgspec import Struct
from msgspec.structs import astuple

from router.contract.redis.delivery import Arm, CellTally, DeliveryTally, Moments, ShadowTally
from router.contract.redis.router_status import RouterStatus, Window
from router.policy.types import CLASSES

OLD_S = 15.0  # silence of a serving router after which the sums are too old for a judgement

Cells = Mapping[int, CellTally]
NOTHING = CellTally()


# The traffic of a delivery, as reported by routers


@dataclass(frozen=True, slots=True)
class Traffic:
    """The data in Redis about a delivery, for all its pools."""

    tallies: tuple[DeliveryTally, ...]
    unreadable: tuple[str, ...]  # fields without a readable tally
    routers: Mapping[str, RouterStatus]  # live routers, by name

    def of(self, pool: str, generation: int) -> tuple[list[DeliveryTally], list[str]]:
        """Return the pool's tallies of this generation, and its unreadable fields."""
        mine = [each for each in self.tallies if (each.pool, each.generation) == (pool, generation)]
        return mine, [name for name in self.unreadable if name.startswith(f"{pool}:")]

    def serving(self, pool: str) -> list[str]:
        return sorted(name for name, status in self.routers.items() if pool in status.pools)

    def windows(self, pool: str, name: str) -> list[Window]:
        """Return the windows of the class, one from each router."""
        found = (status.classes.get(pool, {}).get(name) for status in self.routers.values())
        return [window for window in found if window is not None]

    def behind(self, pool: str, generation: int) -> list[str]:
        """Return the pool's routers whose split differs from this generation's."""
        return [
            name
            for name in self.serving(pool)
            if (served := self.routers[name].pools[pool]).generation != generation
            or served.split in ("unwatched", "unreadable", "tripped")
        ]


class Life(Struct, frozen=True, array_like=True):
    """The judge's memory of one incarnation of a router."""

    written: int
    changed_at: float  # time of the last change of `written`, s by the judge's clock
    n: int  # requests


@dataclass(frozen=True, slots=True)
class Evidence:
    """The evidence of one pool in one generation."""

    cells: Mapping[Arm, Mapping[str, Cells]] = field(default_factory=dict)  # by arm, class and cell
    shadow: ShadowTally = field(default_factory=ShadowTally)
    problems: tuple[str, ...] = ()  # reasons why the sums may be wrong

    def of(self, arm: Arm, name: str) -> Cells:
        return self.cells.get(arm, {}).get(name, {})

    def both(self, name: str) -> tuple[list[CellTally], list[CellTally]]:
        """Return the cells of candidate and control for one class; only cells with counts."""
        return list(self.of("candidate", name).values()), list(self.of("control", name).values())

    def tallies(self, arm: Arm) -> Iterator[CellTally]:
        for cells in self.cells.get(arm, {}).values():
            yield from cells.values()

    def total(self, arm: Arm) -> CellTally:
        return added(self.tallies(arm))

    def sessions(self, arm: Arm) -> dict[int, int]:
        """Return the sessions by cell, all classes together."""
        found: dict[int, int] = {}
        for cells in self.cells.get(arm, {}).values():
            for cell, tally in cells.items():
                found[cell] = found.get(cell, 0) + tally.sessions
        return found


def gather(
    tallies: Sequence[DeliveryTally],
    unreadable: Sequence[str],
    routers: Iterable[str],
    known: Mapping[str, Life],
    since: float,
    now: float,
) -> tuple[Evidence, dict[str, Life]]:
    """Return the sums, and the memory of each incarnation. `unreadable` are fields without a tally; `routers` serve the
    pool now; `known` is the earlier memory; `since` is the first look at this generation.
    """
    lives = {_name(tally): _life(tally, known.get(_name(tally)), now) for tally in tallies}
    problems = [f"the tally of {each} is unreadable" for each in unreadable]
    problems += _fewer(lives, known)
    problems += _old(tallies, lives, routers, since, now)
    cells = {arm: added_arm([tally.cells.get(arm, {}) for tally in tallies]) for arm in ("candidate", "control")}
    shadow = _added_shadows([tally.shadow for tally in tallies])
    return Evidence(cells, shadow, tuple(problems)), {**known, **lives}  # type: ignore[arg-type]


def _name(tally: DeliveryTally) -> str:
    return f"{tally.router}.{tally.life}"


def _life(tally: DeliveryTally, known: Life | None, now: float) -> Life:
    changed = known is None or known.written != tally.written
    return Life(tally.written, now if changed or known is None else known.changed_at, _requests(tally))


def _requests(tally: DeliveryTally) -> int:
    counted = sum(cell.n for arm in tally.cells.values() for cells in arm.values() for cell in cells.values())
    return counted + tally.shadow.n


def _fewer(lives: Mapping[str, Life], known: Mapping[str, Life]) -> list[str]:
    """Return the tallies that have shrunk: tallies only grow, so Redis has lost data."""
    return [
        f"router {name} has {lives[name].n if name in lives else 'no'} requests in its tally and had {before.n}"
        for name, before in known.items()
        if before.n > (lives[name].n if name in lives else 0)
    ]


def _old(
    tallies: Sequence[DeliveryTally], lives: Mapping[str, Life], routers: Iterable[str], since: float, now: float
) -> list[str]:
    newest = dict.fromkeys(routers, since)
    for tally in tallies:
        if tally.router in newest:
            newest[tally.router] = max(newest[tally.router], lives[_name(tally)].changed_at)
    return [
        f"router {router} has not written its tally for {now - at:.0f} s"
        for router, at in sorted(newest.items())
        if now - at > OLD_S
    ]


def added_arm(arms: Sequence[Mapping[str, Cells]]) -> dict[str, dict[int, CellTally]]:
    """Add up an arm by class and cell; classes in the order of CLASSES."""
    names = sorted({name for arm in arms for name in arm}, key=lambda name: (name not in CLASSES, name))
    return {name: _added_cells([arm[name] for arm in arms if name in arm]) for name in names}


def _added_cells(every: Sequence[Cells]) -> dict[int, CellTally]:
    numbers = sorted({cell for cells in every for cell in cells})
    return {cell: added(cells[cell] for cells in every if cell in cells) for cell in numbers}


def added(tallies: Iterable[CellTally]) -> CellTally:
    total, *others = [*tallies] or [NOTHING]
    for tally in others:
        total = _plus(total, tally)
    return total


def _plus(a: CellTally, b: CellTally) -> CellTally:
    pairs: Iterable[tuple[Any, Any]] = zip(astuple(a), astuple(b), strict=True)
    sums: Iterable[Any] = (plus(x, y) if isinstance(x, Moments) else x + y for x, y in pairs)
    return CellTally(*sums)


def plus(a: Moments, b: Moments) -> Moments:
    return Moments(*map(add, astuple(a), astuple(b)))


def _added_shadows(shadows: Sequence[ShadowTally]) -> ShadowTally:
    return ShadowTally(
        n=sum(tally.n for tally in shadows),
        changed=sum(tally.changed for tally in shadows),
        refused_more=sum(tally.refused_more for tally in shadows),
        raised=sum(tally.raised for tally in shadows),
        to=_added_counts(tally.to for tally in shadows),
        live_to=_added_counts(tally.live_to for tally in shadows),
        sample=min((tally.sample for tally in shadows), default=0.0),
        cpu_s=sum(tally.cpu_s for tally in shadows),
    )


def _added_counts(every: Iterable[Mapping[str, int]]) -> dict[str, int]:
    found: Counter[str] = Counter()
    for counts in every:
        found.update(counts)
    return dict(found)

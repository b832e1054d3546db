"""Data-parallel ranks: how many are behind an instance's address, and which instances share a group of them. Pure.
If an instance has fewer ranks than the group, it forms the group with the instances after it (vLLM's hybrid load
balancing): each routes to its own ranks, and they serve only together.
"""

from collections.abc import Iterable
from typing import Protocol

from fleet.kinds.kind import Launch
from router.contract import ranks
from router.contract.redis.published import DataParallel

OPTIONS = ("data_parallel_size", "data_parallel_size_local")


class Ranked(Protocol):
    @property
    def data_parallel_size(self) -> int: ...
    @property
    def data_parallel_size_local(self) -> int | None: ...


def local(spec: Ranked) -> int:
    """Return the number of ranks of one instance."""
    return spec.data_parallel_size_local or spec.data_parallel_size


def is_shared(spec: Ranked) -> bool:
    """Return whether several instances form one group."""
    return local(spec) < spec.data_parallel_size


def endpoints(instance: str, dp: DataParallel) -> list[str]:
    """Return the names that routers and the twin use for an instance: those of its ranks, if it has several."""
    return [ranks.named(instance, dp.first + place) for place in range(dp.ranks)] if dp.ranks > 1 else [instance]


def first(spec: Ranked, ordinal: int) -> int:
    """Return the number of the instance's first rank in its group."""
    return ordinal * local(spec) % spec.data_parallel_size


def group(spec: Ranked, ordinal: int) -> tuple[int, ...]:
    """Return the ordinals of a group's instances; empty if the instance is independent."""
    size = spec.data_parallel_size // local(spec)
    begin = ordinal - ordinal % size
    return tuple(range(begin, begin + size)) if size > 1 else ()


def leader(spec: Ranked, ordinal: int) -> int | None:
    """Return the first instance of the group, with whose address the others are started; None for the first instance
    itself.
    """
    ordinals = group(spec, ordinal)
    return ordinals[0] if ordinals and ordinals[0] != ordinal else None


def spans(spec: Ranked, uses: Iterable[str]) -> dict[str, int]:
    """Return the number of consecutive ports for these uses: a rank listens on the first port plus its index."""
    return dict.fromkeys(uses, local(spec))


def refuse(spec: Ranked) -> dict[str, str]:
    size, own = spec.data_parallel_size, spec.data_parallel_size_local
    if own is None or size % own == 0:
        return {}
    allowed = ", ".join(str(each) for each in range(1, size + 1) if size % each == 0)
    return {"data_parallel_size_local": f"must divide data_parallel_size, {size}; allowed: {allowed}"}


def published(spec: Ranked, launch: Launch, *, moe: bool) -> DataParallel:
    """Return the ranks to publish. With `moe`, the ranks compute each layer's experts together and wait for each other
    in every step."""
    if spec.data_parallel_size == 1:
        return DataParallel()
    ordinals = group(spec, launch.ordinal)
    name = launch.sibling(ordinals[0]) if ordinals else launch.instance
    return DataParallel(local(spec), first(spec, launch.ordinal), name if moe else "")

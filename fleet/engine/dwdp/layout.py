"""The experts that a GPU of a DWDP group holds, and those that it copies from each other GPU: E = L + (N - 1) P, 0 <
P <= L."""

from collections.abc import Mapping
from dataclasses import dataclass


class LayoutError(ValueError):
    """The group cannot be built; `field` is ranks, local or prefetch."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


@dataclass(frozen=True, slots=True)
class ExpertLayout:
    experts: int  # E: experts of a layer
    ranks: int  # N: GPUs of the group
    local: int  # L: experts held by each GPU
    prefetch: int  # P: experts copied from each other GPU; also the distance between the ranges of two neighbours

    @property
    def remote(self) -> int:
        """Return the number of experts copied for each layer."""
        return self.experts - self.local

    @property
    def shared(self) -> int:
        """Return the number of experts held by two neighbours."""
        return self.local - self.prefetch

    def held(self, rank: int) -> range:
        return range(rank * self.prefetch, rank * self.prefetch + self.local)

    def fetched(self, rank: int) -> Mapping[int, range]:
        """Map each source to the experts copied from it. In [N] these ranges are closed; here they are half open."""
        p, local = self.prefetch, self.local
        below = {peer: range(peer * p, (peer + 1) * p) for peer in range(rank)}
        above = {peer: range((peer - 1) * p + local, peer * p + local) for peer in range(rank + 1, self.ranks)}
        return below | above


def layout(experts: int, ranks: int, local: int | None = None, prefetch: int | None = None) -> ExpertLayout:
    """Return the layout; without `prefetch`, the one with the largest possible value, floor(E / N). Raise
    LayoutError."""
    if not 2 <= ranks <= experts:
        raise LayoutError("ranks", f"must be 2 to {experts}, the experts of a layer")
    if prefetch is None:
        prefetch = experts // ranks if local is None else _prefetch_for(experts, ranks, local)
    if local is None:
        local = experts - (ranks - 1) * prefetch
    if not 0 < prefetch <= experts // ranks:
        raise LayoutError("prefetch", f"{prefetch} must be 1 to {experts // ranks}: {experts} experts on {ranks} GPUs")
    needed = experts - (ranks - 1) * prefetch
    if local != needed:
        raise LayoutError(
            "local",
            f"{local} held + {ranks - 1} x {prefetch} copied = {local + (ranks - 1) * prefetch} experts, "
            f"but the model has {experts}; allowed with {prefetch} copied from each GPU: {needed}",
        )
    return ExpertLayout(experts, ranks, local, prefetch)


def _prefetch_for(experts: int, ranks: int, local: int) -> int:
    prefetch, left = divmod(experts - local, ranks - 1)
    if left or not 0 < prefetch <= experts // ranks:
        allowed = (experts - (ranks - 1) * each for each in range(1, experts // ranks + 1))
        nearest = min(allowed, key=lambda each: abs(each - local))
        raise LayoutError(
            "local",
            f"{local} held leave {experts - local} of {experts} experts, which {ranks - 1} GPUs cannot provide in "
            f"equal parts of 1 to {experts // ranks}; nearest allowed: {nearest}",
        )
    return prefetch

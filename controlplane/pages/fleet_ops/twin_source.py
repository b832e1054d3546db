"""The source of a pool's step times in the twin: a profile, a calibration, or none, with the reason."""

from dataclasses import dataclass

from controlplane.evidence.twin import expected_error
from controlplane.evidence.twin.pool_model import NotModelled, twin_of
from fleet.kinds import KINDS
from fleet.models import Pool

WHY = {
    "profile": "its model, GPU and layout have one",
    "transferred": "nothing was fitted to or measured of its model in this layout",
    "calibrated": "a measurement of its engines comes first",
}


@dataclass(frozen=True, slots=True)
class TwinSource:
    about: str  # empty if the twin cannot compute the pool
    why: str
    expected: str = ""
    cautions: tuple[str, ...] = ()


def twin_source(pool: Pool) -> TwinSource | None:
    """Return the source; None for a pool that serves no requests."""
    kind = KINDS.get(pool.kind)
    if kind is None or not kind.serves:
        return None
    try:
        found = twin_of(pool)
    except NotModelled as error:
        return TwinSource("", str(error))
    return TwinSource(found.about, WHY[found.basis], expected_error.described(found.expected), found.cautions)

"""Events of routers that fall silent and report again: lines of the ticker, and marks on the charts at the start of a
silence. Pure."""

from collections.abc import Iterator

from controlplane.common.figures import seconds
from controlplane.live.dashboard.frame.types import Frame
from router.contract.redis.fleet_status import FleetEvent

KIND = "router"


def events(now: float, frame: Frame, previous: Frame | None) -> Iterator[FleetEvent]:
    """Yield the changes since the previous frame."""
    before = _silent(previous) if previous is not None else {}
    for name, age_s in _silent(frame).items():
        if previous is not None and name not in before and name in previous["routers"]["id"]:
            yield FleetEvent(at=now - age_s, kind=KIND, subject=name, text=f"router {name} fell silent")
    for name in frame["routers"]["id"]:
        if name in before and name not in _silent(frame):
            lasted = seconds(before[name] + now - (previous or frame)["at"])
            yield FleetEvent(at=now, kind=KIND, subject=name, text=f"router {name} reports again after {lasted}")


def _silent(frame: Frame) -> dict[str, float]:
    """Return the age of the last report by missing router."""
    columns = frame["routers"]
    rows = zip(columns["id"], columns["age_s"], columns["gone"], strict=True)
    return {name: age_s for name, age_s, gone in rows if gone}

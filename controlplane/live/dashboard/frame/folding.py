"""Folds a frame for publication: columns of few values are folded, and fields needed only for the next frame left out.
Pure.

For 1,000 instances, a column of statuses takes a byte each instead of eight.
"""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from controlplane.live.dashboard.frame.types import Columns, Frame

CARRIED = ("waiting_avg", "tokens_total", "epoch", "sampled_at")  # fields of an instance carried from frame to frame
FIRST = "0"
MOST = ord("\\") - ord(FIRST)  # most values of a folded column, so that a letter needs no escape in JSON


def folded(frame: Frame) -> dict[str, Any]:
    """Fold columns of few values to {"of": its values, "at": a letter for each row}; the last letter stands for all
    rows that follow. static/js/live_frame.js reads it."""
    shown = {name: _folded(column) for name, column in frame["instances"].items() if name not in CARRIED}
    return {**frame, "instances": shown}


def _folded(column: Sequence[Any]) -> Sequence[Any] | dict[str, Any]:
    places: dict[Any, int] = {}
    at = [places.setdefault(value, len(places)) for value in column]
    if len(places) > MOST or 2 * len(places) >= len(column):
        return column
    letters = bytes(ord(FIRST) + place for place in at).decode()
    return {"of": list(places), "at": letters.rstrip(letters[-1]) + letters[-1]}


def unfolded(published: Mapping[str, Any]) -> Frame:
    """Return the frame with every column as a list."""
    count = len(published["instances"]["id"])  # Ids are all different, so never folded.
    columns = {name: _unfolded(column, count) for name, column in published["instances"].items()}
    return cast(Frame, {**published, "instances": columns})


def _unfolded(column: Any, count: int) -> list[Any]:
    if isinstance(column, list):
        return column
    at: str = column["at"]
    return [column["of"][ord(letter) - ord(FIRST)] for letter in at.ljust(count, at[-1])]


def carried(frame: Frame) -> dict[str, Any]:
    return {"at": frame["at"], **{name: frame["instances"][name] for name in CARRIED}}


def with_carried(frame: Frame, kept: Mapping[str, Any] | None) -> Frame:
    """Return the published frame as it was built; carried columns are unknown if `kept` belongs to another frame."""
    columns: Columns = frame["instances"]
    unknown = [None] * len(columns["id"])
    known: Mapping[str, Any] = kept if kept is not None and kept["at"] == frame["at"] else {}
    return {**frame, "instances": {**columns, **{name: known.get(name, unknown) for name in CARRIED}}}

"""The disk under an instance's KV tier: how much room is left, and whether it is as good as full."""

import os
from pathlib import Path

FULL_SHARE = 0.02  # of the disk left: blocks are written in files of several MB, which no longer fit


def free_space(folder: str) -> tuple[int, int] | None:
    """(free, total) bytes of the disk that holds the folder, or will; None when it cannot be asked."""
    if not folder:
        return None
    path = Path(folder).absolute()
    place = next((each for each in (path, *path.parents) if each.exists()), path)
    try:
        stat = os.statvfs(place)
    except OSError:
        return None
    return stat.f_bavail * stat.f_frsize, stat.f_blocks * stat.f_frsize


def is_full(left: tuple[int, int] | None) -> bool:
    return left is not None and left[0] < FULL_SHARE * left[1]

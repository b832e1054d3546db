"""Free space on the disk of an instance's KV tier."""

import os
from pathlib import Path

FULL_SHARE = 0.02  # free share of the disk below which files of several MB no longer fit


def free_space(folder: str) -> tuple[int, int] | None:
    """Return (free, total) bytes of the disk of the folder, which need not exist yet; None if unknown."""
    if not folder:
        return None
    path = Path(folder).absolute()
    existing = next((each for each in (path, *path.parents) if each.exists()), path)
    try:
        stat = os.statvfs(existing)
    except OSError:
        return None
    return stat.f_bavail * stat.f_frsize, stat.f_blocks * stat.f_frsize


def is_full(left: tuple[int, int] | None) -> bool:
    return left is not None and left[0] < FULL_SHARE * left[1]

"""The command as one file: an archive that Python runs, of the version of this server."""

import functools
import io
import zipfile
from pathlib import Path

from router.contract.installation import VERSION

_FOLDER = Path(__file__).with_name("weir")
_UNSET = 'VERSION = "unknown"'
_START = 'import runpy\n\nrunpy.run_module("weir", run_name="__main__", alter_sys=True)\n'
_SHEBANG = b"#!/usr/bin/env python3\n"


@functools.cache
def archive() -> bytes:
    """The same bytes each time: a pipeline may compare or cache them."""
    written = io.BytesIO(_SHEBANG)
    written.seek(0, io.SEEK_END)
    with zipfile.ZipFile(written, "a", zipfile.ZIP_DEFLATED) as files:
        files.writestr(_entry("__main__.py"), _START)
        for path in sorted(_FOLDER.glob("*.py")):
            text = path.read_text(encoding="utf-8").replace(_UNSET, f"VERSION = {VERSION!r}", 1)
            files.writestr(_entry(f"weir/{path.name}"), text)
    return written.getvalue()


def _entry(name: str) -> zipfile.ZipInfo:
    return zipfile.ZipInfo(name)  # dated 1980, as files without a date are

"""The content of files and the results of batches, in $WEIR_DATA_DIR/batches."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from django.conf import settings

from controlplane.traffic.batches.lines import usage_of, written_of

DISPATCHER = "dispatcher"  # lock of the worker that sends the lines of all batches
LARGEST = 200 * 1024 * 1024  # largest file, bytes


def folder() -> Path:
    made = Path(settings.DATA_DIR) / "batches"
    made.mkdir(mode=0o700, parents=True, exist_ok=True)
    return made


def content(name: str) -> Path:
    """Return the path of a file's content."""
    return folder() / f"{name}.jsonl"


def results(batch: str) -> Path:
    """Return the folder of a batch that has not been closed."""
    made = folder() / batch
    made.mkdir(mode=0o700, exist_ok=True)
    return made


def result(batch: str, which: str) -> Path:
    return results(batch) / f"{which}.jsonl"


@contextmanager
def alone(batch: str) -> Iterator[bool]:
    """Hold the lock on the batch's results, or on DISPATCHER; yield False while another process holds it. The lock of a
    process that ends is released."""
    with (folder() / f"{batch}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


def forget(batch: str) -> None:
    (folder() / f"{batch}.lock").unlink(missing_ok=True)


class BatchResults:
    """Appends to the output file and the error file of a batch. Each custom_id gets exactly one line, whichever workers
    wrote it."""

    def __init__(self, batch: str) -> None:
        self.output, self.errors = (result(batch, which) for which in ("output", "errors"))
        self.counts = {path: 0 for path in (self.output, self.errors)}
        self.written: set[str] = set()  # custom_ids written before any line is sent
        self.tokens: tuple[int, ...] = (0, 0)  # input and output tokens
        self._open: dict[Path, IO[bytes]] = {}
        self._unflushed: set[Path] = set()
        for path in self.counts:
            self._open[path] = _without_torn_line(path)
            with path.open("rb") as lines:
                for name, document in written_of(lines):
                    self.written.add(name)
                    self._count(path, document)

    def add(self, path: Path, line: bytes, document: object = None) -> None:
        """Append a line. `document` is the answer, if there is one."""
        self._open[path].write(line)
        self._open[path].flush()
        self._unflushed.add(path)
        self._count(path, document)

    def _count(self, path: Path, document: object) -> None:
        self.counts[path] += 1
        if path == self.output:
            self.tokens = tuple(map(sum, zip(self.tokens, usage_of(document), strict=True)))

    def flush(self) -> None:
        """Sync to disk, so that added lines survive a crash of the machine; they survive the end of this process
        without it."""
        for path in self._unflushed:
            os.fsync(self._open[path].fileno())
        self._unflushed.clear()

    def close(self) -> None:
        for file in self._open.values():
            file.close()


def _without_torn_line(path: Path) -> IO[bytes]:
    """Open the file at the end of its last complete line."""
    path.touch(mode=0o600)
    file = path.open("r+b")
    size = end = path.stat().st_size
    while end:
        start = max(0, end - 65_536)
        file.seek(start)
        found = file.read(end - start).rfind(b"\n")
        end = start + found + 1 if found >= 0 else start
        if found >= 0:
            break
    if end != size:
        file.truncate(end)
    file.seek(end)
    return file

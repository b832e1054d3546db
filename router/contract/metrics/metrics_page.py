"""The wanted metrics of a Prometheus page, located by their names, and a histogram for Weir's own page. Pure. A full
parse of vLLM's page of 52 kB takes 8 ms; locating ten names takes less than 0.2 ms. The page is untrusted input:
numbers out of range, long lines and excess series are rejected and counted, and the metric stays unknown.
"""

import math
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import accumulate

from router.contract import ranks

LARGEST = 4 * 1024 * 1024  # bytes of a page; vLLM writes 75 kB for each data-parallel rank
LONGEST_LINE = 16 * 1024
MOST_SERIES = 4096  # series per name
MOST_SOURCES = 32
LARGEST_NUMBER = 2.0**53  # floats above this skip integers
LARGEST_COUNT = 2**31 - 1  # largest number of blocks, and of tokens in a block

Refused = Counter[str]  # reason → how often

_SOURCE = re.compile(rb'[{,](?:cache_)?source="([\w.:/-]{1,64})"')
_RANK = re.compile(rb'[{,](?:%b)="([0-9]{1,4})"' % b"|".join(ranks.LABELS))
_SHARD = re.compile(rb'(?:tp|pp|moe_ep)_rank="[0-9]*"')
_OF_A_PRIORITY = re.compile(rb'[{,]priority="[^"]')
_LABEL = re.compile(rb'[{,](\w+)="([^"]*)"')


class MetricsPage:
    def __init__(self, raw: bytes, refused: Refused) -> None:
        self.raw = raw
        self._refused = refused

    def series(self, name: str) -> Iterator[tuple[bytes, float]]:
        """Return (labels, value) of each line of exactly this name."""
        if not name:
            return
        page, wanted = self.raw, b"\n" + name.encode()
        # Only the first line of a page is not preceded by a line feed.
        at = 0 if page.startswith(wanted[1:]) else page.find(wanted)
        for _ in range(MOST_SERIES):
            if at < 0:
                return
            begin = at + len(wanted) - (page[at : at + 1] != b"\n")
            end = page.find(b"\n", begin)
            value = self._value(name, page[begin : end if end >= 0 else len(page)])
            if value is not None:
                yield value
            at = page.find(wanted, begin)
        if at >= 0:
            self.refuse(f"{name}: more than {MOST_SERIES} series")

    def _value(self, name: str, line: bytes) -> tuple[bytes, float] | None:
        """Return (labels, value); None if the name continues (another series) or the value is refused."""
        if line[:1] not in (b"{", b" "):
            return None
        if len(line) > LONGEST_LINE:
            self.refuse(f"{name}: a line of more than {LONGEST_LINE} bytes")
            return None
        words = line[line.rfind(b"}") + 1 :].split(maxsplit=1)
        try:
            value = float(words[0])
        except (IndexError, ValueError):
            self.refuse(f"{name}: not a number")
            return None
        if not math.isfinite(value):  # some engines write NaN for a missing figure
            return None
        if not 0 <= value <= LARGEST_NUMBER:
            self.refuse(f"{name}: out of range (0 to 2^53)")
            return None
        return line, value

    def refuse(self, why: str) -> None:
        self._refused[why] += 1

    def sum(self, name: str) -> float | None:
        return total([*self.series(name)])

    def requests(self, names: Sequence[str], only: bytes = b"") -> list[tuple[bytes, float]]:
        """Return labels and values of gauges that count requests, or only those with the label `only`. Beside the
        total, SGLang writes a line per priority and, with `--enable-metrics-for-all-schedulers`, a line for each part
        of a model that computes the same requests; each request is counted once.
        """
        found: dict[tuple[str, bytes], float] = {}
        for name in names:
            for line, value in self.series(name):
                if only in line and not _OF_A_PRIORITY.search(line):
                    key = name, _SHARD.sub(b"", line[: line.rfind(b"}") + 1])
                    found[key] = max(value, found.get(key, 0.0))
        return [(labels, value) for (_, labels), value in found.items()]

    def mean(self, name: str) -> float | None:
        values = [value for _, value in self.series(name)]
        return sum(values) / len(values) if values else None

    def gauge(self, name: str) -> int | None:
        """Return a count that all series share; 0 if there is none."""
        value = next((value for _, value in self.series(name)), 0.0)
        if value > LARGEST_COUNT:
            self.refuse(f"{name}: out of range (0 to {LARGEST_COUNT})")
            return None
        return int(value) or None

    def share(self, name: str) -> float | None:
        """Return a share, 0–1, as the mean of all series."""
        if any(value > 1 for _, value in self.series(name)):
            self.refuse(f"{name}: out of range (0 to 1)")
            return None
        return self.mean(name)

    def by_rank(self, name: str) -> dict[str, float]:
        return by_rank(self.series(name))

    def by_source(self, name: str) -> dict[str, float]:
        found: dict[str, float] = {}
        for labels, value in self.series(name):
            source = _SOURCE.search(labels)
            if source is None:
                continue
            key = source[1].decode()
            if key in found or len(found) < MOST_SOURCES:
                found[key] = found.get(key, 0.0) + value
            else:
                self.refuse(f"{name}: more than {MOST_SOURCES} sources")
        return found

    def labels(self, name: str) -> dict[bytes, bytes]:
        return next((dict(_LABEL.findall(labels)) for labels, _ in self.series(name)), {})

    def count(self, labels: dict[bytes, bytes], key: bytes) -> int | None:
        text = labels.get(key, b"")
        if not text.isdigit():  # vLLM writes None for a missing figure
            return None
        if len(text) > 10 or int(text) > LARGEST_COUNT:
            self.refuse(f"{key.decode()}: out of range (0 to {LARGEST_COUNT})")
            return None
        return int(text)


def total(lines: Collection[tuple[bytes, float]]) -> float | None:
    return sum(value for _, value in lines) if lines else None


def by_rank(lines: Iterable[tuple[bytes, float]]) -> dict[str, float]:
    """Sum by data-parallel rank; lines without a rank are skipped."""
    found: dict[str, float] = {}
    for labels, value in lines:
        if (number := _RANK.search(labels)) is not None:
            key = number[1].decode()
            found[key] = found.get(key, 0.0) + value
    return found


class Histogram:
    """A histogram with fixed bounds; recording a value takes one addition."""

    __slots__ = ("_edges", "bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self._edges = [float(bound) for bound in bounds]  # comparing a float with an integer is slower
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0  # sum of the values

    def observe(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self._edges, value)] += times
        self.total += value * times

    def cumulative(self) -> list[int]:
        """Return, for each bound, the number of values up to it; the last number counts all values."""
        return list(accumulate(self.counts))

"""The cost of a fault under traffic: processes killed, suspended or ended; disks, clocks and servers that fail.

    .venv/bin/python -m bench.faults [--rows WORDS] [--write]

It starts its own Weir (two routers, two simulated engines), does one fault after another and prints a table;
`--write` puts it into docs/findings/tables/faults.csv. It needs root for its disks, a C compiler for the clock,
and the packages postgresql and rabbitmq-server for their rows; a row that is not possible is reported and left out.
"""

import argparse
import datetime as dt
import os
import platform
import sys
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench import sheets
from controlplane.tests import faults
from controlplane.tests.faults import Found, Impossible, Row

COLUMNS = ("fault", "of", "requests lost", "longest gap", "whole again after", "drafts, versions", "experiment", "lost")


def line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def cells(row: Row, found: Found) -> tuple[str, ...]:
    lost = sum(found.lost.values())
    why = f" ({', '.join(f'{n} {what}' for what, n in found.lost.most_common())})" if lost else ""
    return (
        row.fault,
        row.subject,
        f"{lost} of {found.sent}{why}",
        f"{found.gap_s:.1f} s",
        f"{found.whole_s:.1f} s" if found.whole_s is not None else f"not within {faults.PATIENCE_S:g} s",
        f"{found.saved}, {found.published}",
        found.experiment,
        f"{len(found.missing)}" + (f": {found.missing[0]}" if found.missing else ""),
    )


def measured(rows: list[Row]) -> list[str]:
    lines = []
    for stage, group in groupby(rows, key=lambda row: row.stage):
        try:
            with faults.setting(stage) as world:
                for row in group:
                    if found := tried(row, world):
                        lines.append(line(cells(row, found)))
                        print(lines[-1], flush=True)
        except (Impossible, AssertionError) as why:  # not possible here, or too slow a start
            print(f"left out: {stage}: {why}", flush=True)
    return lines


def tried(row: Row, world: faults.World) -> Found | None:
    """Run a row; print why if it stops, so that the rows before and after it count."""
    try:
        return faults.run(row, world)
    except (OSError, AssertionError) as why:
        print(f"left out: {row.fault} of {row.subject}: {why}\n{world.told()}", flush=True)
        return None


def machine() -> str:
    names = [
        line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line
    ]
    load = "–".join(f"{one:.1f}" for one in sorted(os.getloadavg())[:2])
    return f"{len(names)} cores ({names[0] if names else platform.machine()}), load average {load}"


def write(lines: list[str]) -> None:
    """Write the rows; rows that were not measured keep their values."""
    about = f"{dt.datetime.now(dt.UTC):%Y-%m-%d}, {machine()}, {faults.RATE:g} requests/s"
    known = sheets.updated("faults", ([*sheets.cells(each), about] for each in lines), named_by=2)
    rows = (known[wanted] for row in faults.ROWS if (wanted := (row.fault, row.subject)) in known)
    sheets.save("faults", [[*COLUMNS, "measured"], *rows])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", default="", help="only rows whose fault or subject contains these words")
    parser.add_argument("--write", action="store_true", help="put the table into docs/findings/tables")
    options = parser.parse_args()
    rows = [row for row in faults.ROWS if options.rows in f"{row.fault} {row.subject}"]
    lines = measured(rows)
    if options.write:
        write(lines)


if __name__ == "__main__":
    main()

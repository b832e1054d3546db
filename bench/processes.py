"""CPU and memory of every process of a Weir, by role, over some seconds.

    .venv/bin/python bench/processes.py [--seconds 30] [--data-dir var]

Without --data-dir it starts its own Weir (demo fleet and traffic) and lets it warm up first.
"""

import argparse
import os
import sys
import time
from collections import defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from controlplane.tests.real_up import RealUp, running

TICKS = os.sysconf("SC_CLK_TCK")
WARM_UP_S = 20


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def memory_mb(pid: int) -> tuple[float, float]:
    """Return (resident, proportional) memory: the latter divides shared memory among its users."""
    sizes = dict(line.split(":") for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:])
    return tuple(int(sizes[key].split()[0]) / 1024 for key in ("Rss", "Pss"))  # type: ignore[return-value]


def roles(weir: RealUp) -> dict[int, str]:
    """Map pids to roles."""
    own = {pid: name for name, pid in weir.children().items()}
    engines = {pid: "engine" for pid, _ in weir.engines()}
    lock = int((weir.folder / "run" / "up.lock").read_text())
    return {lock: "up"} | own | engines


def measure(weir: RealUp, seconds: float) -> None:
    watched = roles(weir)
    before = {pid: cpu_s(pid) for pid in watched}
    began = time.monotonic()
    time.sleep(seconds)
    took = time.monotonic() - began
    groups: dict[str, list[tuple[float, float, float]]] = defaultdict(list)
    for pid, role in watched.items():
        groups[role].append(((cpu_s(pid) - before[pid]) / took, *memory_mb(pid)))
    print(f"{'role':<13}{'processes':>10}{'cores':>9}{'RSS MB each':>13}{'PSS MB all':>12}   over {took:.0f} s")
    for role, rows in groups.items():
        line(role, rows)
    line("all", [row for rows in groups.values() for row in rows])


def line(role: str, rows: list[tuple[float, float, float]]) -> None:
    cores, resident, proportional = (sum(column) for column in zip(*rows, strict=True))
    print(f"{role:<13}{len(rows):>10}{cores:>9.3f}{resident / len(rows):>13.1f}{proportional:>12.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--data-dir", type=Path, help="of the Weir to measure")
    parser.add_argument("--routers", type=int, default=1, help="of the Weir that is started")
    options = parser.parse_args()
    if options.data_dir:
        measure(RealUp(options.data_dir.resolve()), options.seconds)
        return
    with running("--routers", str(options.routers)) as weir:
        weir.wait_for("instances of pool demo are ready")
        time.sleep(WARM_UP_S)
        measure(weir, options.seconds)
        print(f"stopped after {weir.stop():.1f} s, {len(weir.everything())} processes left")


if __name__ == "__main__":
    main()

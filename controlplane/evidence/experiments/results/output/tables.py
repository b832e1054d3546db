"""The requests of an experiment as a file, a row for each. No Django, as a large one is made beside the web process."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from controlplane.common import parquet
from controlplane.evidence.experiments.results import records
from controlplane.evidence.experiments.results.output import report

Runs = Sequence[tuple[str, int, Path]]  # (arm, seed, records)


def csv_file(mode: str, runs: Runs) -> bytes:
    return report.requests_csv(mode, ((arm, seed, records.read(path)) for arm, seed, path in runs)).encode()


def parquet_file(mode: str, runs: Runs) -> bytes:
    """Return a Parquet file with the columns of the CSV."""
    rows = [(arm, seed, record) for arm, seed, path in runs for record in records.read(path)]
    columns: dict[str, tuple[type, list[Any]]] = {
        "arm": (str, [arm for arm, _, _ in rows]),
        "seed": (int, [seed for _, seed, _ in rows]),
        "mode": (str, [mode] * len(rows)),
    }
    for name, kind in records.TYPES.items():
        columns[name] = (kind, [getattr(record, name) for _, _, record in rows])
    return parquet.table(columns)


FORMS: Mapping[str, Callable[[str, Runs], bytes]] = {"csv": csv_file, "parquet": parquet_file}

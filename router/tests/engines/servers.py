"""What the servers of engines take, as surface.py read it from their wheels, and what docs/router.md says of it.

python -m router.tests.engines.servers      # prints the table of docs/router.md
"""

import json
from pathlib import Path
from typing import Any

from router.contract.api_paths import ApiPath, Handling, find

FOLDER = Path(__file__).parent
SERVERS: dict[str, dict[str, Any]] = {
    name: json.loads((FOLDER / f"{name}.json").read_text()) for name in ("vllm", "sglang")
}
# (path, method) of every route of both
ROUTES = sorted(
    {
        (path, method)
        for server in SERVERS.values()
        for path, taken in server["paths"].items()
        for method in taken["methods"]
    }
)


def table() -> str:
    """What Weir does with each path of these servers, paths of one kind and reason together."""
    by_reason: dict[tuple[str, str], list[str]] = {}
    for path in sorted({path for path, _ in ROUTES}):
        row = find(path)
        assert row is not None, path
        by_reason.setdefault(_said(row), []).append(f"`{path}`")
    rows = [f"| {does} | {why} | {' '.join(paths)} |" for (does, why), paths in by_reason.items()]
    return "\n".join(["| what Weir does | | paths |", "|---|---|---|", *sorted(rows)])


def _said(row: ApiPath) -> tuple[str, str]:
    does = {
        Handling.ROUTED: "routed",
        Handling.OWN: "answered",
        Handling.WEB: "batches",
        Handling.STORED: "to its instance",
        Handling.REFUSED: "refused",
    }
    methods = " ".join(f"`{method}`" for method in row.methods)
    return does[row.handling], row.why or methods


if __name__ == "__main__":
    print(table())

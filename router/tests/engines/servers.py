"""The requests that engine servers accept, as read by surface.py from their wheels, and how Weir treats them.

python -m router.tests.engines.servers > docs/api-paths.csv
"""

import csv
import json
from io import StringIO
from pathlib import Path
from typing import Any

from router.contract.api_paths import Handling, find

FOLDER = Path(__file__).parent
SERVERS: dict[str, dict[str, Any]] = {
    name: json.loads((FOLDER / f"{name}.json").read_text()) for name in ("vllm", "sglang")
}
DONE = {
    Handling.ROUTED: "routed",
    Handling.OWN: "answered",
    Handling.WEB: "batches",
    Handling.STORED: "to its instance",
    Handling.REFUSED: "refused",
}
# (path, method) of every route of both servers
ROUTES = sorted(
    {
        (path, method)
        for server in SERVERS.values()
        for path, taken in server["paths"].items()
        for method in taken["methods"]
    }
)


def table() -> str:
    """Write CSV: each path of these servers, whether Weir serves it, and with which methods, or why not."""
    text = StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["path", "Weir", "methods, or why not"])
    for path in sorted({path for path, _ in ROUTES}):
        row = find(path)
        assert row is not None, path
        writer.writerow([path, DONE[row.handling], row.why or " ".join(row.methods)])
    return text.getvalue()


if __name__ == "__main__":
    print(table(), end="")

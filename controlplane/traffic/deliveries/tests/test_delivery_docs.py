"""docs/delivery.md agrees with REST and the command."""

import re
from pathlib import Path

from controlplane.doors.api.api import api
from controlplane.traffic.deliveries import states

TEXT = (Path(__file__).resolve().parents[4] / "docs" / "delivery.md").read_text()


def test_each_operation_on_deliveries_is_named() -> None:
    paths = [
        path.removeprefix("/api/v1")
        for path, methods in api.get_openapi_schema()["paths"].items()
        if any("deliveries" in operation["tags"] for operation in methods.values())
    ]
    assert len(paths) > 15
    words = [re.sub(r"\{\w+\}", "ID", path).replace("/policies/ID", "BASE").split("/")[-1] for path in paths]
    assert [word for word in words if f"{word}`" not in TEXT] == []


def test_each_exit_status_is_explained() -> None:
    rows = re.findall(r"^\| `\w+` \| .+ \| \d \| (\d) \|$", TEXT, re.MULTILINE)
    assert {int(code) for code in rows} == states.MEANING.keys()

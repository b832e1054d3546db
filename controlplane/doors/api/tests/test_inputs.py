"""The API's page describes the inputs of each operation."""

from functools import cache

from controlplane.doors.api.reference.page import Input, inputs_of
from controlplane.management.commands import openapi_export

described = cache(openapi_export.schema)


def taken(path: str, method: str) -> dict[str, Input]:
    operation = described()["paths"][f"/api/v1{path}"][method]
    return {each.name: each for each in inputs_of(operation, described()["components"]["schemas"])}


def test_a_parameter_names_its_path_and_its_range() -> None:
    limit = taken("/receipts", "get")["limit"]
    assert (limit.place, limit.required, limit.allowed) == ("query", False, "whole number, 1 to 500; default 50")


def test_every_field_of_a_body_is_described() -> None:
    fields = taken("/experiments", "post")
    assert fields["pool"] == Input(
        "pool", "body", True, "text, 1 to 63 characters", "Each run starts a pool like this one, or simulates it"
    )
    assert fields["pacing"].allowed == "one of auto, timestamps, closed_loop; default auto"
    assert fields["arms"].allowed.startswith("list of text or object with ")
    assert fields["arms"].allowed.endswith(", 1 to 6 of them")


def test_the_accepted_kinds_of_a_file_are_described() -> None:
    (file,) = [each for each in taken("/traces", "post").values() if each.place == "body"]
    assert "text/csv" in file.name
    assert "64 MiB" in file.meaning


def test_every_operation_can_be_described() -> None:
    schemas = described()["components"]["schemas"]
    operations = [one for methods in described()["paths"].values() for one in methods.values()]
    assert all(each.place and each.name for one in operations for each in inputs_of(one, schemas))


def test_the_page_shows_the_descriptions(vera_client) -> None:
    page = vera_client.get("/api/v1/docs").content.decode()
    assert "<code>duration_s</code>" in page
    assert "number, 1 to 86,400; default 600.0" in page

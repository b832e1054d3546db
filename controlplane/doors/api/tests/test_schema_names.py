"""Two schemas with the same name would become one in the description of the API, which would be wrong about one of
them."""

from collections import Counter

from ninja import Schema

from controlplane.doors.api.api import api


def every_schema(base=Schema):
    for schema in base.__subclasses__():
        yield schema
        yield from every_schema(schema)


def test_every_schema_has_a_unique_name():
    assert api.get_openapi_schema()  # all operations are there
    names = Counter(schema.__name__ for schema in {*every_schema()} if schema.__module__.startswith("controlplane."))
    assert [name for name, count in names.items() if count > 1] == []

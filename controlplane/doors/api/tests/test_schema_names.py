"""Two types with the same name would become one in the API's description, which would then be wrong about one of
them."""

import json
from collections import Counter, defaultdict

from ninja import Schema

from controlplane.doors.api.api import api


def every_schema(base=Schema):
    for schema in base.__subclasses__():
        yield schema
        yield from every_schema(schema)


def test_every_schema_has_a_unique_name():
    assert api.get_openapi_schema()  # so that all operations exist
    names = Counter(schema.__name__ for schema in {*every_schema()} if schema.__module__.startswith("controlplane."))
    assert [name for name, count in names.items() if count > 1] == []


def test_every_type_of_bodies_and_answers_has_a_unique_name():
    """This covers dataclasses and TypedDicts, too."""
    meanings = defaultdict(set)
    assert api.get_openapi_schema()
    paths = [path for _, router in api._routers for path in router.path_operations.values()]
    for operation in (each for path in paths for each in path.operations):
        read = [(model, "validation") for model in operation.models]
        sent = [(model, "serialization") for model in operation.response_models.values() if isinstance(model, type)]
        for model, mode in read + sent:
            for name, meaning in model.model_json_schema(mode=mode).get("$defs", {}).items():
                meanings[name].add(json.dumps(meaning, sort_keys=True))
    assert {"Fact", "ExperimentResults"} <= meanings.keys()
    assert [name for name, several in meanings.items() if len(several) > 1] == []

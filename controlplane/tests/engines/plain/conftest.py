"""Two vLLM for all tests of this folder, as starting them takes longer than most of the tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from controlplane.tests.engines.fleet import CODE, Fleet, running

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep these tests together: tests of other folders that use a database would run in between, and end the
    engines."""
    items.sort(key=lambda item: HERE not in item.path.parents)


@pytest.fixture(scope="package")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Each cache holds 8,192 tokens, which a few conversations fill."""
    text = (CODE / "examples/cpu-plain.yaml").read_text().replace("./.engines", str(CODE / ".engines"))
    document = tmp_path_factory.mktemp("fleet") / "cpu-plain-small.yaml"
    document.write_text(text.replace('"1024"', '"256"').replace("max_model_len: 16384", "max_model_len: 4096"))
    with running(document) as made:
        yield made

"""Two real SGLang that Weir starts on a CPU: started, observed, predicted to the token, replaced."""

from collections.abc import Iterator

import pytest

from controlplane.tests.engines.fleet import CODE, Fleet, running
from controlplane.tests.engines.talks import Talk, hold, receipts

pytestmark = [pytest.mark.engines, pytest.mark.timeout(1200)]
BLOCK = 16  # tokens


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    assert (CODE / ".engines/sglang/.installed").exists(), "there is no SGLang: make sglang"
    with running(CODE / "examples/cpu-sglang.yaml") as made:
        yield made


def test_cached_tokens_of_sglang_are_predicted(fleet: Fleet) -> None:
    exact = lambda: all(">exact<" in fleet.page(f"/fleet/instances/{name}/") for name in fleet.instances())  # noqa: E731
    fleet.note("SGLang: its index is believed", fleet.until(exact, "the index to be believed", 120))
    answered = receipts(fleet, hold(fleet, [Talk(2 * number) for number in range(8)], turns=4, words=100))
    assert {one["index"] for one in answered} == {"exact"}
    near = [one for one in answered if abs(one["predicted_cached"] - one["cached_tokens"]) <= BLOCK]
    assert sum(one["cached_tokens"] > 0 for one in answered) > 16
    print(f"ENGINES SGLang: {len(near)} of {len(answered)} requests predicted within a block")
    assert len(near) / len(answered) >= 0.9, answered


def test_figures_of_sglang_are_on_its_page(fleet: Fleet) -> None:
    sample = fleet.one("tiny-0")["sample"]
    assert (sample["block_size"], sample["kv_blocks"]) == (BLOCK, 32_768 // BLOCK)
    assert sample["prompt_tokens_total"] > 0


def test_a_killed_engine_is_replaced(fleet: Fleet) -> None:
    epoch = fleet.one("tiny-1")["epoch"]
    fleet.kill("tiny-1")
    fleet.note("SGLang: kill -9: replaced", fleet.until(fleet.is_replaced("tiny-1", epoch), "a new one"))

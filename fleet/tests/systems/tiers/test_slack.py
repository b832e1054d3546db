"""The drive time that a prefill's layer leaves free, and the GPU resources that its reads require."""

import pytest

from fleet.engine.tiers.sizes import KvLayout
from fleet.systems.tiers.slack import commands_at_a_time, control_blocks

LLAMA = KvLayout(131_072, layers=32)


@pytest.mark.parametrize(("prefix", "blocks"), [(1, 1), (65_536, 1), (65_537, 2), (131_072, 2), (640 * 1024, 10)])
def test_a_control_block_holds_2048_reads_of_one_half_of_a_block(prefix: int, blocks: int) -> None:
    assert control_blocks(LLAMA, prefix) == blocks


def test_the_number_of_concurrent_commands_follows_from_rate_and_size() -> None:
    assert commands_at_a_time(2 * 0.29e9, 4096) == pytest.approx(2)

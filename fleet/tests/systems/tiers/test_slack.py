"""What a layer of a prefill leaves of the drives' time, and what its reads need of the GPU."""

import pytest

from fleet.engine.tiers.sizes import KvLayout
from fleet.systems.tiers.slack import commands_at_a_time, control_blocks

LLAMA = KvLayout(131_072, layers=32)


@pytest.mark.parametrize(("prefix", "blocks"), [(1, 1), (65_536, 1), (65_537, 2), (131_072, 2), (640 * 1024, 10)])
def test_a_control_block_holds_2048_reads_of_k_or_v_of_a_block(prefix: int, blocks: int) -> None:
    assert control_blocks(LLAMA, prefix) == blocks


def test_commands_at_a_time_follow_from_the_rate_and_their_size() -> None:
    assert commands_at_a_time(2 * 0.29e9, 4096) == pytest.approx(2)

"""Open questions of the publication: profiling, events, reduces on the drives' link, drives of another node."""

import pytest

from fleet.engine.law import law_of
from fleet.engine.profiles import profile
from fleet.engine.tiers.devices import REMOTE, SSD
from fleet.engine.tiers.loading import effective_bytes_per_s
from fleet.engine.tiers.sizes import layout_of
from fleet.systems.tiers.unanswered import events_share, of_another_node, profiling_s, reduced_bytes

LAW, LAYOUT = law_of(profile()), layout_of(profile())


def test_profiling_twice_as_long_prompts_takes_nearly_four_times_as_long() -> None:
    assert profiling_s(LAW, 2 << 20) / profiling_s(LAW, 1 << 20) == pytest.approx(4, rel=0.05)
    assert profiling_s(LAW, 1 << 20) > 600 > 60 > profiling_s(LAW, 131_072)


def test_events_of_a_microsecond_around_each_layer_take_a_share_of_a_decode_step() -> None:
    assert events_share(LAW, 32, 1e-6) * LAW.step_s(1, 0, 0, 1) == pytest.approx(64e-6)
    assert 0.005 < events_share(LAW, 32, 1e-6) < 0.02


def test_two_ring_all_reduces_send_twice_what_each_gpu_lacks() -> None:
    assert reduced_bytes(4_096, 1, 1_000) == 0
    assert reduced_bytes(4_096, 2, 1_000) == 2 * 1_000 * 4_096 * 2
    assert reduced_bytes(4_096, 4, 1_000) == 1.5 * reduced_bytes(4_096, 2, 1_000)


def test_drives_of_another_node_are_slower_than_either_its_cpu_or_the_network() -> None:
    by_cpu, by_gpus = (effective_bytes_per_s(one, LAYOUT, 131_072) for one in of_another_node(LAYOUT).values())
    alone = effective_bytes_per_s(SSD, LAYOUT, 131_072)
    assert 1 / by_cpu == pytest.approx(1 / alone + 1 / REMOTE.read_bytes_per_s, rel=0.01)
    assert alone < by_gpus < REMOTE.read_bytes_per_s

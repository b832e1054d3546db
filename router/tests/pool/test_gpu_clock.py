"""Requests are charged exactly the time during which their endpoint was busy, whatever started and ended."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.pool.endpoint import Endpoint
from router.pool.load.gpu_clock import GpuClock, GpuSpent, prefill_weight
from router.tests.conftest import instance

MOMENTS = st.lists(
    st.tuples(st.sampled_from(["join", "leave"]), st.integers(0, 4_000), st.floats(0.001, 5.0)), min_size=1, max_size=40
)


@given(MOMENTS, st.integers(1, 8))
def test_the_charges_sum_to_the_time_during_which_the_endpoint_was_busy(moments, gpus):
    clock, now, busy_s = GpuClock(), 100.0, 0.0
    clock.priced(gpus, 3600.0 * gpus, now)
    there, ended = [], []
    for what, tokens, later_s in moments:
        if what == "join":
            weight = prefill_weight(tokens)
            there.append((weight, clock.join(weight, now), GpuSpent()))
        elif there:
            weight, since, spent = there.pop(0)
            clock.leave(weight, since, now, spent)
            ended.append(spent)
        now += later_s
        busy_s += later_s if there else 0.0
    for weight, since, spent in there:
        clock.leave(weight, since, now, spent)
        ended.append(spent)
    assert sum(spent.gpu_s for spent in ended) == pytest.approx(gpus * busy_s)
    assert sum(spent.dollars for spent in ended) == pytest.approx(gpus * busy_s)  # at a dollar per GPU-second


def test_other_routers_requests_are_charged_their_share():
    clock, spent = GpuClock(), GpuSpent()
    clock.priced(1, None, 0.0)
    clock.take_others((4, 512, 2), 0.0)  # two decodes and two prompts of 256 tokens
    since = clock.join(1.0, 0.0)
    clock.leave(1.0, since, 10.0, spent)
    assert (spent.gpu_s, spent.dollars) == (pytest.approx(2.0), 0.0)


def test_three_routers_that_learn_of_each_other_late_charge_the_busy_time_within_2_percent():
    draw, spent, busy_s, step_s = Random(1), GpuSpent(), 0.0, 0.01
    clocks, there = [GpuClock() for _ in range(3)], [[], [], []]  # 25 requests/s, 0.4 s each
    for clock in clocks:
        clock.priced(1, None, 0.0)
    for step in range(6_000):
        now = step * step_s
        for clock, mine in zip(clocks, there, strict=True):
            for ends, since in [one for one in mine if one[0] <= now]:
                clock.leave(1.0, since, now, spent)
                mine.remove((ends, since))
            if draw.random() < 25 / 3 * step_s:
                mine.append((now + draw.uniform(0.0, 0.8), clock.join(1.0, now)))
            if step % 20 == 0:  # changes are reported at most 0.2 s late (router/sync/peers.py)
                others = sum(map(len, there)) - len(mine)
                clock.take_others((others, 0, others), now)
        busy_s += step_s if any(there) else 0.0
    charged = spent.gpu_s + sum(clock.join(0.0, now) - since for clock, mine in zip(clocks, there, strict=True)
                                for _, since in mine)  # fmt: skip
    assert charged == pytest.approx(busy_s, rel=0.02)


def test_a_long_prompt_is_charged_more_than_a_decode_beside_it_until_its_first_content():
    endpoint = Endpoint(instance("a", "http://127.0.0.1:1", gpus=2, dollars_per_hour=10.0))
    long, short = GpuSpent(), GpuSpent()
    decode = endpoint.lease(0, lambda: None, short)
    decode.first_content()
    with endpoint.lease(256_000, lambda: None, long) as lease:
        lease.charge(1)
        for _ in range(20_000):
            pass
        lease.first_content()
    decode.end()
    assert long.gpu_s > short.gpu_s > 0
    assert long.dollars == pytest.approx(long.gpu_s * 5.0 / 3600)

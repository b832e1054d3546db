"""The queue of one engine, against the Pollaczek–Khinchine formula, and with writes that delay reads."""

from dataclasses import replace

import pytest

from fleet.engine.law import law_of
from fleet.engine.profiles import profile
from fleet.engine.tiers.devices import SSD, SSD_TUTTI
from fleet.engine.tiers.sizes import layout_of
from fleet.systems.tiers.load import gaps
from fleet.systems.tiers.queueing import Contention, Served, highest_rate, middle, serve
from fleet.systems.tiers.serving import PrefillJob, TieredEngine

ENGINE = TieredEngine(law_of(profile()), layout_of(profile()), 400_000, api_s=0.0, tokenize_s=0.0)
COMPUTE = PrefillJob(1_000, 1_000, 0, 0, 1.0, 0.0, 0.0, 0.0, 0.0)
KV = ENGINE.layout.bytes(1)


def test_deterministic_prefills_wait_as_in_m_d_1() -> None:
    """At load ρ the mean wait is ρ/(2(1 − ρ)) of a prefill."""
    n = 40_000
    found = serve(ENGINE, None, [COMPUTE] * n, gaps(1, n), 0.5)
    assert found.queue_s == pytest.approx(0.5, rel=0.05)
    assert found.ttft_s == pytest.approx(1 + found.queue_s)
    assert found.busy_share == pytest.approx(0.5, rel=0.02)


def test_the_api_and_the_tokenizer_precede_the_queue() -> None:
    slow = replace(ENGINE, api_s=0.5, tokenize_s=1e-3)
    found = serve(slow, None, [COMPUTE], [1.0], 1.0)
    assert found.ttft_s == pytest.approx(0.5 + 1.0 + 1.0)
    assert found.queue_s == 0


def test_with_naive_writes_a_concurrent_load_is_slower() -> None:
    """The first prefill writes 1,000 tokens from 1.0 s on; the second begins then and loads for 0.1 s."""
    write_s = 1_000 * KV / SSD.write_bytes_per_s
    load = PrefillJob(1_000, 0, 0, 1_000, 0.5, 0.1, 0.1, 0.1, 0.0)
    found = serve(ENGINE, SSD, [COMPUTE, load], [1.0, 0.0], 1.0)
    assert found.writes_s == pytest.approx(min(write_s, 0.1 * (29 / 12 - 1)) / 2, rel=0.02)
    halved = serve(ENGINE, SSD, [COMPUTE, load], [1.0, 0.0], 1.0, Contention(read_share=0.5))
    assert halved.writes_s == pytest.approx(min(write_s, 0.1) / 2)
    quick = serve(ENGINE, SSD, [COMPUTE, load], [1.0, 0.0], 1.0, Contention(read_share=1.0))
    assert quick.writes_s == 0
    assert found.backlog_bytes == pytest.approx(1_000 * KV)


def test_slack_writes_use_the_time_between_prefills_and_the_slack_in_them() -> None:
    device = replace(SSD_TUTTI, write_bytes_per_s=1_000 * KV)  # the tokens of one prefill per second
    apart = serve(ENGINE, device, [COMPUTE] * 3, [1.0, 4.0, 4.0], 1.0)
    assert apart.backlog_bytes == pytest.approx(1_000 * KV)
    close = serve(ENGINE, device, [COMPUTE] * 3, [1.0, 0.0, 0.0], 1.0)
    assert close.backlog_bytes == pytest.approx(3_000 * KV)
    slack = serve(ENGINE, device, [COMPUTE._replace(slack_s=0.75)] * 3, [1.0, 0.0, 0.0], 1.0)
    assert slack.backlog_bytes == pytest.approx(1_500 * KV)
    assert {apart.writes_s, close.writes_s, slack.writes_s} == {0.0}


def test_a_prefill_waits_while_too_many_blocks_are_unwritten() -> None:
    """The pool may have 400 unwritten tokens, so the second prefill waits until 600 are written at the full rate."""
    device = replace(SSD_TUTTI, write_bytes_per_s=1_000 * KV)
    found = serve(ENGINE, device, [COMPUTE] * 2, [1.0, 0.0], 1.0, Contention(backlog_share=0.001))
    assert found.writes_s == pytest.approx(0.6 / 2)


def test_undisturbed_reads_never_wait() -> None:
    device = replace(SSD, contention="none")
    assert serve(ENGINE, device, [COMPUTE] * 50, [0.1] * 50, 1.0).writes_s == 0


def test_the_median_of_runs_is_taken_for_each_field() -> None:
    runs = [Served(*(float(value + shift) for shift in range(7))) for value in (1, 5, 2)]
    assert middle(runs) == Served(2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0)


def test_the_highest_rate_is_determined_by_bisection() -> None:
    assert highest_rate(lambda rate: rate, 1.0, 4.0) == pytest.approx(1.0, abs=4 / 2**10)
    assert highest_rate(lambda _: 2.0, 1.0, 4.0) == 0

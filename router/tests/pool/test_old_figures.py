"""An instance's reported load counts until it is too old by this host's clock; then its load is unknown."""

import pytest
from msgspec import structs

from router.contract.redis.sample import InstanceSample
from router.contract.redis.staleness import SAMPLE_OFFLINE_S, SAMPLE_UNKNOWN_S, is_recent
from router.policy.types import KV_UNKNOWN
from router.pool.endpoint import Endpoint
from router.tests.conftest import instance

NOW = 1_000.0


def sampled(at: float, *, epoch: int = 1) -> InstanceSample:
    return InstanceSample(id="a", epoch=epoch, at=at, kv_usage=0.4, waiting=2)


@pytest.fixture
def endpoint() -> Endpoint:
    made = Endpoint(instance("a", "http://127.0.0.1:1"))
    made.take_sample(sampled(NOW), NOW)
    return made


def load(endpoint: Endpoint) -> tuple[float, int]:
    return endpoint.kv_usage, endpoint.waiting


def test_a_sample_is_used_until_its_instance_is_offline() -> None:
    ages = {None: False, -3600.0: True, 0.0: True, SAMPLE_OFFLINE_S: True, SAMPLE_OFFLINE_S + 0.1: False}
    assert {age: is_recent(age) for age in ages} == ages


def test_figures_count_until_they_are_too_old(endpoint: Endpoint) -> None:
    endpoint.look(NOW + SAMPLE_UNKNOWN_S)
    assert load(endpoint) == (0.4, 2)
    endpoint.look(NOW + SAMPLE_UNKNOWN_S + 0.1)
    assert load(endpoint) == (KV_UNKNOWN, 0)


def test_reading_the_same_sample_again_does_not_make_figures_newer(endpoint: Endpoint) -> None:
    for second in range(1, 8):
        endpoint.take_sample(sampled(NOW), NOW + second)
    assert load(endpoint) == (KV_UNKNOWN, 0)


def test_the_next_sample_makes_the_load_known_again(endpoint: Endpoint) -> None:
    endpoint.look(NOW + 60)
    endpoint.take_sample(sampled(NOW + 60), NOW + 60)
    assert load(endpoint) == (0.4, 2)


def test_a_node_whose_clock_is_slow_does_not_make_figures_old(endpoint: Endpoint) -> None:
    for second in range(1, 20):
        endpoint.take_sample(sampled(NOW + second - 10), NOW + second)
        endpoint.look(NOW + second)
    assert load(endpoint) == (0.4, 2)


def test_a_sample_left_over_from_long_ago_reports_nothing() -> None:
    fresh = Endpoint(instance("a", "http://127.0.0.1:1"))
    fresh.take_sample(sampled(NOW - SAMPLE_OFFLINE_S - 1), NOW)
    assert load(fresh) == (KV_UNKNOWN, 0)


def test_a_new_process_has_no_load_until_it_reports_one(endpoint: Endpoint) -> None:
    endpoint.take_sample(sampled(NOW + 1, epoch=2), NOW + 1)
    assert load(endpoint) == (0.0, 0)


def test_an_engine_without_a_metrics_page_is_never_late() -> None:
    silent = Endpoint(instance("a", "http://127.0.0.1:1"))
    silent.look(NOW)
    assert load(silent) == (0.0, 0)


def counted(at: float, tokens: float) -> InstanceSample:
    return InstanceSample(
        id="a", epoch=1, at=at, kv_usage=0.0, waiting=0, prompt_tokens_total=tokens, generation_tokens_total=tokens
    )


def served(endpoint: Endpoint) -> None:
    lease = endpoint.lease(10, lambda: None)
    lease.first_content()
    lease.end()


def test_figures_that_do_not_change_while_requests_end_are_unknown(endpoint: Endpoint) -> None:
    for second in range(1, 12):
        served(endpoint)
        endpoint.take_sample(counted(NOW + second, 7.0), NOW + second)
    assert load(endpoint) == (KV_UNKNOWN, 0)
    endpoint.take_sample(counted(NOW + 12, 8.0), NOW + 12)
    assert load(endpoint) == (0.0, 0)


def test_an_idle_instance_whose_figures_do_not_change_has_no_load(endpoint: Endpoint) -> None:
    for second in range(1, 60):
        endpoint.take_sample(counted(NOW + second, 7.0), NOW + second)
    assert load(endpoint) == (0.0, 0)


@pytest.mark.parametrize("figure", ["kv_usage", "waiting"])
def test_a_figure_that_is_suddenly_left_out_is_not_zero(endpoint: Endpoint, figure: str) -> None:
    endpoint.take_sample(structs.replace(sampled(NOW + 1), **{figure: None}), NOW + 1)
    assert load(endpoint) == (KV_UNKNOWN, 0)
    endpoint.take_sample(sampled(NOW + 2), NOW + 2)
    assert load(endpoint) == (0.4, 2)


def test_a_figure_that_an_engine_never_reports_counts_as_zero() -> None:
    plain = Endpoint(instance("a", "http://127.0.0.1:1"))
    for second in range(3):
        plain.take_sample(InstanceSample(id="a", epoch=1, at=NOW + second, waiting=2), NOW + second)
    assert load(plain) == (0.0, 2)


def test_requests_on_a_page_that_stopped_updating_no_longer_count_as_held(endpoint: Endpoint) -> None:
    endpoint.progress.came()
    endpoint.take_sample(structs.replace(sampled(NOW + 1), running=4.0), NOW + 1)
    for second in range(2, 60):
        endpoint.take_sample(structs.replace(sampled(NOW + 1), running=4.0), NOW + second)
        endpoint.look(NOW + second)
        endpoint.progress.look(1.0, holds=False, alive=True)
    assert endpoint.progress.quiet_s <= 5


def test_an_engine_that_refuses_every_request_as_full_does_not_count_as_empty(endpoint: Endpoint) -> None:
    def rejecting(second: int, total: float | None, epoch: int = 1) -> tuple[float, int]:
        sample = structs.replace(sampled(NOW + second, epoch=epoch), rejected_total=total)
        for _ in range(2):  # routers read a sample again until there is a newer one
            endpoint.take_sample(sample, NOW + second)
        return load(endpoint)

    assert rejecting(1, 5) == (0.4, 2), "from before the router's start"
    assert [rejecting(2, 6), rejecting(3, 6), rejecting(4, 8)] == [(KV_UNKNOWN, 0), (0.4, 2), (KV_UNKNOWN, 0)]
    assert [rejecting(5, 0), rejecting(6, None)] == [(0.4, 2), (0.4, 2)], "a new counter, or none"

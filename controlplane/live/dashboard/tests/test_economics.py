"""The cost of output tokens at the current load: on Live and the wall, and unknown without GPUs or tokens."""

import pytest

from controlplane.live.dashboard.frame.build import FrameInputs, build_frame
from controlplane.live.dashboard.frame.totals import averaged, economics, of_pools
from controlplane.live.dashboard.frame.types import PoolTotals
from router.contract.redis.published import FleetValue, PublishedInstance


def test_dollars_per_million_and_tokens_per_gpu_second() -> None:
    tokens_gpu_s, per_million = economics([600.0, None, 400.0], [1, None, 1], [5.0, None, 5.0])
    assert tokens_gpu_s == 500
    assert per_million == pytest.approx(10 / (1_000 * 3600) * 1e6)


@pytest.mark.parametrize(
    "columns", [[[None], [1], [5.0]], [[0.0], [1], [5.0]], [[600.0], [None], [None]], [[], [], []]]
)
def test_the_cost_is_unknown_without_tokens_or_gpus(columns: list[list[float | None]]) -> None:
    assert economics(*columns) == (None, None)


def test_a_stopped_instance_costs_nothing_and_one_without_gpus_is_unknown() -> None:
    def entry(number: int, state: str, dollars: float | None) -> PublishedInstance:
        return PublishedInstance(
            id=f"p-{number}", epoch=1, url="", state=state, routable=False, gpus=2, dollars_per_hour=dollars
        )

    instances = (entry(0, "ready", 10.0), entry(1, "stopped", 10.0), entry(2, "ready", None))
    fleet = FleetValue(pool="p", at=0.0, instances=instances)
    frame = build_frame(1.0, FrameInputs(fleets={"p": fleet}))
    assert frame["instances"]["dollars_h"] == [10.0, None, None]
    assert frame["instances"]["gpus"] == [2, None, None]
    assert frame["totals"]["*"]["per_million"] is frame["totals"]["p"]["per_million"] is None


def test_the_shown_figures_follow_those_of_each_second_slowly() -> None:
    def of(tokens_s: float) -> dict[str, PoolTotals]:
        return of_pools(["p"], {"pool": ["p"], **figures(tokens_s)}, {"p": {}})

    def figures(tokens_s: float) -> dict[str, list[float]]:
        return {
            "tokens_s": [tokens_s],
            "gpus": [2],
            "dollars_h": [10.0],
            "running": [0],
            "age_s": [0],
            "last_known": [False],
            **{key: [0] for key in ("waiting", "gpu_use", "gpu_memory", "gpu_power_w", "gpu_simulated")},
        }

    once, idle = of(1_000.0), of(0.0)
    for passed_s, least in ((1.0, 950.0), (3600.0, 500.0)):
        now = averaged(of(500.0), once, passed_s)["p"]
        tokens_s = 2 * (now["tokens_gpu_s"] or 0)
        assert least <= tokens_s <= least + 50
        assert now["per_million"] == pytest.approx(10 / (tokens_s * 3600) * 1e6)
    assert averaged(of(500.0), idle, 1.0) == of(500.0)
    assert averaged(of(0.0), once, 1.0)["p"]["per_million"] is None

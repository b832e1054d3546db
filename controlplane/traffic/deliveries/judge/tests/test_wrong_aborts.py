"""The judge's error rate, and its time to a right verdict; `python -m bench.canary` measures both with more runs."""

import math

import pytest

from bench.canary import streams
from bench.canary.__main__ import (
    COSTLY,
    HOURS_UNTIL_SEEN,
    LIVE,
    Scene,
    arguments,
    hour,
    judged,
    scene_of,
    steps,
    tables,
    until_seen,
)
from bench.canary.streams import Traffic

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("turns", [1.4, 20.0])
def test_arms_without_a_difference_are_not_aborted(turns: float) -> None:
    """Each runs for six hours; the documentation has hundreds."""
    traffic = Traffic(turns)
    limits = streams.limits(traffic)
    found = [hour(traffic, limits, seed) for seed in range(1, 7)]
    assert not any(each.failed or each.held for each in found)


@pytest.mark.parametrize(("turns", "hours"), [(1.4, 1), (20.0, HOURS_UNTIL_SEEN)])
def test_a_doubled_ttft_of_heavy_requests_is_detected_within_60_requests(turns: float, hours: int) -> None:
    traffic = Traffic(turns, ttft_factor=2.0, hours=hours)
    limits = streams.limits(traffic)
    assert all(until_seen(traffic, limits, seed) <= 60 for seed in range(1, 11))


def test_a_candidate_equal_to_live_is_never_found_twice_as_slow() -> None:
    traffic = Traffic(1.4, requests=3_000)
    assert until_seen(traffic, streams.limits(traffic), 1) == math.inf


@pytest.fixture(scope="module")
def scene() -> Scene:
    """Generated sessions for two minutes on four engines."""
    return scene_of(arguments(["--engines", "4", "--minutes", "2", "--session-every-s", "1.5"]))


def test_tables_have_a_row_for_each_candidate(scene: Scene) -> None:
    shown = list(steps(scene, ["round_robin"], [1]))
    assert [line.count("|") for line in shown] == [10] * 3
    said = list(judged(scene, [LIVE, COSTLY], [1]))
    assert said[2].startswith(f"| {LIVE} | 1 | 0 |")
    assert len(said) == 4


def test_only_known_parts_and_files_are_taken(capsys: pytest.CaptureFixture[str]) -> None:
    for given, said in ((["nonsense"], "PART nonsense"), (["--trace", "/no/such"], "--trace /no/such")):
        with pytest.raises(SystemExit):
            arguments(given)
        assert said in capsys.readouterr().err


def test_each_part_can_be_run_alone() -> None:
    found = list(tables(arguments(["hours", "--hours", "1"])))
    assert [line.startswith("| sessions of") for line in found] == [False, False, True, True, False]

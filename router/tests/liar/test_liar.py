"""Whatever an engine says, each request has one outcome, which is true, and nobody else pays for it."""

import pytest

from router.tests.liar import mutations
from router.tests.liar.machine import LiarMachine
from router.tests.liar.stage import Stage
from router.tests.trying import LONGEST, TIMES, schedules_until_broken, try_schedules

pytestmark = pytest.mark.timeout(LONGEST)
STEPS = 8


def test_no_lie_of_an_engine_is_taken_for_the_truth_or_paid_for_by_others(stage: Stage) -> None:
    try_schedules(lambda: LiarMachine(stage), 40, steps=STEPS)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(1, 3))
def test_none_of_many_lies_is_taken_for_the_truth_or_paid_for_by_others(stage: Stage, number: int) -> None:
    try_schedules(lambda: LiarMachine(stage), 1000 * TIMES, number, STEPS)


@pytest.mark.slow
@pytest.mark.parametrize("name", mutations.MUTATIONS)
def test_without_one_of_its_mends_a_lie_is_taken_for_the_truth_or_paid_for_by_others(
    stage: Stage, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutations.MUTATIONS[name](monkeypatch)
    assert schedules_until_broken(lambda: LiarMachine(stage), 600, STEPS)

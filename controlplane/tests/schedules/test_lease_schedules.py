import pytest

from controlplane.base.schedule.lease import SILENT_S
from controlplane.tests.schedules import mutations
from controlplane.tests.schedules.lease_machine import LeaseMachine
from controlplane.tests.schedules.stage import Stage
from router.tests.trying import LONGEST, TIMES, schedules_until_broken, try_schedules

pytestmark = pytest.mark.timeout(LONGEST)
# Seeds that violate a guarantee within 60 schedules, where others may need 400.
SOONEST = {
    "fence_not_compared": 8,
    "seen_before_it_was_read": 2,
    "steps_not_fenced": 1,
    "taken_by_whoever_comes": 6,
}


def test_no_schedule_leads_to_two_leaders_or_none(stage: Stage) -> None:
    try_schedules(lambda: LeaseMachine(stage), 15)


def test_a_long_poll_does_not_count_as_the_leaders_silence(stage: Stage) -> None:
    state = LeaseMachine(stage)
    state.looks_after_the_lease(which=0, writes=1)
    state.all_stand_still(seconds=SILENT_S)
    state.time_passes(beats=1, is_led=True)
    state.teardown()


@pytest.mark.slow
def test_no_schedule_leaves_two_leaders_or_none(stage: Stage) -> None:
    try_schedules(lambda: LeaseMachine(stage), 50 * TIMES, 1)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(mutations.LEASE))
def test_with_a_fix_removed_some_schedule_leads_to_two_leaders_or_none(
    stage: Stage, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutations.LEASE[name](monkeypatch)
    assert schedules_until_broken(lambda: LeaseMachine(stage), 400, number=SOONEST.get(name, 0))

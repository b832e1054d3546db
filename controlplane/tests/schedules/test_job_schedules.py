import pytest

from controlplane.tests.schedules import mutations
from controlplane.tests.schedules.jobs_machine import JobsMachine
from controlplane.tests.schedules.stage import Stage
from router.tests.trying import LONGEST, TIMES, schedules_until_broken, try_schedules

pytestmark = pytest.mark.timeout(LONGEST)


def test_no_schedule_gives_a_job_two_holders(stage: Stage) -> None:
    try_schedules(lambda: JobsMachine(stage), 25)


def test_a_worker_that_pauses_within_its_claim_does_not_get_the_job_of_its_successor(stage: Stage) -> None:
    state = JobsMachine(stage)
    state.works(status="done", writes=1)
    state.goes_on(far="a seam", which=0)
    state.comes_again(how="lost", ends=0, again=0)
    state.works(status="done", writes=3)
    state.goes_on(far="to its end", which=0)
    state.teardown()


@pytest.mark.slow
def test_none_of_many_schedules_gives_a_job_two_holders(stage: Stage) -> None:
    try_schedules(lambda: JobsMachine(stage), 60 * TIMES, 1)


@pytest.mark.slow
@pytest.mark.parametrize("name", mutations.JOBS)
def test_with_a_fix_removed_a_schedule_gives_a_job_two_holders(
    stage: Stage, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutations.JOBS[name](monkeypatch)
    assert schedules_until_broken(lambda: JobsMachine(stage), 400)

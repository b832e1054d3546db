import pytest

from controlplane.tests.schedules import mutations
from controlplane.tests.schedules.publication_machine import PublicationMachine
from controlplane.tests.schedules.stage import Stage
from router.tests.trying import LONGEST, TIMES, schedules_until_broken, try_schedules

pytestmark = pytest.mark.timeout(LONGEST)
# Seeds that break the promise within 60 schedules, where others may need 400.
SOONEST = {"keeps_its_share": 4, "own_approval_counts": 5, "rules_asked_early": 3}


def test_no_schedule_of_publications_breaks_a_promise(stage: Stage) -> None:
    try_schedules(lambda: PublicationMachine(stage), 15)


@pytest.mark.slow
def test_many_schedules_of_publications_break_no_promise(stage: Stage) -> None:
    try_schedules(lambda: PublicationMachine(stage), 60 * TIMES, 1)


@pytest.mark.slow
@pytest.mark.parametrize("name", mutations.PUBLICATION)
def test_without_one_of_its_mends_a_schedule_breaks_a_promise(
    stage: Stage, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutations.PUBLICATION[name](monkeypatch)
    most = 60 if name in SOONEST else 400
    assert schedules_until_broken(lambda: PublicationMachine(stage), most, number=SOONEST.get(name, 0))

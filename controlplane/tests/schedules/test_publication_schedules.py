import pytest

from controlplane.tests.schedules import mutations
from controlplane.tests.schedules.publication_machine import PublicationMachine
from controlplane.tests.schedules.stage import Stage
from router.tests.trying import LONGEST, TIMES, schedules_until_broken, try_schedules

pytestmark = pytest.mark.timeout(LONGEST)
# Seeds that violate a guarantee within 60 schedules, where others may need 400.
SOONEST = {"keeps_its_share": 4, "own_approval_counts": 5, "rules_asked_early": 3}


def test_no_schedule_of_publications_violates_a_guarantee(stage: Stage) -> None:
    try_schedules(lambda: PublicationMachine(stage), 15)


@pytest.mark.slow
def test_many_schedules_of_publications_violate_no_guarantee(stage: Stage) -> None:
    try_schedules(lambda: PublicationMachine(stage), 60 * TIMES, 1)


@pytest.mark.slow
@pytest.mark.parametrize("name", mutations.PUBLICATION)
def test_with_a_fix_removed_a_schedule_violates_a_guarantee(
    stage: Stage, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutations.PUBLICATION[name](monkeypatch)
    most = 60 if name in SOONEST else 400
    assert schedules_until_broken(lambda: PublicationMachine(stage), most, number=SOONEST.get(name, 0))

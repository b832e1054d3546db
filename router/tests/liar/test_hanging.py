"""An engine that hangs leaves routing, and comes back when it is well, whatever its metrics page says."""

import pytest

from router.tests.liar import mutations, pages, plans
from router.tests.liar.machine import LiarMachine
from router.tests.liar.stage import Stage
from router.tests.trying import LONGEST

pytestmark = pytest.mark.timeout(LONGEST)


def hang(stage: Stage, page: str, path: str = plans.COMPLETIONS) -> None:
    machine = LiarMachine(stage)
    machine.begins(goods=1, liars=1)
    machine.asks_often(path, (None, None), plans.GOOD, 2)
    machine.hangs(page, path)
    machine.is_well_again()
    machine.teardown()


def test_an_engine_that_hangs_gets_no_requests_until_it_is_well_whatever_its_page_says(stage: Stage) -> None:
    for page in pages.NAMES:
        hang(stage, page)


@pytest.mark.parametrize("name", mutations.STALLS)
def test_without_one_of_its_mends_a_hanging_engine_gets_requests_or_a_well_one_none(
    stage: Stage, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutations.STALLS[name](monkeypatch)
    with pytest.raises(AssertionError, match=r"it hangs|it is well"):
        hang(stage, "true")

"""An engine that hangs gets no more requests until it has recovered, whatever its metrics page says."""

from typing import Any

import pytest

from router.tests.liar import mutations, pages, plans
from router.tests.liar.machine import LiarMachine
from router.tests.liar.plans import Plan
from router.tests.liar.stage import Stage
from router.tests.trying import LONGEST

pytestmark = pytest.mark.timeout(LONGEST)


def hang(stage: Stage, page: str, path: str = plans.COMPLETIONS, lie: Plan = plans.HANGS, **how: Any) -> None:
    machine = LiarMachine(stage)
    machine.begins(goods=1, liars=1)
    machine.asks_often(path, (None, None), plans.GOOD, 2)
    machine.hangs(page, path, lie, **how)
    machine.is_well_again()
    machine.teardown()


def hang_with_and_without_probes(stage: Stage) -> None:
    for answers_probes in (False, True):
        hang(stage, "true", answers_probes=answers_probes)


def test_an_engine_that_hangs_gets_no_requests_until_it_recovers_whatever_its_page_says(stage: Stage) -> None:
    for page in pages.NAMES:
        hang(stage, page)


def test_an_engine_that_answers_only_the_routers_own_requests_gets_no_client_requests(stage: Stage) -> None:
    for page in ("true", "stands still", "nothing", "late"):
        hang(stage, page, answers_probes=True)


@pytest.mark.slow
@pytest.mark.parametrize("at", [-1, 0, 1], ids=["nothing", "a head", "a beginning"])
def test_whatever_an_engine_sends_before_it_hangs_it_gets_no_requests_by_any_path(stage: Stage, at: int) -> None:
    for path in plans.PATHS:
        for streams in (None, True) if path in plans.STREAMED else (None,):
            hang(stage, "true", path, Plan(end="stays", at=at), streams=streams, answers_probes=True)


@pytest.mark.parametrize("name", mutations.STALLS)
def test_without_a_fix_a_hanging_engine_gets_requests_or_a_healthy_one_gets_none(
    stage: Stage, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutations.STALLS[name](monkeypatch)
    with pytest.raises(AssertionError, match=r"it hangs|it is well"):
        hang_with_and_without_probes(stage)

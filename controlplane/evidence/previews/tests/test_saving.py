"""The daily saving of a draft: tokens that are not computed, their GPU-hours, their price."""

from dataclasses import replace
from typing import Any, cast

import pytest
import redis

from controlplane.evidence.previews.analysis.saving import is_sure, saving_of
from controlplane.evidence.previews.analysis.types import Bounds, Saving
from controlplane.evidence.previews.display import saving
from controlplane.evidence.previews.models import Preview
from controlplane.evidence.previews.report import report
from controlplane.evidence.previews.tests.conftest import OTTO
from controlplane.evidence.previews.tests.rows import preview_of
from controlplane.evidence.twin.prompt_cost import PromptCost
from controlplane.traffic.policies import selectors as policies
from controlplane.traffic.policies import services as policy_services
from controlplane.traffic.policies.models import Draft, Policy
from controlplane.traffic.policies.tests.conftest import WHY
from router.contract.redis import codec, redis_keys
from router.contract.redis.use import SavingLines

COST = PromptCost(0.0001, has_gpus=True)


def test_cached_tokens_are_converted_to_gpu_hours_and_dollars() -> None:
    found = saving_of(
        {"live": 1_000.0, "draft": 900.0}, PromptCost(0.02, has_gpus=True), 5.0, {"low": 50.0, "high": 150.0}
    )
    assert found is not None
    hours = 100 * 86_400 * 0.02 / 3_600
    assert found == {
        "new_tokens": 8_640_000,
        "low": 4_320_000,
        "high": 12_960_000,
        "gpu_hours": pytest.approx(hours, rel=1e-3),
        "dollars": pytest.approx(5 * hours, rel=1e-3),
    }


def test_a_draft_that_computes_more_costs_more() -> None:
    found = saving_of({"live": 900.0, "draft": 1_000.0}, COST, 5.0, {"low": -150.0, "high": -50.0})
    assert found is not None
    assert found["new_tokens"] == -8_640_000
    assert saving(found).startswith("8.64 million prompt tokens more to compute (4.32 to 13 million), ")
    assert "$" in saving(found)


def test_a_saving_is_unknown_without_answers_and_has_no_price_without_gpus() -> None:
    assert saving_of({"live": None, "draft": 1.0}, COST, 5.0) is None
    assert saving(None) == "–"
    found = saving_of({"live": 2.0, "draft": 1.0}, replace(COST, has_gpus=False), 5.0)
    assert found is not None
    assert found["dollars"] is None
    assert "$" not in saving(found)


@pytest.mark.parametrize(
    "bounds", [None, {"low": -10.0, "high": 150.0}, {"low": 0.0, "high": 150.0}, {"low": -150.0, "high": 10.0}]
)
def test_a_saving_that_may_be_zero_has_no_figure(bounds: Bounds | None) -> None:
    found = saving_of({"live": 1_000.0, "draft": 900.0}, COST, 5.0, bounds)
    assert saving(found) == "no difference that these requests can show"


def test_a_saving_of_an_earlier_version_has_no_interval_and_no_figure() -> None:
    assert not is_sure(cast(Saving, {"new_tokens": 1, "gpu_hours": 1.0, "dollars": 1.0}))


SAVED = {"new_tokens": 8_640_000, "low": 5_000_000, "high": 12_000_000, "gpu_hours": 24.0, "dollars": 120.0}
RESULT: dict[str, Any] = {"classes": {"all": {"n": 1900}}, "saving": SAVED, "requests_per_s": 10.0}


def reported(client: redis.Redis) -> SavingLines:
    report()
    found = codec.decode(SavingLines, client.get(redis_keys.SAVINGS))
    assert found is not None
    assert 0 < client.ttl(redis_keys.SAVINGS) <= redis_keys.SAVINGS_TTL_S
    return found


def test_the_saving_of_the_live_version_is_the_one_per_request_of_its_preview(
    live_redis: redis.Redis, draft: Draft, policy: Policy
) -> None:
    made = preview_of(draft, result=RESULT)
    assert reported(live_redis).lines == ()  # the draft is not live
    policy_services.publish(policy, OTTO, WHY)
    (line,) = reported(live_redis).lines
    assert (line.version, line.before, line.pool, line.preview, line.requests) == (2, 1, "demo", made.pk, 1900)
    assert line.gpu_s == pytest.approx(24 * 3600 / 864_000)
    assert line.dollars == pytest.approx(120 / 864_000)
    policy_services.rollback(policy, 1, OTTO, WHY)
    assert reported(live_redis).lines == ()  # no preview compared these versions in this direction


@pytest.mark.parametrize(
    "changes",
    [
        {"saving": None},
        {"requests_per_s": None},
        {"saving": SAVED | {"dollars": None}},
        {"saving": SAVED | {"low": -1}},
    ],
)
def test_a_preview_without_a_load_or_a_price_gives_no_dollars(
    live_redis: redis.Redis, draft: Draft, policy: Policy, changes: dict[str, Any]
) -> None:
    preview_of(draft, result=RESULT | changes)
    policy_services.publish(policy, OTTO, WHY)
    assert all(line.dollars is None and line.gpu_s > 0 for line in reported(live_redis).lines)


def test_a_preview_of_other_documents_is_not_a_basis(live_redis: redis.Redis, draft: Draft, policy: Policy) -> None:
    preview_of(draft, result=RESULT, live_sha256="of another version")
    policy_services.publish(policy, OTTO, WHY)
    assert policies.live_version(policy).number == 2
    assert Preview.objects.exists()
    assert reported(live_redis).lines == ()

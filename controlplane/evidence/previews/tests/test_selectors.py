"""Reading previews: the newest of a draft, the one of a version, and how old its traffic is."""

from datetime import UTC, datetime

import pytest

from controlplane.evidence.previews import policy_job, selectors, services
from controlplane.evidence.previews.body import PreviewIn
from controlplane.evidence.previews.models import Preview
from controlplane.evidence.previews.tests.conftest import NOW, OTTO
from controlplane.traffic.policies import selectors as policies
from controlplane.traffic.policies import services as policy_services
from controlplane.traffic.policies.errors import NoSuchPolicy
from controlplane.traffic.policies.tests.conftest import WHY, edit
from fleet import jobs
from fleet.jobs import DONE

pytestmark = pytest.mark.usefixtures("sent")


def done(policy, seed=1):
    made = services.start(policy, OTTO, PreviewIn(seeds=(seed,), max_requests=20))
    jobs.end(jobs.claim(Preview, made.pk), DONE)
    made.refresh_from_db()
    return made


def preview_of(policy, number):
    return selectors.previews_of_versions(policy, [policies.version(policy, number)]).get(number)


def codes(preview, at):
    return [one["code"] for one in selectors.as_dict(preview, datetime.fromtimestamp(at, UTC))["trust"]]


def test_the_newest_preview_of_the_current_draft_precedes_newer_previews_of_earlier_drafts(policy, draft):
    of_this = done(policy)
    edit(policy, heavy_new_tokens=8000)
    of_that = done(policy)
    assert selectors.latest_of(policies.open_draft(policy)) == of_that
    edit(policy, heavy_new_tokens=9000)
    assert selectors.latest_of(policies.open_draft(policy)) == of_this


def test_a_draft_without_a_preview_shows_that_of_its_earlier_content(policy, draft):
    assert selectors.latest_of(draft) is None
    before = done(policy)
    edit(policy, heavy_new_tokens=7000)
    assert selectors.latest_of(policies.open_draft(policy)) == before


def test_the_preview_asked_for_last_is_the_newest_even_if_it_existed_before(policy, draft):
    first = done(policy, seed=1)
    done(policy, seed=2)
    services.start(policy, OTTO, PreviewIn(seeds=(1,), max_requests=20))
    assert selectors.latest_of(draft) == first


def test_a_version_keeps_the_preview_of_its_content(policy, draft):
    seen = done(policy)
    policy_services.publish(policy, OTTO, WHY)
    assert preview_of(policy, 2) == seen
    assert preview_of(policy, 1) is None


def test_no_preview_is_found_for_a_version_published_without_one(policy, draft):
    done(policy)
    edit(policy, heavy_new_tokens=8000)
    policy_services.publish(policy, OTTO, WHY)
    assert preview_of(policy, 2) is None


def test_a_preview_of_another_policy_is_not_found(policy, draft):
    made = done(policy)
    other = policy_services.create_policy("other", policy_services.default_document("random"), OTTO, WHY).version.policy
    assert policy_job.numbered(Preview, policy.name, made.pk) == made
    for number in (made.pk, 2**40):
        with pytest.raises(NoSuchPolicy, match="has no preview"):
            policy_job.numbered(Preview, other.name, number)


def test_a_preview_becomes_outdated(policy, draft, record):
    record(200)
    made = done(policy)
    assert codes(made, NOW + 86_000) == []
    assert codes(made, NOW + 87_000) == ["trace_old"]
    shown = selectors.as_dict(made, datetime.fromtimestamp(NOW + 3 * 86_400, UTC))
    assert shown["trace"]["age_s"] == 3 * 86_400
    assert "3.0 days old" in shown["trust"][0]["text"]


def test_a_trace_that_was_not_recorded_has_no_age(policy, draft):
    shown = selectors.as_dict(done(policy))
    assert shown["trace"]["age_s"] is None
    assert shown["trace"]["name"] == "agentic-demo"


def test_the_remaining_time_follows_the_pace_so_far(policy, draft):
    made = done(policy)
    start = datetime.fromtimestamp(NOW, UTC)
    made.status, made.started_at, made.done, made.total = "running", start, 250, 1000
    assert selectors.as_dict(made, datetime.fromtimestamp(NOW + 2, UTC))["left_s"] == 6.0
    made.done = 0
    assert selectors.as_dict(made)["left_s"] is None

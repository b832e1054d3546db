"""The live version while there are candidates."""

import pytest

from controlplane.traffic.deliveries import services as deliveries
from controlplane.traffic.deliveries.tests.conftest import ADA, proposed
from controlplane.traffic.policies import selectors, services, versions
from controlplane.traffic.policies.errors import Conflict
from controlplane.traffic.policies.models import Policy
from controlplane.traffic.policies.tests.conftest import OTTO, WHY, edit, published
from router.contract.values.problem import InvalidInput


@pytest.fixture
def candidate(redis_away, policy, pool):
    """v2, being delivered over v1."""
    return proposed(policy).candidate


def test_a_candidate_has_a_number_and_is_not_live(candidate, policy):
    assert selectors.live_version(policy).number == 1
    assert candidate.live_since is None
    assert versions.next_number(policy) == 3


def test_the_number_of_a_candidate_that_never_went_live_is_not_reused(candidate, policy):
    deliveries.abort(candidate.delivery, OTTO)
    assert published(policy, heavy_new_tokens=8000).version.number == 3
    assert [v.number for v in selectors.history(policy)] == [3, 2, 1]
    assert [v.number for v in selectors.once_live(policy)] == [3, 1]
    assert selectors.before(selectors.live_version(policy)).number == 1


def test_a_draft_opened_during_a_delivery_starts_from_the_live_version(candidate, policy):
    assert services.open_draft(policy, OTTO).based_on == 1


def test_publishing_while_a_delivery_is_open_is_a_conflict_and_changes_nothing(candidate, policy):
    edit(policy, heavy_new_tokens=8000)
    with pytest.raises(Conflict, match="v2 is being delivered") as conflict:
        services.publish(policy, OTTO, WHY)
    assert conflict.value.kind == "open"
    assert selectors.open_draft(policy) is not None
    assert deliveries.selectors.open_delivery(policy) is not None


def test_publishing_can_end_the_open_delivery(candidate, policy):
    edit(policy, heavy_new_tokens=8000)
    version = services.publish(policy, OTTO, WHY, abort_open=True).version
    candidate.delivery.refresh_from_db()
    assert (version.number, candidate.delivery.state, candidate.delivery.what) == (3, "aborted", "overtake")


def test_a_rollback_ends_the_open_delivery_in_one_transaction(redis_away, policy, pool, monkeypatch):
    published(policy, heavy_new_tokens=8000)
    made = proposed(policy)
    monkeypatch.setattr(services.audit, "record", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        services.rollback(policy, 1, OTTO, WHY)
    made.refresh_from_db()
    assert (made.state, selectors.live_version(policy).number) == ("ready", 2)
    monkeypatch.undo()
    services.rollback(policy, 1, OTTO, WHY)
    made.refresh_from_db()
    assert (made.state, selectors.live_version(policy).number) == ("aborted", 4)


def test_a_version_that_was_never_live_cannot_be_rolled_back_to(candidate, policy):
    deliveries.abort(candidate.delivery, OTTO)
    with pytest.raises(InvalidInput) as refused:
        services.rollback(policy, 2, ADA, WHY)
    assert refused.value.problems[0].path == "to"


def test_the_history_marks_a_candidate_as_such(candidate, policy, vera_client):
    deliveries.abort(candidate.delivery, OTTO)
    page = vera_client.get("/policies/default/").content.decode()
    assert "aborted" in page
    assert "never live" in page
    assert "rollback?to=2" not in page
    assert vera_client.get("/policies/default/versions/2/").status_code == 200


def test_the_review_offers_to_end_the_open_delivery(candidate, policy, otto_client):
    etag = edit(policy, heavy_new_tokens=8000)
    assert (
        "Abort that delivery and publish v3 instead"
        in otto_client.get("/policies/default/draft/review").content.decode()
    )
    form = {"reason": WHY, "etag": etag}
    refused = otto_client.post("/policies/default/draft/publish", form)
    assert (refused.status_code, "v2 is being delivered" in refused.content.decode()) == (409, True)
    done = otto_client.post("/policies/default/draft/publish", form | {"abort_open": "on"})
    assert (done.status_code, Policy.objects.get().live) == (302, 3)


def test_rest_says_since_when_a_version_has_been_live(candidate, vera_client):
    newest, oldest = vera_client.get("/api/v1/policies/default/versions").json()
    assert newest["live_since"] is None
    assert oldest["live_since"] == oldest["published_at"]

import pytest

from controlplane.people.audit.models import AuditEntry
from controlplane.traffic.policies import selectors, services
from controlplane.traffic.policies.errors import Conflict, NoSuchPolicy, NothingToPublish
from controlplane.traffic.policies.models import Immutable, Policy, PolicyVersion
from controlplane.traffic.policies.tests.conftest import ADA, OTTO, WHY, published
from router.contract.values.problem import InvalidInput

pytestmark = pytest.mark.usefixtures("redis_away")


def test_a_rollback_makes_a_new_version_with_the_old_document(policy):
    published(policy, heavy_new_tokens=9000)
    version = services.rollback(policy, 1, ADA, WHY).version
    assert (version.number, version.rollback_of, version.based_on) == (3, 1, 2)
    assert version.sha256 == selectors.version(policy, 1).sha256
    assert AuditEntry.objects.first().action == "policy.rollback"


def test_a_rollback_keeps_the_versions_in_between(policy):
    published(policy, heavy_new_tokens=9000)
    services.rollback(policy, 1, ADA, WHY)
    assert [v.number for v in selectors.history(policy)] == [3, 2, 1]


def test_a_rollback_is_refused_if_another_version_went_live_in_the_meantime(policy):
    seen = published(policy, heavy_new_tokens=9000).version.etag
    published(policy, ADA, heavy_new_tokens=7000)
    with pytest.raises(Conflict, match="v3 was published by ada") as conflict:
        services.rollback(policy, 1, OTTO, WHY, if_match=seen)
    assert (conflict.value.kind, conflict.value.current) == ("stale", "v3")


def test_the_offered_version_is_the_last_one_that_was_not_rolled_back(policy):
    assert selectors.rollback_target(selectors.live_version(policy)) is None
    published(policy, heavy_new_tokens=9000)
    assert offered(policy) == 1
    published(policy, heavy_new_tokens=8000)
    services.rollback(policy, 2, ADA, WHY)  # v4 rolls v3 back
    assert offered(policy) == 1
    published(policy, heavy_new_tokens=7000)
    assert offered(policy) == 4
    services.rollback(policy, 4, ADA, WHY)  # v6 rolls v5 back: v4 and v2 have the live document
    assert offered(policy) == 1


def test_once_the_first_version_is_live_again_nothing_is_offered(policy, otto_client):
    published(policy, heavy_new_tokens=9000)
    assert "Roll back to v1" in otto_client.get(f"/policies/{policy.name}/").content.decode()
    services.rollback(policy, 1, ADA, WHY)
    for page in ("", "versions/3/"):
        assert "Roll back to" not in otto_client.get(f"/policies/{policy.name}/{page}").content.decode()


def offered(policy):
    return selectors.rollback_target(selectors.live_version(policy)).number


def test_a_rollback_to_the_same_document_does_nothing(policy):
    with pytest.raises(NothingToPublish):
        services.rollback(policy, 1, OTTO, WHY)


def test_a_rollback_to_a_version_that_does_not_exist_is_refused(policy):
    with pytest.raises(NoSuchPolicy, match="no version 9"):
        services.rollback(policy, 9, OTTO, WHY)


def test_a_rollback_requires_a_reason(policy):
    published(policy, heavy_new_tokens=9000)
    with pytest.raises(InvalidInput):
        services.rollback(policy, 1, OTTO, "")


def test_a_version_that_is_no_longer_valid_cannot_be_restored(policy):
    PolicyVersion.objects.create(
        policy=policy, number=2, document={"schema": 1, "old": {}}, sha256="x", reason=WHY, actor_kind="user"
    )
    published_again = PolicyVersion.objects.create(
        policy=policy, number=3, document=selectors.version(policy, 1).document, sha256="y", reason=WHY
    )
    Policy.objects.update(live=3)
    with pytest.raises(InvalidInput, match="not valid"):
        services.rollback(policy, 2, OTTO, WHY)
    assert selectors.live_version(policy) == published_again


@pytest.mark.parametrize("change", [lambda rows: rows.update(reason="another"), lambda rows: rows.delete()])
def test_published_versions_cannot_be_changed(policy, change):
    with pytest.raises(Immutable):
        change(PolicyVersion.objects.all())

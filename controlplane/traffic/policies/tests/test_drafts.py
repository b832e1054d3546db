import pytest

from controlplane.people.audit.models import AuditEntry
from controlplane.traffic.policies import services
from controlplane.traffic.policies.errors import Conflict, NoSuchPolicy
from controlplane.traffic.policies.models import Draft
from controlplane.traffic.policies.tests.conftest import ADA, OTTO, WHY, edit
from router.contract.values.problem import InvalidInput
from router.policy.schema import document as documents

pytestmark = pytest.mark.usefixtures("redis_away")


def test_a_draft_starts_from_the_live_version(policy):
    draft = services.open_draft(policy, OTTO)
    assert (draft.document, draft.based_on, draft.revision) == (documents.default(), 1, 1)


def test_there_is_one_open_draft_for_everybody(policy):
    assert services.open_draft(policy, OTTO).pk == services.open_draft(policy, ADA).pk
    assert Draft.objects.count() == 1


def test_saving_makes_a_new_revision_and_names_its_author(policy):
    before = services.open_draft(policy, OTTO)
    after = services.patch_draft(policy, {"classes.heavy_new_tokens": 9000}, ADA, if_match=before.etag)
    assert (after.revision, after.updated_by, after.opened_by) == (2, "ada", "otto")
    assert after.etag != before.etag


def test_saving_the_same_document_again_changes_nothing(policy):
    etag = edit(policy, heavy_new_tokens=9000)
    assert services.patch_draft(policy, {"classes.heavy_new_tokens": 9000}, ADA, if_match="d0.1").etag == etag


def test_an_invalid_value_is_refused_with_its_path_and_the_draft_unchanged(policy):
    etag = edit(policy, heavy_new_tokens=9000)
    with pytest.raises(InvalidInput) as refused:
        services.patch_draft(policy, {"classes.heavy_new_tokens": 5}, OTTO)
    assert [(e.path, e.value) for e in refused.value.problems] == [("classes.heavy_new_tokens", 5)]
    assert "256 to 1,000,000" in refused.value.problems[0].text
    assert Draft.objects.get().etag == etag


def test_crossed_thresholds_are_reported_at_both_fields(policy):
    services.open_draft(policy, OTTO)
    with pytest.raises(InvalidInput) as refused:
        services.patch_draft(policy, {"classes.warm_new_tokens": 50_000}, OTTO)
    assert {e.path for e in refused.value.problems} == {"classes.warm_new_tokens", "classes.heavy_new_tokens"}


def test_an_old_etag_is_a_conflict_that_contains_all_three_documents(policy):
    old = services.open_draft(policy, OTTO).etag
    services.patch_draft(policy, {"classes.heavy_new_tokens": 9000}, ADA)
    with pytest.raises(Conflict) as conflict:
        services.patch_draft(policy, {"classes.heavy_new_tokens": 7000}, OTTO, if_match=old)
    found = conflict.value
    assert [d["classes"]["heavy_new_tokens"] for d in (found.base, found.theirs, found.mine)] == [40_000, 9000, 7000]
    assert "ada" in str(found)
    assert found.current == Draft.objects.get().etag
    assert Draft.objects.get().document["classes"]["heavy_new_tokens"] == 9000


def test_a_patch_without_an_etag_keeps_concurrent_changes_of_others(policy, monkeypatch):
    services.open_draft(policy, OTTO)
    from controlplane.traffic.policies.drafts import services as drafting

    original, raced = drafting.documents.apply_overrides, []

    def meanwhile(document, overrides):
        if not raced:
            raced.append(True)
            Draft.objects.filter(policy=policy).update(
                document=original(document, {"classes.warm_hit_share": 0.25}), revision=2
            )
        return original(document, overrides)

    monkeypatch.setattr(drafting.documents, "apply_overrides", meanwhile)
    saved = services.patch_draft(policy, {"classes.heavy_new_tokens": 9000}, OTTO)
    assert saved.document["classes"]["warm_hit_share"] == 0.25
    assert saved.document["classes"]["heavy_new_tokens"] == 9000


def test_a_save_that_loses_the_race_for_the_row_is_a_conflict(policy, monkeypatch):
    draft = services.open_draft(policy, OTTO)
    from controlplane.traffic.policies.drafts import versioned as drafting

    def meanwhile(*_):
        Draft.objects.filter(pk=draft.pk).update(revision=7)

    monkeypatch.setattr(drafting, "check_etag", meanwhile)
    document = documents.apply_overrides(draft.document, {"classes.heavy_new_tokens": 9000})
    with pytest.raises(Conflict):
        services.save_draft(policy, document, OTTO, if_match=draft.etag)


def test_another_strategy_brings_its_own_parameters(policy):
    services.open_draft(policy, OTTO)
    draft = services.patch_draft(policy, {"strategy.name": "lpwl"}, OTTO)
    assert draft.document["strategy"] == {"name": "lpwl"}


def test_discarding_keeps_the_document_in_the_audit_log(policy):
    edit(policy, heavy_new_tokens=9000)
    services.discard_draft(policy, OTTO)
    assert not Draft.objects.exists()
    entry = AuditEntry.objects.first()
    assert (entry.action, entry.before["classes"]["heavy_new_tokens"]) == ("policy.discard_draft", 9000)


def test_discarding_what_someone_has_changed_in_the_meantime_is_a_conflict(policy):
    old = services.open_draft(policy, OTTO).etag
    services.patch_draft(policy, {"classes.heavy_new_tokens": 9000}, ADA)
    with pytest.raises(Conflict):
        services.discard_draft(policy, OTTO, if_match=old)


def test_a_draft_opened_after_another_was_discarded_has_another_etag(policy):
    first = services.open_draft(policy, OTTO).etag
    services.discard_draft(policy, OTTO)
    assert services.open_draft(policy, OTTO).etag != first


@pytest.mark.parametrize(
    "change",
    [
        lambda p: services.patch_draft(p, {}, OTTO),
        lambda p: services.save_draft(p, documents.default(), OTTO),
        lambda p: services.discard_draft(p, OTTO),
        lambda p: services.publish(p, OTTO, WHY),
    ],
)
def test_without_an_open_draft_the_error_names_the_live_version(policy, change):
    with pytest.raises(Conflict, match="v1 by weir is live") as conflict:
        change(policy)
    assert conflict.value.kind == "gone"


def test_a_draft_cannot_be_based_on_a_version_that_does_not_exist(policy):
    services.open_draft(policy, OTTO)
    with pytest.raises(InvalidInput, match="cannot be based on"):
        services.patch_draft(policy, {"classes.heavy_new_tokens": 9000}, OTTO, based_on=9)


def test_an_unknown_policy_is_reported_by_name(db):
    from controlplane.traffic.policies import selectors

    with pytest.raises(NoSuchPolicy, match="night"):
        selectors.policy("night")

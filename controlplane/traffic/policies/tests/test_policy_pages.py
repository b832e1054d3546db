import pytest

from controlplane.traffic.policies import selectors, services
from controlplane.traffic.policies.tests.conftest import OTTO, WHY, edit, published


def test_the_list_shows_the_live_version_and_its_reason(policy, pool, vera_client, routers):
    router = routers("router-1")
    published(policy, heavy_new_tokens=9000)
    assert router.versions == {"demo": 2}
    content = vera_client.get("/policies/").content.decode()
    for text in ("v2", "otto", WHY, "demo", "1/1 routers"):
        assert text in content


def test_a_router_that_is_behind_is_named(policy, pool, vera_client, routers, monkeypatch):
    from controlplane.traffic.policies import acknowledged

    monkeypatch.setattr(acknowledged, "WAIT_S", 0.05)
    router = routers("router-1")
    published(policy, heavy_new_tokens=9000)
    router.answers = False
    published(policy, heavy_new_tokens=8000)
    content = vera_client.get("/policies/default/").content.decode()
    assert "0/1 routers" in content
    assert "behind: router-1 (v2)" in content


def test_without_redis_the_pages_still_work_and_say_so(redis_away, policy, pool, vera_client):
    for path in ("/policies/", "/policies/default/", "/policies/default/versions/1/"):
        answer = vera_client.get(path)
        assert answer.status_code == 200
        assert b"Redis does not answer" in answer.content


def test_the_page_lists_every_parameter_with_its_range(redis_away, policy, vera_client):
    content = vera_client.get("/policies/default/").content.decode()
    assert "40,000 tokens" in content
    assert "256 to 1,000,000 tokens" in content


def test_a_viewer_sees_disabled_controls_and_is_referred_to_an_operator(redis_away, policy, otto, vera_client):
    published(policy, heavy_new_tokens=9000)
    content = vera_client.get("/policies/default/").content.decode()
    assert (
        '<button class="button button--primary" type="submit" disabled aria-describedby="locked">Edit</button>'
        in content
    )
    assert "requires the role operator; ask otto" in content
    assert "/policies/default/rollback" not in content


@pytest.mark.parametrize(
    "path", ["new", "default/draft/open", "default/draft", "default/draft/publish", "default/draft/discard",
             "default/draft/autosave", "default/draft/resolve", "default/rollback"],
)  # fmt: skip
def test_a_viewers_direct_post_gets_a_page_that_says_who_can_help(redis_away, policy, otto, vera_client, path):
    edit(policy, heavy_new_tokens=9000)
    answer = vera_client.post(f"/policies/{path}", {"reason": WHY, "to": "1"})
    assert answer.status_code == 403
    assert b"Who can help: otto" in answer.content
    assert selectors.live_version(policy).number == 1


def test_a_rollback_takes_two_clicks(redis_away, policy, pool, otto_client):
    published(policy, heavy_new_tokens=9000)
    confirm = otto_client.get("/policies/default/rollback?to=1")
    assert b"Roll back from v2 to v1 of" in confirm.content
    assert b"9,000 tokens" in confirm.content
    assert b"pool demo, 8 instances, 100 %" in confirm.content
    form = {"to": "1", "etag": "v2", "reason": confirm.context["reason"]}
    answer = otto_client.post("/policies/default/rollback", form)
    assert answer.headers["Location"] == "/policies/default/versions/3/"
    assert selectors.live_version(policy).rollback_of == 1


def test_without_an_earlier_version_there_is_nothing_to_roll_back_to(redis_away, policy, otto_client):
    page = otto_client.get("/policies/default/rollback").content.decode()
    assert "There is nothing to roll back to" in page
    assert "No other document was live before that of v1." in page
    assert "v1 → v1" not in page
    assert "to v1" not in page


def test_the_live_version_is_not_offered_for_a_rollback(redis_away, policy, otto_client):
    published(policy, heavy_new_tokens=9000)
    page = otto_client.get("/policies/default/rollback?to=2").content.decode()
    assert "v2 is live already" in page
    assert "v2 → v2" not in page


def test_pressing_roll_back_twice_rolls_back_once(redis_away, policy, otto_client):
    published(policy, heavy_new_tokens=9000)
    form = {"to": "1", "etag": "v2", "reason": WHY}
    answers = [otto_client.post("/policies/default/rollback", form) for _ in range(2)]
    assert {a.headers["Location"] for a in answers} == {"/policies/default/versions/3/"}
    assert policy.versions.count() == 3


def test_a_rollback_after_someone_elses_publication_is_shown_again(redis_away, policy, otto_client):
    published(policy, heavy_new_tokens=9000)
    published(policy, heavy_new_tokens=8000)
    answer = otto_client.post("/policies/default/rollback", {"to": "1", "etag": "v2", "reason": WHY})
    assert answer.status_code == 412
    assert b"v3 was published by otto meanwhile" in answer.content
    assert policy.versions.count() == 3


def test_a_rollback_without_a_reason_keeps_the_page(redis_away, policy, otto_client):
    published(policy, heavy_new_tokens=9000)
    answer = otto_client.post("/policies/default/rollback", {"to": "1", "etag": "v2", "reason": "no"})
    assert answer.status_code == 422
    assert 'id="reason-error">Say why in 10 to 500 characters; this has 2<' in answer.content.decode()


def test_a_version_has_a_permanent_page(redis_away, policy, vera_client):
    version = published(policy, heavy_new_tokens=9000).version
    content = vera_client.get("/policies/default/versions/2/").content.decode()
    for text in (version.sha256, WHY, "otto", "40,000 tokens", "9,000 tokens", "more requests count as heavy"):
        assert text in content


def test_any_two_versions_can_be_compared(redis_away, policy, vera_client):
    published(policy, heavy_new_tokens=9000)
    published(policy, heavy_new_tokens=8000)
    content = vera_client.get("/policies/default/compare?from=1&to=3").content.decode()
    assert "8,000 tokens" in content
    assert "9,000" not in content
    assert "+    &quot;heavy_new_tokens&quot;: 8000" in content


@pytest.mark.parametrize(
    "path", ["nowhere/", "default/versions/7/", "default/versions/99999999999999999999/", "default/compare?to=x",
             "default/rollback?to=77", "default/compare?from=9999999999"],
)  # fmt: skip
def test_an_unknown_resource_is_not_found(redis_away, policy, otto_client, path):
    answer = otto_client.get(f"/policies/{path}")
    assert answer.status_code == 404
    assert b"no " in answer.content


def test_a_policy_can_be_created_on_the_list(redis_away, policy, otto_client):
    form = {"name": "night", "strategy": "lpwl", "reason": "for the batch window"}
    assert otto_client.post("/policies/new", form).headers["Location"] == "/policies/night/"


@pytest.mark.parametrize(
    ("field", "value", "status", "said"),
    [
        ("name", "Night shift", 422, "lower-case letters"),
        ("name", "default", 409, "already"),
        ("reason", "short", 422, "10 to 500"),
        ("strategy", "nowhere", 422, "allowed: one of"),
    ],
)
def test_a_refused_policy_keeps_what_was_typed(redis_away, policy, otto_client, field, value, status, said):
    form = {"name": "night", "strategy": "lpwl", "reason": "for the batch window", field: value}
    answer = otto_client.post("/policies/new", form)
    assert answer.status_code == status
    assert said in answer.content.decode()
    if field != "strategy":
        assert f'value="{value}"' in answer.content.decode()


def test_version_numbers_above_a_thousand_have_no_comma(redis_away, policy, vera_client):
    from controlplane.traffic.policies.models import Policy, PolicyVersion

    live = selectors.live_version(policy)
    PolicyVersion.objects.create(
        policy=policy,
        number=1234,
        document=live.document,
        sha256="x",
        reason=WHY,
        actor_kind="user",
        actor_name="otto",
        based_on=1,
        rollback_of=1,
    )
    Policy.objects.update(live=1234)
    for path in ("/policies/", "/policies/default/", "/policies/default/versions/1234/", "/policies/default/compare"):
        content = vera_client.get(path).content.decode()
        assert "1,234" not in content
        assert "1234" in content


def test_a_new_draft_can_only_be_opened_by_a_post(redis_away, policy, otto_client):
    assert otto_client.get("/policies/default/draft").headers["Location"] == "/policies/default/"
    assert otto_client.get("/policies/default/draft/open").status_code == 405
    assert selectors.open_draft(policy) is None
    assert otto_client.post("/policies/default/draft/open").headers["Location"] == "/policies/default/draft"
    assert services.open_draft(policy, OTTO).opened_by == "otto"

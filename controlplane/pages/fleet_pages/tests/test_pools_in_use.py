"""A pool that the document Models names cannot be removed or made observed only, wherever that is requested."""

import json

import pytest
from django.core.management import call_command

from controlplane.traffic.aliases import services
from controlplane.traffic.aliases.tests.conftest import OTTO, WHY, document
from controlplane.traffic.policies.services import ensure_default_policy
from fleet.models import Pool
from fleet.services import apply_fleet, export, export_yaml
from router.contract.values.problem import InvalidInput

pytestmark = pytest.mark.usefixtures("live_redis")
JSON = "application/json"
WORDS = "the pool used serves chat (v1): publish Models without it first"


def fleet(mode="serve", *, names=("used", "spare")):
    engine = {"urls": ["http://127.0.0.1:9"]}
    pools = [{"name": name, "model": "m", "kind": "external", "replicas": 1, "engine": engine} for name in names]
    pools = [{**pool, "mode": mode if pool["name"] == "used" else "serve"} for pool in pools]
    return {"apiVersion": "weir/v1", "kind": "Fleet", "metadata": {"name": "f"}, "spec": {"pools": pools}}


@pytest.fixture
def named(db):
    ensure_default_policy()
    apply_fleet(fleet(), "ada")
    services.publish_document(document(chat={"pool": "used"}), OTTO, WHY)


def page(client, tmp_path, capsys, made):
    return client.post("/fleet/apply", {"document": json.dumps(made), "prune": "1"}).content.decode()


def page_applied(client, tmp_path, capsys, made):
    typed = {"step": "apply", "document": json.dumps(made), "prune": "1", "digest": "x", "reason": WHY}
    return client.post("/fleet/apply", typed).content.decode()


def rest(client, tmp_path, capsys, made):
    answer = client.put("/api/v1/fleet?prune=true", json.dumps(made), content_type=JSON)
    assert answer.status_code == 422
    (error,) = answer.json()["errors"]
    assert error["value"] == "used"
    return error["message"]


def command(client, tmp_path, capsys, made):
    (tmp_path / "fleet.json").write_text(json.dumps(made))
    with pytest.raises(SystemExit):
        call_command("fleet_apply", str(tmp_path / "fleet.json"), "--prune")
    return capsys.readouterr().err


@pytest.mark.parametrize("door", [page, page_applied, rest, command])
@pytest.mark.parametrize("made", [fleet(names=["spare"]), fleet("observe")], ids=["removed", "observed"])
def test_the_removal_of_a_pool_in_use_is_refused_everywhere(named, operator, tmp_path, capsys, door, made):
    before = export_yaml()
    assert WORDS in door(operator, tmp_path, capsys, made)
    assert export_yaml() == before


def test_the_switch_of_a_pool_in_use_is_refused_as_well(named, operator):
    answer = operator.post("/api/v1/pools/used/observe", "{}", content_type=JSON)
    assert (answer.status_code, answer.json()["errors"][0]["message"]) == (422, WORDS)
    assert WORDS in operator.post("/fleet/pools/used/mode/observe", {"reason": WHY}, follow=True).content.decode()


def test_other_pools_and_a_pool_that_no_name_uses_any_more_can_be_removed(named, operator):
    assert (
        operator.put("/api/v1/fleet?prune=true", json.dumps(fleet(names=["used"])), content_type=JSON).status_code
        == 200
    )
    services.publish_document(document(), OTTO, WHY)
    assert operator.put("/api/v1/fleet?prune=true", json.dumps(fleet(names=[])), content_type=JSON).status_code == 200
    assert not Pool.objects.filter(removed=False).exists()


def test_the_page_removes_a_pool_only_when_its_name_is_typed(named, operator):
    def post(**more):
        made = {"document": json.dumps(fleet(names=["used"])), "prune": "1", **more}
        return operator.post("/fleet/apply", made)

    plan = post().context
    assert plan["removed"] == "spare"
    apply = {"step": "apply", "digest": plan["digest"], "reason": WHY}
    for typed in ("", "used", "spare, used"):
        refused = post(**apply, confirmed=typed)
        assert (refused.status_code, refused.context["unconfirmed"], refused.context["confirmed"]) == (422, True, typed)
    assert Pool.objects.filter(name="spare", removed=False).exists()
    assert post(**apply, confirmed=" spare ").status_code == 302
    assert not Pool.objects.filter(name="spare", removed=False).exists()


def test_a_name_is_not_published_for_an_observed_pool(named):
    apply_fleet({**export(), "spec": fleet("observe")["spec"]}, "ada")
    with pytest.raises(InvalidInput) as caught:
        services.publish_document(document(chat={"pool": "used"}, more={"pool": "used"}), OTTO, WHY)
    assert {problem.path for problem in caught.value.problems} == {"models.chat.pool", "models.more.pool"}
    assert "observed only" in caught.value.problems[0].message

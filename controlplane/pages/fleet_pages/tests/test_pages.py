"""The fleet pages, as an operator and a viewer see them."""

import html
import json
import re
import time

import pytest
import redis
import yaml
from django.test import Client

from controlplane.live.dashboard.frame.build import SCHEMA
from controlplane.pages.fleet_ops import actions
from controlplane.people.audit.models import AuditEntry
from controlplane.people.audit.services import Actor
from fleet import services
from fleet.models import Instance, Pool, State
from fleet.tests.world import World, document
from router.contract.redis import redis_keys

HTMX = {"HX-Request": "true"}


def text_of(answer: object) -> str:
    """The text that a reader sees, in one line."""
    plain = re.sub(r"<[^>]+>", " ", answer.content.decode())  # type: ignore[attr-defined]
    return " ".join(html.unescape(plain).split())


def test_the_fleet_page_shows_health_separately_from_agreement_with_the_declaration(
    viewer: Client, fleet: World
) -> None:
    services.stop("p-1", "ada", "cable")
    fleet.until(fleet.is_in(State.STOPPED, "p-1"))
    services.apply_fleet(document(3), "ada")
    said = text_of(viewer.get("/fleet/"))
    assert "Health 1 of 2 ready" in said
    assert "Desired state 1 not created yet" in said
    assert "2 instances: 1 stopped 1 ready" in said
    assert "1 of 2 instances ready in 1 pool : p: 1 not created yet" in said
    Instance.objects.filter(name="p-1").update(state=State.FAILED, reason="ended with exit status 1: out of memory")
    failed = "p-1 failed, ended with exit status 1 , and 1 more"
    assert failed in text_of(viewer.get("/fleet/"))
    assert '<a href="/fleet/instances/p-1/">p-1 failed' in viewer.get("/fleet/", headers=HTMX).content.decode()
    Instance.objects.all().delete()
    assert all("None has been created yet." in text_of(viewer.get(path)) for path in ("/fleet/", "/fleet/pools/p/"))


def test_the_instance_table_shows_the_figures_of_the_latest_sample(viewer: Client, fleet: World) -> None:
    said = text_of(viewer.get("/fleet/"))
    assert "p-0 ready local 25 % 0 0" in said


def test_the_page_of_a_drained_instance_says_who_drained_it(viewer: Client, fleet: World) -> None:
    Instance.objects.filter(name="p-1").update(state=State.DRAINING, reason="drained by ada: a fan is loud")
    said = text_of(viewer.get("/fleet/pools/p/"))
    assert re.search(r"p-1 (draining|drained) by ada: a fan is loud local", said)


def test_without_redis_the_page_says_why_there_are_no_figures(
    viewer: Client, fleet: World, request: pytest.FixtureRequest
) -> None:
    request.getfixturevalue("redis_away")
    said = text_of(viewer.get("/fleet/"))
    assert "p-0 unseen no sample: Redis does not answer" in said
    assert "Health 2 of 2 ready 2 without a recent sample" in said


def test_a_pool_reports_its_slo_and_whether_it_is_met(viewer: Client, fleet: World, live_redis: redis.Redis) -> None:
    said = text_of(viewer.get("/fleet/pools/p/"))
    assert "SLO" not in said
    assert "Replaced after 10 s without an answer or a token" in said
    Pool.objects.update(slo={"ttft_p90_ms": {"heavy": 12_000, "warm": 1500}})
    warm = {"ttft": [200.0, 1800.0, 2000.0], "ttft_n": 120}
    frame = {
        "schema": SCHEMA,
        "at": time.time(),
        "classes": {"p": {"warm": warm, "heavy": None}},
        "instances": {"id": []},
        "totals": {"p": {"rate": 3.14159, "running": 9, "waiting": 0}},
    }
    live_redis.set(redis_keys.FRAMES_LATEST, json.dumps(frame))
    said = text_of(viewer.get("/fleet/pools/p/")).replace("\xa0", " ")
    assert "warm 1.5 s 1.8 s 120 SLO missed heavy 12 s – 0 unknown" in said
    assert "Load 3.14 req/s, 9 running, 0 waiting SLO missed by warm" in said
    assert "p: SLO missed by warm" in text_of(viewer.get("/fleet/"))
    met = {"classes": {"p": {"warm": {**warm, "ttft": [200.0, 900.0, 2000.0]}, "heavy": None}}}
    listed = {"slo": {"p": {"warm": {"at": 0.0, "listed": True, "turned_at": 0.0}}}}
    live_redis.set(redis_keys.FRAMES_LATEST, json.dumps({**frame, **met, **listed}))
    assert "120 SLO met again" in text_of(viewer.get("/fleet/pools/p/")).replace("\xa0", " ")
    live_redis.set(redis_keys.FRAMES_LATEST, json.dumps({**frame, "at": time.time() - 60}))
    assert "warm 1.5 s – 0 unknown" in text_of(viewer.get("/fleet/pools/p/", headers=HTMX))


def test_htmx_gets_only_the_part_that_is_refreshed(viewer: Client, fleet: World) -> None:
    for path in ("/fleet/", "/fleet/pools/p/", "/fleet/instances/p-0/"):
        part = viewer.get(path, headers=HTMX).content.decode()
        assert "<html" not in part
        assert "p-0" in part or "epoch" in part.lower()
        assert ('id="headline" hx-swap-oob' in part) == ("/pools/" not in path)


def test_an_instance_page_shows_command_ports_epoch_and_log(viewer: Client, fleet: World) -> None:
    said = text_of(viewer.get("/fleet/instances/p-0/"))
    row = fleet.one()
    assert " ".join(row.command) in said
    assert f"http {row.ports.get().number}" in said
    assert "Epoch 1" in said
    assert "256 of 1,024 blocks of 16 tokens" in said
    assert "== weir: epoch 1 at" in said


def test_an_instance_page_shows_what_its_kind_reports(viewer: Client) -> None:
    engine = {"dwdp_size": 4, "prefill_instances": 4, "chunked_prefill": False}
    pool = Pool.objects.create(name="r1", model="deepseek-ai/DeepSeek-R1", kind="trtllm", engine=engine, replicas=6)
    for ordinal in (1, 4):
        Instance.objects.create(name=f"r1-{ordinal}", pool=pool, ordinal=ordinal)
    said = text_of(viewer.get("/fleet/instances/r1-1/"))
    assert "DWDP rank 1 of 4 in group 0 Experts held 64–127 of 256 in a layer Experts copied 0–63 from rank 0," in said
    assert "DWDP" not in text_of(viewer.get("/fleet/instances/r1-4/"))
    assert viewer.get("/fleet/pools/r1/").status_code == 200  # it has no version, as a pool of an experiment
    Instance.objects.filter(name="r1-1").update(config={"kind": "gone", "engine": {}})
    assert "DWDP" not in text_of(viewer.get("/fleet/instances/r1-1/"))


def test_an_operator_restarts_an_instance_with_a_reason(operator: Client, fleet: World) -> None:
    answer = operator.post("/fleet/instances/p-0/restart", {"reason": "it leaks"}, follow=True)
    assert "Restart of p-0 requested." in text_of(answer)
    assert AuditEntry.objects.get(action="instance.restart").reason == "it leaks"
    fleet.until(lambda: fleet.one().epoch == 2)


def test_an_impossible_action_is_explained_on_the_page(operator: Client, fleet: World) -> None:
    services.stop("p-0", "ada")
    answer = operator.post("/fleet/instances/p-0/drain", follow=True)
    assert "p-0 is stopped on request; start it first" in text_of(answer)


def test_a_viewer_sees_disabled_controls_with_the_reason_and_cannot_act(viewer: Client, fleet: World) -> None:
    page = viewer.get("/fleet/instances/p-0/").content.decode()
    assert '<fieldset class="plain stack" disabled aria-describedby="locked">' in page
    assert "requires the role operator" in page
    assert viewer.post("/fleet/instances/p-0/stop").status_code == 403
    assert viewer.post("/fleet/apply", {"document": ""}).status_code == 403
    assert fleet.one().desired == "running"


@pytest.mark.parametrize("path", ["/fleet/pools/q/", "/fleet/instances/q-1/"])
def test_an_unknown_resource_is_not_found(viewer: Client, path: str) -> None:
    assert viewer.get(path).status_code == 404


def test_an_unknown_action_is_not_found(operator: Client, fleet: World) -> None:
    assert operator.post("/fleet/instances/p-0/explode").status_code == 404


def plan(client: Client, body: str) -> tuple[str, str]:
    """The changes that the page lists, and the digest of the fleet on which they are based."""
    answer = client.post("/fleet/apply", {"step": "plan", "document": body})
    assert answer.status_code == 200
    found = re.search(r'name="digest" value="(\w+)"', answer.content.decode())
    return text_of(answer), found[1] if found else ""


def test_a_document_is_planned_then_applied_with_a_reason(operator: Client, fleet: World) -> None:
    body = yaml.safe_dump(document(1))
    said, digest = plan(operator, body)
    assert "replicas 2 → 1" in said
    assert "drains and stops 1 instance" in said
    assert Pool.objects.get().replicas == 2
    form = {"step": "apply", "document": body, "digest": digest, "reason": "quiet week"}
    assert "Applied: 1 change." in text_of(operator.post("/fleet/apply", form, follow=True))
    assert Pool.objects.get().replicas == 1
    assert AuditEntry.objects.get(action="fleet.applied").reason == "quiet week"


def test_without_a_reason_nothing_is_applied_and_the_text_is_kept(operator: Client, fleet: World) -> None:
    body = yaml.safe_dump(document(1))
    _, digest = plan(operator, body)
    answer = operator.post("/fleet/apply", {"step": "apply", "document": body, "digest": digest, "reason": " "})
    assert answer.status_code == 422
    assert "Enter a reason" in text_of(answer)
    assert "replicas: 1" in answer.content.decode()
    assert Pool.objects.get().replicas == 2


def test_a_plan_overtaken_by_someone_else_is_shown_again(operator: Client, fleet: World) -> None:
    body = yaml.safe_dump(document(1))
    _, digest = plan(operator, body)
    services.apply_fleet(document(4), "bob")
    form = {"step": "apply", "document": body, "digest": digest, "reason": "quiet week"}
    answer = operator.post("/fleet/apply", form)
    assert answer.status_code == 412
    assert "replicas 4 → 1" in text_of(answer)
    assert Pool.objects.get().replicas == 4


def opened(page: str) -> str:
    found = re.search(r'name="opened" value="([\w:]+)"', page)
    return found[1] if found else ""


@pytest.mark.parametrize("path", ["/fleet/apply", "/fleet/pools/p/edit"])
def test_a_form_overtaken_by_others_names_who_changed_what(operator: Client, fleet: World, path: str) -> None:
    """The plan may undo those changes, so both pages carry the fleet as it was."""
    found = opened(operator.get(path).content.decode())
    mine = {"opened": found, "step": "plan", "document": yaml.safe_dump(document(1))}
    form = mine if path == "/fleet/apply" else {**mine, "name": "p", "kind": "sim", "model": "m", "replicas": "1"}
    assert "changed since you opened" not in text_of(operator.post(path, form))
    actions.apply(document(4), Actor("user", "bob"), reason="a busy evening")
    said = operator.post(path, form)
    assert said.status_code == 200
    assert "The fleet changed since you opened this form." in text_of(said)
    assert "bob, fleet: applied fleet: a busy evening" in text_of(said)
    assert "spec.pools.p.replicas 2 → 4" in text_of(said)
    assert "replicas 4 → 1" in text_of(said)
    assert opened(said.content.decode()) == found  # the next click shows the page again


@pytest.mark.parametrize("mark", ["", "x", "x:", "x:y", ":-1", f"x:{'9' * 30}"])
def test_a_form_without_a_valid_mark_reports_no_change_by_others(operator: Client, fleet: World, mark: str) -> None:
    form = {"opened": mark, "step": "plan", "document": yaml.safe_dump(document(1))}
    assert "changed since you opened" not in text_of(operator.post("/fleet/apply", form))


def test_problems_are_listed_and_the_typed_text_stays(operator: Client, fleet: World) -> None:
    body = yaml.safe_dump(document(1)).replace("replicas: 1", "replicas: many")
    answer = operator.post("/fleet/apply", {"step": "plan", "document": body})
    assert answer.status_code == 422
    assert '"many" is not allowed; allowed: a whole number from 0 to 1,024 instances (got many)' in text_of(answer)
    assert "replicas: many" in answer.content.decode()


def test_a_fleet_without_pools_says_what_to_do(operator: Client, live_redis: object) -> None:
    assert "No pool is declared" in text_of(operator.get("/fleet/"))

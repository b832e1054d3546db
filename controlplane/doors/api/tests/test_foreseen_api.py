"""The prediction of what a plan can show, in the answers to a dry run and to a proposal."""

from controlplane.traffic.deliveries.foresight.tests.receipts import WARM_IN_A_MINUTE, fill
from controlplane.traffic.deliveries.tests.conftest import CANARY, FULL, OTTO, plan
from controlplane.traffic.policies.tests.conftest import WHY, edit, policy, pool  # noqa: F401  (fixtures, with Redis)
from router.policy.schema import document as documents


def test_a_proposal_and_a_dry_run_say_what_the_plan_can_show(policy, pool, ci, live_redis):  # noqa: F811
    fill(live_redis)
    document = documents.apply_overrides(documents.default(), {"classes.heavy_new_tokens": 9000})
    asked = {"plan": plan(CANARY, FULL), "reason": WHY}
    dry = ci.post("/policies/default/deliveries", {**asked, "document": document, "dry_run": True})
    edit(policy, OTTO, heavy_new_tokens=9000)
    made = ci.post("/policies/default/draft/deliver", asked)
    assert (dry.status_code, made.status_code) == (200, 201)
    for foreseen in (dry.json()["delivery"]["foreseen"], made.json()["foreseen"]):
        assert foreseen["traffic"].startswith("from 500 requests within 9 min, the newest 1 min")
        assert {"step": 1, "pool": "demo", "class": "warm", "text": WARM_IN_A_MINUTE} in foreseen["lines"]

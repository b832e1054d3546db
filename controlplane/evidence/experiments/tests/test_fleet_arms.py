"""Arms that change the fleet: resolved, checked by the kind, and shown separately from the policy."""

import pytest

from controlplane.evidence.experiments import provenance, running
from controlplane.evidence.experiments.models import Experiment
from controlplane.evidence.experiments.modes import ephemeral_pool
from controlplane.evidence.experiments.results.assemble import results_of
from controlplane.evidence.experiments.start import fleets
from controlplane.evidence.experiments.tests.conftest import body, read_again
from controlplane.evidence.twin.pool_model import twin_of
from fleet.models import Instance, Pool
from fleet.tests.calibration.rows import instance, measure_well

pytestmark = pytest.mark.django_db
IN_TWIN = {"mode": "twin", "time_scale": 1, "duration_s": 20}


def faults(answer):
    assert answer.status_code == 422, answer.content
    return {error["path"]: error["message"] for error in answer.json()["errors"]}


def test_an_arm_with_another_fleet_is_simulated_with_it_and_distinguished_from_the_policy(
    ci, demo_pool, sent, data_dir
):
    arms = ["lpwl", {"name": "big", "strategy": "lpwl", "fleet": {"replicas": 4, "engine": {"kv_blocks": 900}}}]
    number = ci.post("/experiments", body(**IN_TWIN, arms=arms)).json()["id"]
    running.run_experiment(number)
    experiment = Experiment.objects.get(pk=number)
    first, second = experiment.runs.all()
    assert (len(first.facts["instances"]), len(second.facts["instances"])) == (2, 4)
    results = ci.get(f"/experiments/{number}/results").json()
    assert results["differing"]["policy"] == []
    assert {row["path"]: row["values"] for row in results["differing"]["fleet"]} == {
        "replicas": {"lpwl": "2", "big": "4"},
        "kv_blocks": {"lpwl": "–", "big": "900"},
    }
    assert results["arms"][1]["fleet"] == {"replicas": 4, "engine": {"kv_blocks": 900}}
    report = ci.get(f"/experiments/{number}/report.md").content.decode()
    assert "## Fleets\n\n| differs | Least prefill work left | big |" in report
    assert "## Policies" not in report
    assert len(experiment.record["fleets"]) == 2


def test_the_page_shows_policy_and_fleet_separately(ci, otto_client, demo_pool, sent, data_dir):
    arms = ["round_robin", "lpwl fleet.replicas=4"]
    number = ci.post("/experiments", body(**IN_TWIN, arms=arms)).json()["id"]
    page = otto_client.get(f"/experiments/{number}/").content.decode()
    assert "Options that differ between the arms" in page
    assert "Parameters that differ between the arms" in page
    assert "instances = 4" in page


def test_words_after_a_policy_change_the_policy_and_the_fleet(ci, demo_pool, sent):
    arms = [
        "adaptive_v1 classes.heavy_new_tokens=10000 fleet.replicas=3 fleet.engine.kv_blocks=900 name=T10k",
        "round_robin fleet.kv_blocks=900 fleet.gpu=h200_sxm",
    ]
    made = ci.post("/experiments", body(**IN_TWIN, arms=arms)).json()
    assert [arm["name"] for arm in made["arms"]] == ["T10k", "round_robin kv_blocks=900, gpu=h200_sxm"]
    assert made["arms"][0]["overrides"] == {"classes.heavy_new_tokens": 10000}
    assert made["arms"][0]["fleet"] == {"replicas": 3, "engine": {"kv_blocks": 900}}


@pytest.mark.parametrize(
    ("arm", "path", "message"),
    [
        ({"fleet": {"engine": {"kv_blocks": 3}}}, "arms.1.fleet.engine.kv_blocks", "16"),
        ({"fleet": {"engine": {"colour": 3}}}, "arms.1.fleet.engine.colour", "unknown"),
        ({"fleet": {"engine": {"tp": 64}}}, "arms.1.fleet.engine.tp", "no constants for"),
        ({"fleet": {"replicas": 0}}, "arms.1.fleet.replicas", "from 1 to 1,024"),
        ({"fleet": {"size": 2}}, "arms.1.fleet.size", "unknown field"),
        ("lpwl fleet.replicas=many", "arms.1.fleet.replicas", "from 1 to 1,024"),
        ("lpwl twice", "arms.1", "key=value"),
        ("lpwl fleet.kv_blocks=3 nonsense=1", "arms.1.fleet.engine.kv_blocks", "16"),
    ],
)
def test_a_fleet_that_the_kind_rejects_is_reported_by_path(ci, demo_pool, sent, arm, path, message):
    found = faults(ci.post("/experiments", body(**IN_TWIN, arms=["round_robin", arm])))
    assert message in found[path]
    assert sent == []


STORE = {"engine": {"kv": "mooncake_store", "store_pool": "cellar"}}


def test_an_arm_may_change_the_store_that_the_instances_share(ci, demo_pool, sent, data_dir):
    Pool.objects.create(name="cellar", model="m", kind="sim-store", engine={"setup_ms": 2})
    words = "fleet.kv=mooncake_store fleet.store_pool=cellar fleet.store.gb_per_s=40 fleet.store.setup_ms=null"
    arms = [
        {"name": "slow", "strategy": "lpwl", "fleet": STORE | {"store": {"gb_per_s": 3}}},
        f"lpwl {words} name=fast",
    ]
    number = ci.post("/experiments", body(**IN_TWIN, arms=arms)).json()["id"]
    running.run_experiment(number)
    experiment = Experiment.objects.get(pk=number)
    slow, fast = (provenance.fleet_of(experiment, name).twin.store.link for name in ("slow", "fast"))
    assert (slow.idle_bytes_per_s, slow.setup_s) == (3e9, 2e-3)
    assert (fast.idle_bytes_per_s, fast.setup_s) == (40e9, 1e-3)
    differing = ci.get(f"/experiments/{number}/results").json()["differing"]["fleet"]
    assert {row["path"]: row["values"] for row in differing} == {
        "store.gb_per_s": {"slow": "3", "fast": "40"},
        "store.setup_ms": {"slow": "2", "fast": "1"},
    }


@pytest.mark.parametrize(
    ("fleet", "mode", "message"),
    [
        ({"store": {"gb_per_s": 3}}, IN_TWIN, "the instances share no store"),
        (STORE | {"store": {"gb_per_s": 0}}, IN_TWIN, "0.001 to 10,000 GB/s"),
        (STORE | {"store": {"colour": 1}}, IN_TWIN, "unknown"),
        (STORE | {"store": {"gb_per_s": 3}}, {}, "only the twin can change its options"),
    ],
)
def test_an_impossible_change_of_the_store_is_reported_by_path(ci, demo_pool, sent, fleet, mode, message):
    Pool.objects.create(name="cellar", model="m", kind="sim-store")
    found = faults(ci.post("/experiments", body(**mode, arms=[{"strategy": "lpwl", "fleet": fleet}])))
    assert message in next(text for path, text in found.items() if path.startswith("arms.0.fleet.store"))


def test_an_option_set_to_null_gets_its_default(ci, demo_pool, sent):
    Pool.objects.filter(pk=demo_pool.pk).update(engine={"kv_blocks": 500})
    arms = [{"name": "whole", "strategy": "lpwl", "fleet": {"engine": {"kv_blocks": None}}}]
    made = Experiment.objects.get(pk=ci.post("/experiments", body(**IN_TWIN, arms=arms)).json()["id"])
    (fleet,) = made.record["fleets"].values()
    assert fleet["engine"] == {}
    assert fleet["twin"]["models"][0]["kv_blocks"] > 500


def test_extra_instances_are_added_to_the_desired_number(ci, demo_pool, sent):
    for ordinal, desired in enumerate(("running", "stopped", "running")):
        Instance.objects.create(pool=demo_pool, name=f"demo-{ordinal}", ordinal=ordinal, desired=desired)
    arms = [{"name": "small", "strategy": "lpwl", "fleet": {"engine": {"kv_blocks": 900}}}]
    made = Experiment.objects.get(pk=ci.post("/experiments", body(**IN_TWIN, arms=arms)).json()["id"])
    (fleet,) = made.record["fleets"].values()
    assert list(fleet["twin"]["instances"]) == ["demo-0", "demo-1"]


def test_a_replay_can_change_only_simulated_engines(ci, demo_pool, sent):
    arms = [{"name": "four", "strategy": "lpwl", "fleet": {"replicas": 4}}]
    found = faults(ci.post("/experiments", body(arms=arms, pool="real", time_scale=1)))
    assert "a replay can change the fleet of simulated engines only" in found["arms.0.fleet"]
    made = Experiment.objects.get(pk=ci.post("/experiments", body(arms=arms)).json()["id"])
    (fleet,) = made.record["fleets"].values()
    assert (fleet["replicas"], "twin" in fleet) == (4, False)


def test_a_replay_starts_the_recorded_fleet(ci, demo_pool, sent, monkeypatch):
    arms = [{"name": "four", "strategy": "lpwl", "fleet": {"replicas": 4, "engine": {"kv_blocks": 900}}}]
    made = Experiment.objects.get(pk=ci.post("/experiments", body(arms=arms)).json()["id"])
    for name in ("put_policy", "_wait_for_earlier", "_wait_for_instances", "_wait_for_routers"):
        monkeypatch.setattr(ephemeral_pool, name, lambda *args: None)

    class Quiet:
        def beat(self, **progress):
            pass

    pool = ephemeral_pool.set_up(made.runs.get(), made, made.settled_arms[0], Quiet())
    assert (pool.replicas, pool.engine) == (4, {"seed": 1, "kv_blocks": 900, "time_scale": 10})


def test_calibrated_engines_can_only_change_in_number(ci, demo_pool, sent, monkeypatch, live_redis):
    from fleet.calibration import services as calibration

    monkeypatch.setattr(calibration, "measure", measure_well)
    instance()
    assert calibration.perform(calibration.ask_for("chat-0", "ada").pk)
    arms = [{"name": "other", "strategy": "lpwl", "fleet": {"engine": {"max_num_seqs": 8}}}]
    found = faults(ci.post("/experiments", body(**IN_TWIN, arms=arms, pool="chat")))
    assert "only replicas can be changed" in found["arms.0.fleet.engine"]
    arms[0]["fleet"] = {"replicas": 3}
    made = Experiment.objects.get(pk=ci.post("/experiments", body(**IN_TWIN, arms=arms, pool="chat")).json()["id"])
    (fleet,) = made.record["fleets"].values()
    assert len(fleet["twin"]["instances"]) == 3
    assert fleet["calibration"]["constants"]


DEP4 = {"attention_dp": True, "tensor_parallel": 8, "prefill_tensor_parallel": 4, "prefill_instances": 1}
OFFLOAD = {"flow.heavy": "offload", "classes.heavy_new_tokens": 500, "classes.warm_new_tokens": 100}


def test_a_dep_pool_and_a_dwdp_pool_are_compared(ci, demo_pool, sent, data_dir):
    engine = DEP4 | {"chunked_prefill": False, "max_num_tokens": 32_768}
    Pool.objects.create(name="r1", model="DeepSeek-R1", kind="trtllm", replicas=2, engine=engine)
    dwdp = {"dwdp_size": 4, "prefill_tensor_parallel": None, "prefill_instances": 4}
    arms = [
        {"name": "DEP4", "strategy": "lpwl", "overrides": OFFLOAD},
        {
            "name": "DWDP4",
            "strategy": "lpwl",
            "overrides": OFFLOAD,
            "fleet": {"replicas": 5, "engine": dwdp},
        },
    ]
    asked = body(**IN_TWIN | {"duration_s": 6}, arms=arms, pool="r1")
    number = ci.post("/experiments", asked).json()["id"]
    experiment = Experiment.objects.get(pk=number)
    kept = [fleet["twin"] for fleet in experiment.record["fleets"].values()]
    assert sorted(model["law_type"] for one in kept for model in one["models"]) == ["DepLaw", "DwdpLaw", "Law", "Law"]
    assert {one["about"][-5:] for one in kept} == {" DEP4", "DWDP4"}
    for arm in experiment.settled_arms:
        pool = fleets.changed(Pool.objects.get(name="r1"), arm.fleet, "")
        made = twin_of(pool)
        assert read_again(fleets.recorded(made)) == made
    running.run_experiment(number)
    first, second = (run.facts for run in Experiment.objects.get(pk=number).runs.order_by("arm"))
    assert (len(first["instances"]), len(second["instances"])) == (2, 5)
    wrong = [{**arms[1], "fleet": {"replicas": 5, "engine": dwdp | {"dwdp_experts": 60}}}]
    found = faults(ci.post("/experiments", body(**IN_TWIN, arms=wrong, pool="r1")))
    assert "60 held leave 196 of 256 experts" in found["arms.0.fleet.engine.dwdp_experts"]
    split = [{**arms[1], "fleet": {"replicas": 3, "engine": dwdp}}]
    found = faults(ci.post("/experiments", body(**IN_TWIN, arms=split, pool="r1")))
    assert "would split a group" in found["arms.0.fleet.replicas"]


def test_the_same_gpus_cost_the_same_as_ranks_and_as_instances(ci, demo_pool, sent, data_dir):
    arms = [
        {"name": "ranks", "strategy": "lpwl", "fleet": {"replicas": 2, "engine": {"data_parallel_size": 4}}},
        {"name": "instances", "strategy": "lpwl", "fleet": {"replicas": 8}},
    ]
    number = ci.post("/experiments", body(**IN_TWIN | {"duration_s": 20}, arms=arms)).json()["id"]
    running.run_experiment(number)
    ranks, instances = ci.get(f"/experiments/{number}/results").json()["arms"]
    assert len(ranks["runs"][0]["prompt_tokens_by_instance"]) == 8
    assert ranks["classes"]["all"] == instances["classes"]["all"]
    assert ranks["tokens_per_gpu_s"] == instances["tokens_per_gpu_s"] > 0
    assert ranks["dollars_per_million"] == instances["dollars_per_million"] > 0


def test_results_of_an_experiment_older_than_records_have_no_fleets(ended):
    assert results_of(ended())["differing"]["fleet"] == []

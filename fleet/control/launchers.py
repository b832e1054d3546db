"""The launcher of this process: for the host, or for a Kubernetes namespace if the settings name one."""

import functools

from django.conf import settings

from fleet.node.host_launcher import PROCESSES
from fleet.node.launcher import Launcher


def current() -> Launcher:
    if not settings.KUBERNETES_NAMESPACE:
        return PROCESSES
    return _pods(settings.KUBERNETES_NAMESPACE, settings.KUBERNETES_CONTEXT, settings.KUBERNETES_PODS)


@functools.cache
def _pods(namespace: str, context: str, file: str) -> Launcher:
    from fleet.kubernetes.pods import Pods  # imported late, because the client takes half a second to load

    return Pods.of(namespace, context, file)


forget = _pods.cache_clear

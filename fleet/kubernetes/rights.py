"""Whether a node's credentials may do what it does, as the API server itself says."""

from fleet.kubernetes.api import KubernetesApi

NEEDED = (
    *(("pods", verb, "") for verb in ("get", "list", "watch", "create", "delete")),
    ("pods", "get", "log"),
    ("secrets", "create", ""),
)


def missing(api: KubernetesApi) -> list[str]:
    """`create pods`, for what it may not. KubernetesError when the server cannot be asked."""
    return [
        f"{verb} {resource}{part and f'/{part}'}"
        for resource, verb, part in NEEDED
        if not api.may(verb, resource, part)
    ]

"""Requests to the API server of a cluster, through the official client (kubernetes).

The client handles kubeconfig and in-cluster configuration, renewal of credentials, TLS and proxies. Its models are not
used, as they may reject objects of a newer server (fleet/kubernetes/objects.py).

KubernetesError
├── NotReached   no answer, or a temporary error
├── Forbidden    the message names the verb and the resource (403)
├── Absent       no such object (404)
├── Exists       the object exists already (409)
└── Expired      a watch from a version that the server no longer has (410)
"""

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlencode

import msgspec
import urllib3
import yaml
from kubernetes import client, config
from kubernetes.config import incluster_config
from kubernetes.config.config_exception import ConfigException
from urllib3.exceptions import HTTPError, MaxRetryError

from fleet.kubernetes.objects import ApiRefusal, Event, ObjectList, Pod, Resource, Version
from fleet.kubernetes.overlay import Json
from fleet.node.launcher import LaunchFailed
from router.contract.values.reading import read_json

Answer = TypeVar("Answer")
CONNECT_S = 3.0
READ_S = 10.0
NEEDED_RIGHTS = (
    *(("pods", verb, "") for verb in ("get", "list", "watch", "create", "delete")),
    ("pods", "get", "log"),
    ("secrets", "create", ""),
)
_LATER = frozenset({429, 500, 502, 503, 504})


class KubernetesError(LaunchFailed):
    pass


class NotReached(KubernetesError):
    pass


class Forbidden(KubernetesError):
    pass


class Absent(KubernetesError):
    pass


class Exists(KubernetesError):
    pass


class Expired(KubernetesError):
    pass


_ERRORS: Mapping[int, type[KubernetesError]] = {403: Forbidden, 404: Absent, 409: Exists, 410: Expired}
_ADVICE = {
    401: "the credentials are rejected: renew the kubeconfig or the service account's token",
    403: "give the role that docs/kubernetes.md lists",
}


class KubernetesApi:
    """The API of one namespace of one cluster; safe for several threads."""

    def __init__(self, namespace: str, context: str = "") -> None:
        self.namespace = namespace
        settings = configuration(context)
        self.server = settings.host
        self._client = client.ApiClient(settings)

    def version(self) -> str:
        return self._read(Version, "GET", "/version").git_version

    def list_pods(self, selector: str) -> tuple[list[Pod], str]:
        """Return the Pods with these labels, and the version for a watch."""
        found = self._read(ObjectList[Pod], "GET", self._path("pods"), {"labelSelector": selector})
        return found.items, found.metadata.resource_version

    def watch_pods(self, selector: str, version: str, timeout_s: float) -> Iterator[tuple[str, Pod]]:
        """Yield (type, Pod) of each event after the given version, until the server ends the watch after `timeout_s`.
        Raise Expired.
        """
        query = {"labelSelector": selector, "watch": "true", "resourceVersion": version}
        query |= {"timeoutSeconds": str(int(timeout_s)), "allowWatchBookmarks": "true"}
        response = self._send("GET", self._path("pods"), query, read_s=timeout_s + CONNECT_S)
        try:
            _check(response)
            for line in _lines(response):
                event = read_json(line, Event)
                if event.type == "ERROR":
                    refused = read_json(event.object, ApiRefusal)
                    raise _error(refused.code, refused.message)
                yield event.type, read_json(event.object, Pod)
        except (HTTPError, ValueError) as error:  # the connection broke, perhaps in the middle of an event
            raise NotReached(f"the watch of {self.server} broke off: {error}") from None
        finally:
            response.close()
            response.release_conn()

    def create_pod(self, body: Json) -> Pod:
        """Create a Pod. Raise Exists if the name is taken."""
        return self._read(Pod, "POST", self._path("pods"), body=body)

    def create_secret(self, body: Json) -> None:
        """Create a Secret. Raise Exists if the name is taken."""
        self._ask("POST", self._path("secrets"), body=body)

    def read_pod(self, name: str) -> Pod:
        return self._read(Pod, "GET", self._path("pods", name))

    def delete_pod(self, name: str, grace_s: float) -> bool:
        """Delete a Pod, killing it after the grace period; return False if it does not exist."""
        options = {"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": max(1, int(grace_s))}
        try:
            self._ask("DELETE", self._path("pods", name), body=options)
        except Absent:
            return False
        return True

    def log(self, pod: str, lines: int) -> list[str]:
        query = {"tailLines": str(lines), "container": "engine"}
        return self._ask("GET", self._path("pods", pod, "log"), query).decode(errors="replace").splitlines()

    def nodes(self) -> list[Resource]:
        return self._read(ObjectList[Resource], "GET", "/api/v1/nodes").items

    def quotas(self) -> list[Resource]:
        return self._read(ObjectList[Resource], "GET", self._path("resourcequotas")).items

    def may(self, verb: str, resource: str, part: str = "") -> bool:
        """Return whether the server allows the request (SelfSubjectAccessReview)."""
        asked = {"namespace": self.namespace, "verb": verb, "resource": resource, "subresource": part}
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": {name: value for name, value in asked.items() if value}},
        }
        path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
        return self._read(Resource, "POST", path, body=body).status.allowed

    def missing_rights(self) -> list[str]:
        """Return the rights that a node needs but does not have, such as "create pods"."""
        return [
            f"{verb} {resource}{part and f'/{part}'}"
            for resource, verb, part in NEEDED_RIGHTS
            if not self.may(verb, resource, part)
        ]

    def close(self) -> None:
        self._client.rest_client.pool_manager.clear()

    def _path(self, *words: str) -> str:
        return "/".join(("/api/v1/namespaces", self.namespace, *words))

    def _read(
        self,
        kind: type[Answer],
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Json | None = None,
    ) -> Answer:
        try:
            return read_json(self._ask(method, path, query, body), kind)
        except msgspec.DecodeError as error:
            raise KubernetesError(
                f"{self.server}{path} did not answer with the expected JSON object: {error}"
            ) from None

    def _ask(self, method: str, path: str, query: Mapping[str, str] | None = None, body: Json | None = None) -> bytes:
        response = self._send(method, path, query, body)
        _check(response)
        return response.data

    def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Json | None = None,
        read_s: float | None = None,
    ) -> urllib3.BaseHTTPResponse:
        headers = {"Accept": "application/json", "Content-Type": "application/json", "User-Agent": "weir"}
        try:
            self._client.update_params_for_auth(headers, [], ["BearerToken"])  # renews an expired token
            response: urllib3.BaseHTTPResponse = self._client.rest_client.pool_manager.request(
                method,
                f"{self.server}{path}?{urlencode(query)}" if query else f"{self.server}{path}",
                body=json.dumps(body) if body is not None else None,
                headers=headers,
                timeout=urllib3.Timeout(connect=CONNECT_S, read=read_s or READ_S),
                preload_content=False,
            )
        except MaxRetryError as error:
            raise NotReached(f"the API server {self.server} cannot be reached: {error.reason}") from None
        except (HTTPError, ConfigException, OSError) as error:
            raise NotReached(f"the API server {self.server} cannot be reached: {_first_line(error)}") from None
        return response


def configuration(context: str) -> client.Configuration:
    """Return the configuration of the cluster in which Weir runs, or from the kubeconfig (its current context, or
    the given one)."""
    found = client.Configuration()
    # Names contain the epoch, so that a repeated request never starts or ends anything twice.
    found.retries = urllib3.Retry(
        total=4, connect=1, read=1, status=3, backoff_factor=0.2, status_forcelist=_LATER,
        allowed_methods=None, raise_on_status=False, retry_after_max=5,
    )  # fmt: skip
    try:
        if not context and Path(incluster_config.SERVICE_TOKEN_FILENAME).exists():
            config.load_incluster_config(found)
        else:
            file = os.environ.get("KUBECONFIG") or None
            config.load_kube_config(file, context or None, client_configuration=found, persist_config=False)
    except (ConfigException, yaml.YAMLError, OSError, ValueError, TypeError, KeyError) as error:
        where = f"context {context} of the kubeconfig" if context else "the kubeconfig"
        raise KubernetesError(f"{where} cannot be used: {_first_line(error)} (KUBECONFIG, --context)") from None
    return found


def _check(response: urllib3.BaseHTTPResponse) -> None:
    """Raise the error of an unsuccessful response."""
    if response.status < 300:
        return
    try:
        message = read_json(response.data, ApiRefusal).message
    except msgspec.DecodeError:
        message = response.data.decode(errors="replace")[:300]
    raise _error(response.status, message)


def _error(status: int, message: str) -> KubernetesError:
    message = message or f"the API server answers {status}"
    if status in _LATER:
        return NotReached(f"the API server answers {status}: {message}")
    advice = "" if "exceeded quota" in message else _ADVICE.get(status, "")
    return _ERRORS.get(status, KubernetesError)(f"{message}; {advice}" if advice else message)


def _lines(response: urllib3.BaseHTTPResponse) -> Iterator[bytes]:
    rest = b""
    for chunk in response.stream(None, decode_content=True):
        *whole, rest = (rest + chunk).split(b"\n")
        yield from (line for line in whole if line.strip())


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]

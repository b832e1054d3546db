"""A stand-in for a Kubernetes API server, with a stand-in for a kubelet behind it.

A real HTTP server on loopback that answers the paths that Weir asks, with the status codes and bodies of the real one.
A test sets what becomes of a Pod (`set_status`), what is refused (`fail`, `forbid`), and when the server is unreachable
(`stop`, `cut`). With `kubelet=True` each Pod's command is run as a process of this host that listens on a own loopback
address, so that whole loops can be tested; images, volumes and limits mean nothing there.
"""

import datetime as dt
import itertools
import json
import re
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from fleet.tests.kubelet import Kubelet

Json = dict[str, Any]
TOKEN = "secret-token"


@dataclass
class Refusal:
    method: str
    path: str  # a regular expression
    status: int
    message: str
    times: int
    headers: dict[str, str] = field(default_factory=dict)
    raw: str = ""  # sent instead of a status object


def status_body(code: int, reason: str, message: str) -> Json:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "message": message,
        "reason": reason,
        "code": code,
    }


class Cluster:
    def __init__(self, folder: Path, kubelet: bool = False) -> None:
        self.objects: dict[tuple[str, str], Json] = {}  # (resource, name)
        self.events: list[tuple[int, Json]] = []  # events of Pods
        self.requests: list[tuple[str, str]] = []
        self.bodies: list[Json] = []  # bodies of POST requests
        self.refusals: list[Refusal] = []
        self.forbidden: set[tuple[str, str]] = set()  # (verb, resource)
        self.nodes: list[Json] = []
        self.quotas: list[Json] = []
        self.logs: dict[str, str] = {}
        self.oldest = 0  # a watch from an earlier version has expired
        self.folder = folder
        self.changed = threading.Condition(threading.RLock())
        self.generation = 0  # generation of connections: `cut` ends those of earlier ones
        self._version = itertools.count(101)
        self.version = 100
        self._kubelet = Kubelet(self) if kubelet else None
        self._server: ThreadingHTTPServer | None = None
        self.port = 0
        self.start()

    # Called by a test

    def before(self) -> None:
        """A hook before each answer; a test may replace it."""

    def start(self) -> None:
        handler = type("Handler", (_Handler,), {"cluster": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        """Stop the server: connections are refused, and open ones break."""
        assert self._server is not None
        self._server.shutdown()
        self._server.server_close()
        self.cut()

    def cut(self) -> None:
        """Break every watch."""
        with self.changed:
            self.generation += 1
            self.changed.notify_all()

    def close(self) -> None:
        self.stop()
        if self._kubelet is not None:
            self._kubelet.close()

    def kubeconfig(self, token: str = TOKEN) -> Path:
        path = self.folder / "kubeconfig"
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "here",
            "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{self.port}"}}],
            "users": [{"name": "u", "user": {"token": token}}],
            "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
        }
        path.write_text(json.dumps(content))
        return path

    def fail(self, method: str, path: str, status: int, message: str = "", times: int = 1, **headers: str) -> None:
        self.refusals.append(Refusal(method, path, status, message, times, headers))

    def expire(self) -> None:
        """Forget earlier versions: a watch that asks for one gets the error that it has expired."""
        with self.changed:
            self.oldest = self.version + 1
            self.put("pods", "unrelated", {"metadata": {"name": "unrelated", "labels": {}}, "spec": {}, "status": {}})
        self.cut()

    def pods(self) -> dict[str, Json]:
        with self.changed:
            return {name: pod for (resource, name), pod in self.objects.items() if resource == "pods"}

    def set_status(self, name: str, **status: Any) -> None:
        with self.changed:
            pod = self.objects["pods", name]
            self.put("pods", name, {**pod, "status": {**pod["status"], **status}})

    def container(self, name: str, phase: str = "Pending", message: str = "", **state: Any) -> None:
        self.set_status(name, phase=phase, containerStatuses=[{"name": "engine", "state": state}])

    def remove(self, name: str) -> None:
        """Report, as a kubelet does, that nothing of the Pod runs any more."""
        with self.changed:
            pod = self.objects.pop(("pods", name), None)
            if pod is not None:
                self._tell("DELETED", pod)
                for key in [key for key, one in self.objects.items() if _owned_by(one, pod)]:
                    del self.objects[key]  # does the garbage collector's work

    # Called by clients

    def put(self, resource: str, name: str, body: Json) -> Json:
        with self.changed:
            kind = "MODIFIED" if (resource, name) in self.objects else "ADDED"
            self.version = next(self._version)
            body = {**body, "metadata": {**body["metadata"], "resourceVersion": str(self.version)}}
            self.objects[resource, name] = body
            if resource == "pods":
                self._tell(kind, body)
            return body

    def _tell(self, kind: str, pod: Json) -> None:
        self.version = next(self._version) if kind == "DELETED" else self.version
        pod = {**pod, "metadata": {**pod["metadata"], "resourceVersion": str(self.version)}}
        self.events.append((self.version, {"type": kind, "object": pod}))
        self.changed.notify_all()

    def create(self, resource: str, body: Json) -> tuple[int, Json]:
        name = body["metadata"]["name"]
        with self.changed:
            if (resource, name) in self.objects:
                return 409, status_body(409, "AlreadyExists", f'{resource} "{name}" already exists')
            made = {"uid": str(uuid.uuid4()), "creationTimestamp": _now()}
            body = {**body, "metadata": {**body["metadata"], **made}}
            if resource == "pods":
                body["status"] = {"phase": "Pending"}
            return 201, self.put(resource, name, body)

    def delete(self, name: str, grace_s: int) -> tuple[int, Json]:
        with self.changed:
            pod = self.objects.get(("pods", name))
            if pod is None:
                return 404, status_body(404, "NotFound", f'pods "{name}" not found')
            if pod["status"]["phase"] in ("Failed", "Succeeded") or not pod["spec"].get("nodeName"):
                self.remove(name)
                return 200, pod
            deadline = _now(grace_s)
            there = pod["metadata"].get("deletionTimestamp")
            mark = min(there, deadline) if there else deadline
            pod = self.put("pods", name, {**pod, "metadata": {**pod["metadata"], "deletionTimestamp": mark}})
            return 200, pod

    def refusal(self, method: str, path: str) -> Refusal | None:
        for one in self.refusals:
            if one.times and one.method == method and re.search(one.path, path):
                one.times -= 1
                return one
        return None


def _owned_by(one: Json, pod: Json) -> bool:
    owners = one["metadata"].get("ownerReferences", ())
    return any(owner["uid"] == pod["metadata"].get("uid") for owner in owners)


def _now(later_s: float = 0) -> str:
    at = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=later_s)
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")


def _matches(pod: Json, selector: str) -> bool:
    labels = pod["metadata"].get("labels") or {}
    return all(
        labels.get(name) == value for name, _, value in (one.partition("=") for one in selector.split(",") if one)
    )


_VERBS = {"GET": "list", "POST": "create", "DELETE": "delete"}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    cluster: Cluster

    def do_GET(self) -> None:
        self._answer("GET")

    def do_POST(self) -> None:
        self._answer("POST")

    def do_DELETE(self) -> None:
        self._answer("DELETE")

    def _answer(self, method: str) -> None:
        length = int(self.headers.get("content-length") or 0)
        body = json.loads(self.rfile.read(length)) if length else {}
        parts = urlsplit(self.path)
        cluster, query = self.cluster, {name: values[0] for name, values in parse_qs(parts.query).items()}
        cluster.requests.append((method, self.path))
        cluster.before()
        refusal = cluster.refusal(method, self.path)
        if refusal is not None:
            words = status_body(refusal.status, "Failure", refusal.message)
            self._say(refusal.status, refusal.raw or words, refusal.headers)
        elif self.headers.get("Authorization", "").lower() != f"bearer {TOKEN}":
            self._say(401, status_body(401, "Unauthorized", "Unauthorized"))
        else:
            self._route(method, parts.path, query, body)

    def _route(self, method: str, path: str, query: dict[str, str], body: Json) -> None:
        for pattern, route in _ROUTES.items():
            found = re.fullmatch(pattern, path)
            if found is not None:
                resource = found.groupdict().get("resource", "")
                if (_VERBS[method], resource) in self.cluster.forbidden:
                    self._say(403, _forbidden(_VERBS[method], resource))
                else:
                    route(self, method, found.groupdict(), query, body)
                return
        self._say(404, status_body(404, "NotFound", f"no such path {path}"))

    def version(self, method: str, found: Json, query: Json, body: Json) -> None:
        self._say(200, {"major": "1", "minor": "37", "gitVersion": "v1.37.0"})

    def review(self, method: str, found: Json, query: Json, body: Json) -> None:
        asked = body["spec"]["resourceAttributes"]
        allowed = (asked["verb"], asked["resource"]) not in self.cluster.forbidden
        self._say(201, {**body, "status": {"allowed": allowed}})

    def machines(self, method: str, found: Json, query: Json, body: Json) -> None:
        self._say(200, {"kind": "NodeList", "items": self.cluster.nodes})

    def many(self, method: str, found: Json, query: Json, body: Json) -> None:
        resource = found["resource"]
        if method == "POST":
            self.cluster.bodies.append(body)
            self._say(*self.cluster.create(resource, body))
        elif resource == "resourcequotas":
            self._say(200, {"kind": "ResourceQuotaList", "items": self.cluster.quotas})
        elif query.get("watch"):
            self._watch(query)
        else:
            with self.cluster.changed:
                pods = [pod for pod in self.cluster.pods().values() if _matches(pod, query.get("labelSelector", ""))]
                version = str(self.cluster.version)
            self._say(200, {"kind": "PodList", "metadata": {"resourceVersion": version}, "items": pods})

    def one(self, method: str, found: Json, query: Json, body: Json) -> None:
        if method == "DELETE":
            self._say(*self.cluster.delete(found["name"], body.get("gracePeriodSeconds", 30)))
            return
        pod = self.cluster.pods().get(found["name"])
        gone = status_body(404, "NotFound", f'pods "{found["name"]}" not found')
        self._say(200, pod) if pod is not None else self._say(404, gone)

    def log(self, method: str, found: Json, query: Json, body: Json) -> None:
        path = self.cluster.folder / f"{found['name']}.log"
        text = path.read_text() if path.exists() else self.cluster.logs.get(found["name"], "")
        self._say(200, "".join(text.splitlines(keepends=True)[-int(query["tailLines"]) :]))

    def _watch(self, query: dict[str, str]) -> None:
        begun, since = self.cluster.generation, int(query["resourceVersion"])
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        try:
            for event in self._events(since, float(query["timeoutSeconds"]), query["labelSelector"]):
                data = json.dumps(event).encode() + b"\n"
                self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
            if begun == self.cluster.generation:
                self.wfile.write(b"0\r\n\r\n")
            else:
                self.close_connection = True  # breaks the connection in the middle of the answer
        except OSError:
            self.close_connection = True

    def _events(self, since: int, timeout_s: float, selector: str) -> Iterator[Json]:
        cluster, begun = self.cluster, self.cluster.generation
        if since < cluster.oldest:
            yield {"type": "ERROR", "object": status_body(410, "Expired", "too old resource version")}
            return
        end = dt.datetime.now() + dt.timedelta(seconds=timeout_s)
        while begun == cluster.generation:
            with cluster.changed:
                new = [event for version, event in cluster.events if version > since]
                left_s = (end - dt.datetime.now()).total_seconds()
                if not new and left_s <= 0:
                    break
                if not new:
                    cluster.changed.wait(left_s)
                    continue
                since = cluster.version
            yield from (event for event in new if _matches(event["object"], selector))

    def _say(self, status: int, body: Json | str, headers: dict[str, str] | None = None) -> None:
        data = (body if isinstance(body, str) else json.dumps(body)).encode()
        self.send_response(status)
        for name, value in {"content-length": str(len(data)), **(headers or {})}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *words: object) -> None:
        pass


def _forbidden(verb: str, resource: str) -> Json:
    who = 'User "system:serviceaccount:weir:weir-node"'
    words = (
        f'{resource} is forbidden: {who} cannot {verb} resource "{resource}" in API group "" in the namespace "weir"'
    )
    return status_body(403, "Forbidden", words)


_ROUTES: dict[str, Callable[..., None]] = {
    "/version": _Handler.version,
    "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews": _Handler.review,
    "/api/v1/(?P<resource>nodes)": _Handler.machines,
    "/api/v1/namespaces/[^/]+/(?P<resource>pods|secrets|resourcequotas)": _Handler.many,
    "/api/v1/namespaces/[^/]+/(?P<resource>pods)/(?P<name>[^/]+)": _Handler.one,
    "/api/v1/namespaces/[^/]+/pods/(?P<name>[^/]+)/log": _Handler.log,
}

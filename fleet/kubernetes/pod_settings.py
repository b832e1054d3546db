"""Settings of the Pods of a node: images, capacity and a template, read from a YAML file. Pure.

images: {vllm: vllm/vllm-openai:v0.32.0}
capacity: {cpus: 64, memory_gib: 512, gpus: 8}
template: {spec: {nodeSelector: {…}, volumes: […], containers: [{name: engine, volumeMounts: […]}]}}
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from fleet.kinds import KINDS
from fleet.kinds.resources import PodsOfNode
from fleet.kubernetes.overlay import Json
from fleet.spec import document
from fleet.spec.masking import hidden
from fleet.spec.problems import Problems
from router.contract.values.problem import Problem


class BadPodSettings(ValueError):
    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("; ".join(str(problem) for problem in problems))


@dataclass(frozen=True, slots=True)
class PodSettings:
    namespace: str = "default"
    images: Mapping[str, str] = field(default_factory=dict)  # kind → image
    capacity: Mapping[str, float] = field(default_factory=dict)  # capacity of the node; empty: that of the cluster
    template: Json = field(default_factory=dict)  # metadata and spec, merged into each Pod

    def image(self, kind: str, asked: str | None) -> str:
        """Return the image. Raise LookupError if the kind has none."""
        found = asked or self.images.get(kind) or KINDS[kind].image
        if not found:
            raise LookupError(f"no image for the kind {kind}: set engine.image, or images.{kind} of the node's file")
        return found


def public_settings(settings: PodSettings) -> PodsOfNode:
    """Return the settings for pages, without secrets."""
    return PodsOfNode(settings.namespace, dict(settings.images), hidden(settings.template))


def read(text: str, namespace: str) -> PodSettings:
    """Parse the settings. Raise BadPodSettings with every problem, or UnreadableDocument."""
    given = document.load(text)
    given = {} if given is None else given
    problems = _problems(given)
    if problems:
        raise BadPodSettings(problems)
    return PodSettings(namespace, given.get("images", {}), given.get("capacity", {}), given.get("template", {}))


def _problems(given: object) -> Problems:
    problems = Problems()
    if not isinstance(given, Mapping):
        problems.note("", given, "must be a mapping with images, capacity and template")
        return problems
    known = problems.keys("", given, _CHECKS)
    for name, part in known.items():
        _CHECKS[name](problems.mapping(name, part), problems)
    return problems


def _images(given: Mapping[str, object], problems: Problems) -> None:
    kinds = [name for name, kind in KINDS.items() if kind.launched]
    for name, image in given.items():
        if name not in kinds:
            problems.note(f"images.{name}", image, "unknown kind", ", ".join(kinds))
        if not isinstance(image, str) or not image.strip():
            problems.note(f"images.{name}", image, "must be the name of an image")


def _capacity(given: Mapping[str, object], problems: Problems) -> None:
    for name, value in problems.keys("capacity", given, ("cpus", "memory_gib", "gpus")).items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1_000_000:
            problems.note(f"capacity.{name}", value, "must be a number", "0 to 1,000,000")


def _template(given: Mapping[str, object], problems: Problems) -> None:
    parts = problems.keys("template", given, ("metadata", "spec"))
    spec = {name: problems.mapping(f"template.{name}", part) for name, part in parts.items()}.get("spec", {})
    if "restartPolicy" in spec:
        why = "must not be set: Weir restarts ended instances"
        problems.note("template.spec.restartPolicy", spec["restartPolicy"], why)
    containers = spec.get("containers", [])
    if not isinstance(containers, list) or not all(isinstance(one, Mapping) and one.get("name") for one in containers):
        why = "must be a list of containers with names; the engine's is engine"
        problems.note("template.spec.containers", containers, why)


_CHECKS = {"images": _images, "capacity": _capacity, "template": _template}

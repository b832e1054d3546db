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
from router.contract.values.problem import Problem

_CAPACITY = ("cpus", "memory_gib", "gpus")
_FIXED = ("restartPolicy",)  # fields that Weir's plan relies on


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


def _problems(given: object) -> list[Problem]:
    if not isinstance(given, Mapping):
        return [Problem("", given, "must be a mapping with images, capacity and template")]
    found = [
        Problem(str(name), given[name], "unknown key", "images, capacity, template")
        for name in given
        if name not in ("images", "capacity", "template")
    ]
    parts = {name: given.get(name, {}) for name in ("images", "capacity", "template")}
    wrong = [Problem(name, part, "must be a mapping") for name, part in parts.items() if not isinstance(part, Mapping)]
    if wrong:
        return found + wrong
    return [*found, *_images(parts["images"]), *_capacity(parts["capacity"]), *_template(parts["template"])]


def _images(given: Mapping[str, object]) -> list[Problem]:
    kinds = ", ".join(name for name, kind in KINDS.items() if kind.launched)
    wrong = [name for name in given if name not in KINDS or not KINDS[name].launched]
    found = [Problem(f"images.{name}", given[name], "unknown kind", kinds) for name in wrong]
    empty = [name for name, image in given.items() if not isinstance(image, str) or not image.strip()]
    return found + [Problem(f"images.{name}", given[name], "must be the name of an image") for name in empty]


def _capacity(given: Mapping[str, object]) -> list[Problem]:
    unknown = [name for name in given if name not in _CAPACITY]
    found = [Problem(f"capacity.{name}", given[name], "unknown key", ", ".join(_CAPACITY)) for name in unknown]
    numbers = {name: value for name, value in given.items() if name in _CAPACITY}
    return found + [
        Problem(f"capacity.{name}", value, "must be a number", "0 to 1,000,000")
        for name, value in numbers.items()
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1_000_000
    ]


def _template(given: Mapping[str, object]) -> list[Problem]:
    found = [
        Problem(f"template.{name}", given[name], "unknown key", "metadata, spec")
        for name in given
        if name not in ("metadata", "spec")
    ]
    parts = {name: part for name, part in given.items() if name in ("metadata", "spec")}
    found += [
        Problem(f"template.{name}", part, "must be a mapping")
        for name, part in parts.items()
        if not isinstance(part, Mapping)
    ]
    spec = parts.get("spec")
    if isinstance(spec, Mapping):
        found += [
            Problem(f"template.spec.{name}", spec[name], "must not be set: Weir restarts ended instances")
            for name in _FIXED
            if name in spec
        ]
        found += _containers(spec.get("containers", []))
    return found


def _containers(given: object) -> list[Problem]:
    if isinstance(given, list) and all(isinstance(one, Mapping) and one.get("name") for one in given):
        return []
    return [
        Problem("template.spec.containers", given, "must be a list of containers with names; the engine's is engine")
    ]

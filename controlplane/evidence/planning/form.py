"""The form that starts a plan: its fields and their errors."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from django.http import QueryDict

from controlplane.evidence.planning.body import PlanIn
from fleet.engine.profiles import GPUS
from router.contract.values.fields import typed_number
from router.contract.values.json_value import JsonObject
from router.contract.values.problem import Problem, by_path
from router.policy.types import CLASSES

LATENCIES = (("ttft_ms", "TTFT, ms"), ("tpot_ms", "TPOT, ms"), ("e2e_ms", "E2E, ms"))
NUMBERS = (
    ("share", "Share within", "of each class, 0–1"),
    ("most_gpus", "GPUs at most", ""),
    ("requests", "Requests", "the busiest in a row"),
    ("seed", "Seed", ""),
)
LISTS = (
    ("policies", "Policies", "strategies, with commas"),
    ("host_gb", "Host memory for KV, GB", "per instance; several with commas"),
)
FIRST = {"slo.all.ttft_ms": "2000", "slo.all.tpot_ms": "50"}


@dataclass(frozen=True, slots=True)
class AskedField:
    name: str
    title: str
    value: str
    hint: str = ""
    error: str = ""


class PlanForm:
    latencies = LATENCIES

    def __init__(self, typed: QueryDict | None = None, problems: Sequence[Problem] = ()) -> None:
        self._typed, self.problems = typed, problems
        self._errors = by_path(problems)

    def body(self) -> JsonObject:
        """Return the form as a body of the API; an empty field takes its default."""
        raw: JsonObject = {name: self._text(name) for name in ("trace", "model", "pool") if self._text(name)}
        raw |= {name: typed_number(self._text(name)) for name, _, _ in NUMBERS if self._text(name)}
        for name, _, _ in LISTS:
            if words := self._text(name).replace(",", " ").split():
                raw[name] = [typed_number(word) if name == "host_gb" else word for word in words]
        gpus: JsonObject = {
            name: typed_number(self._text(f"gpus.{name}")) for name in GPUS if self._text(f"gpus.{name}")
        }
        limits: JsonObject = {
            name: {key: typed_number(self._text(f"slo.{name}.{key}")) for key, _ in LATENCIES if self._at(name, key)}
            for name in ("all", *CLASSES)
        }
        return raw | {"gpus": gpus, "slo": {name: given for name, given in limits.items() if given}}

    @property
    def trace(self) -> str:
        return self._text("trace")

    @property
    def model(self) -> AskedField:
        return self._field("model", "Model", "a profile of the catalogue")

    @property
    def pool(self) -> AskedField:
        return self._field("pool", "Calibrated pool", "its engines in place of the model's; may be empty")

    def slo(self) -> Iterator[tuple[str, list[AskedField], str]]:
        """Yield (class, its limits, the error that concerns all of them)."""
        for name in ("all", *CLASSES):
            path = f"slo.{name}"
            fields = [self._field(f"{path}.{key}", f"{title} of {name}") for key, title in LATENCIES]
            yield name, fields, self._errors.get(path, self._errors.get("slo", "") if name == "all" else "")

    def gpus(self) -> list[AskedField]:
        return [self._field(f"gpus.{name}", name) for name in GPUS]

    @property
    def gpus_error(self) -> str:
        return self._errors.get("gpus", "")

    def numbers(self) -> list[AskedField]:
        return [self._field(*about) for about in (*NUMBERS, *LISTS)]

    def _at(self, name: str, key: str) -> str:
        return self._text(f"slo.{name}.{key}")

    def _field(self, name: str, title: str, hint: str = "") -> AskedField:
        error = next((text for path, text in self._errors.items() if f"{path}.".startswith(f"{name}.")), "")
        return AskedField(name, title, self._text(name), hint, error)

    def _text(self, name: str) -> str:
        if self._typed is not None:
            return self._typed.get(name, "").strip()
        return FIRST.get(name) or USUAL.get(name, "")


def _usual() -> Mapping[str, str]:
    """Return the texts of the body's defaults by field."""
    usual = PlanIn.model_construct()
    texts = {name: f"{getattr(usual, name)}" for name in ("model", "share", "most_gpus", "requests", "seed")}
    texts |= {f"gpus.{name}": f"{price:g}" for name, price in usual.gpus.items()}
    return texts | {"policies": ", ".join(usual.policies), "host_gb": ", ".join(f"{size:g}" for size in usual.host_gb)}


USUAL = _usual()

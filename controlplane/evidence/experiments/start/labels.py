"""Labels of the form for paths of the API, such as arms.2.overrides.classes.heavy_new_tokens. Pure."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from router.contract.json_value import JsonObject
from router.policy.schema.parameters import PARAMETERS

LABELS = {
    "name": "Name",
    "question": "Question",
    "trace": "Trace",
    "duration_s": "Window",
    "pacing": "Pacing",
    "load_factor": "Load factor",
    "seeds": "Seeds",
    "pool": "Pool",
    "mode": "Mode",
    "time_scale": "Time scale",
    "arms": "Arms",
    "more_arms": "More arms",
    "expect": "Expectations",
    "slo": "SLO",
}


@dataclass(frozen=True, slots=True)
class LabelledProblem:
    """A problem as the page shows it."""

    field: str  # field of the form
    part: str  # part of the field; empty for all of it
    message: str

    @property
    def label(self) -> str:
        return ", ".join(word for word in (LABELS.get(self.field, self.field), self.part) if word)

    @property
    def beside(self) -> str:
        """The message beside the field, without its label."""
        return f"{self.part}: {self.message}" if self.part else self.message


def labelled(problems: Mapping[str, str], raw: JsonObject, choices: Collection[str]) -> list[LabelledProblem]:
    """Label problems by path, of a body whose arms are first the ticked `choices`, then the typed lines."""
    return [_labelled(path.split("."), message, raw, choices) for path, message in problems.items()]


def _labelled(path: Sequence[str], message: str, raw: JsonObject, choices: Collection[str]) -> LabelledProblem:
    name, *rest = path
    items = raw.get(name)
    if not rest or not rest[0].isdigit() or not isinstance(items, list) or int(rest[0]) >= len(items):
        return LabelledProblem(name, ".".join(rest), message)
    at = int(rest[0])
    item, words = items[at], [_within(".".join(rest[1:]))]
    if name != "arms":
        return LabelledProblem(name, _joined(item if isinstance(item, str) else f"number {at + 1}", *words), message)
    if isinstance(item, str) and item in choices:
        return LabelledProblem("arms", _joined(item, *words), message)
    ticked = sum(isinstance(other, str) and other in choices for other in items[:at])
    return LabelledProblem("more_arms", _joined(f"line {at - ticked + 1}", *words), message)


def _within(path: str) -> str:
    """Return the title of a policy parameter; any other key as typed."""
    changed = path.removeprefix("overrides.")
    return PARAMETERS[changed].title if changed in PARAMETERS else changed


def _joined(*words: str) -> str:
    return ", ".join(word for word in words if word)

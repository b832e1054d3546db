"""From what was asked for to policy documents: a route, a version of a policy, or one of them with changes."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from controlplane.experiments.body import ARM_NAME, ArmIn
from router.policy.schema import document as documents
from router.policy.schema.document import InvalidDocument
from router.policy.strategies import STRATEGIES


@dataclass(frozen=True, slots=True)
class Fault:
    path: str
    value: Any
    message: str  # with what is allowed


@dataclass(frozen=True, slots=True)
class Arm:
    """What one arm routes by, settled when the experiment is started."""

    name: str
    policy: str  # empty for a route's default document
    version: int  # of the policy, 0 without one
    route: str
    overrides: dict[str, Any]
    document: dict[str, Any]
    sha256: str

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


# (policy, version or None for the live one) → (number, document); LookupError in words when there is none.
Versions = Callable[[str, int | None], tuple[int, dict[str, Any]]]


def resolve(asked: Sequence[str | ArmIn], versions: Versions, own_policy: str) -> tuple[list[Arm], list[Fault]]:
    """Every arm that is right and every fault of those that are not; `own_policy` is what the pool runs by."""
    arms: list[Arm] = []
    faults: list[Fault] = []
    for index, item in enumerate(asked):
        found = _resolve(item, f"arms.{index}", versions, own_policy)
        if isinstance(found, list):
            faults += found
        elif found.name in {arm.name for arm in arms}:
            faults.append(Fault(f"arms.{index}.name", found.name, "every arm needs a name of its own"))
        else:
            arms.append(found)
    return arms, faults


def _from_text(text: str, path: str) -> ArmIn | Fault:
    """A route, a policy (its live version), policy@live or policy@number."""
    policy, at, version = text.partition("@")
    if not at:
        return ArmIn.model_construct(route=text) if text in STRATEGIES else ArmIn.model_construct(policy=text)
    if version == "live":
        return ArmIn.model_construct(policy=policy)
    if not (version.isascii() and version.isdigit() and 0 < len(version) < 10):
        return Fault(path, text, "after @ comes a version's number, or live")
    return ArmIn.model_construct(policy=policy, version=int(version))


def _resolve(item: str | ArmIn, path: str, versions: Versions, own_policy: str) -> Arm | list[Fault]:
    asked = item if isinstance(item, ArmIn) else _from_text(item, path)
    if isinstance(asked, Fault):
        return [asked]
    if not asked.policy and not asked.route:
        asked = asked.model_copy(update={"policy": own_policy})
    base = _base(asked, path, versions)
    if isinstance(base, Fault):
        return [base]
    number, document = base
    try:
        policy = documents.parse(documents.apply_overrides(document, asked.overrides))
    except InvalidDocument as error:
        return [Fault(f"{path}.overrides.{e.path}", e.value, e.message) for e in error.errors]
    name = asked.name or _name(asked, number)
    if not ARM_NAME.fullmatch(name):
        rule = "1 to 60 letters, digits, blanks and . _ @ = , -, beginning with a letter or digit"
        return [Fault(f"{path}.name", name, rule)]
    whole = documents.dump(policy)
    return Arm(name, asked.policy, number, policy.strategy, dict(asked.overrides), whole, documents.sha256(whole))


def _base(asked: ArmIn, path: str, versions: Versions) -> tuple[int, dict[str, Any]] | Fault:
    """(version, document) that the overrides apply to."""
    if bool(asked.policy) == bool(asked.route):
        return Fault(path, asked.policy or None, f"a policy, or a route: one of {', '.join(STRATEGIES)}")
    if asked.route:
        if asked.route not in STRATEGIES:
            return Fault(f"{path}.route", asked.route, f"allowed are {', '.join(STRATEGIES)}")
        return 0, documents.default(asked.route)
    try:
        return versions(asked.policy, asked.version)
    except LookupError as error:
        return Fault(path, asked.policy, f"{error.args[0]}; routes are {', '.join(STRATEGIES)}")


def _name(asked: ArmIn, number: int) -> str:
    base = asked.route or f"{asked.policy}@{number}"
    changes = ", ".join(f"{key.rpartition('.')[2]}={value}" for key, value in asked.overrides.items())
    return f"{base} {changes}"[:60].strip() if changes else base

"""From what was asked for to policy documents: a strategy, a version of a policy, or one of them with changes."""

from collections.abc import Callable, Sequence
from typing import Any

from controlplane.experiments.body import ARM_NAME, ArmIn
from controlplane.experiments.models import Arm
from router.contract.problem import Problem
from router.policy.schema import document as documents
from router.policy.schema.document import InvalidDocument
from router.policy.strategies import STRATEGIES

# (policy, version or None for the live one) → (number, document); LookupError in words when there is none.
Versions = Callable[[str, int | None], tuple[int, dict[str, Any]]]


def resolve(asked: Sequence[str | ArmIn], versions: Versions, own_policy: str) -> tuple[list[Arm], list[Problem]]:
    """Every arm that is right and every problem of those that are not; `own_policy` is what the pool runs by."""
    arms: list[Arm] = []
    problems: list[Problem] = []
    for index, item in enumerate(asked):
        found = _resolve(item, f"arms.{index}", versions, own_policy)
        if isinstance(found, list):
            problems += found
        elif found.name in {arm.name for arm in arms}:
            problems.append(Problem(f"arms.{index}.name", found.name, "every arm needs a name of its own"))
        else:
            arms.append(found)
    return arms, problems


def _from_text(text: str, path: str) -> ArmIn | Problem:
    """A strategy, a policy (its live version), policy@live or policy@number."""
    policy, at, version = text.partition("@")
    if not at:
        return ArmIn.model_construct(strategy=text) if text in STRATEGIES else ArmIn.model_construct(policy=text)
    if version == "live":
        return ArmIn.model_construct(policy=policy)
    if not (version.isascii() and version.isdigit() and 0 < len(version) < 10):
        return Problem(path, text, "after @ comes a version's number, or live")
    return ArmIn.model_construct(policy=policy, version=int(version))


def _resolve(item: str | ArmIn, path: str, versions: Versions, own_policy: str) -> Arm | list[Problem]:
    asked = item if isinstance(item, ArmIn) else _from_text(item, path)
    if isinstance(asked, Problem):
        return [asked]
    if not asked.policy and not asked.strategy:
        asked = asked.model_copy(update={"policy": own_policy})
    base = _base(asked, path, versions)
    if isinstance(base, Problem):
        return [base]
    number, document = base
    try:
        policy = documents.parse(documents.apply_overrides(document, asked.overrides))
    except InvalidDocument as error:
        return [Problem(f"{path}.overrides.{e.path}", e.value, e.message, e.allowed) for e in error.errors]
    name = asked.name or _name(asked, number)
    if not ARM_NAME.fullmatch(name):
        rule = "1 to 60 letters, digits, blanks and . _ @ = , -, beginning with a letter or digit"
        return [Problem(f"{path}.name", name, rule)]
    whole = documents.dump(policy)
    return Arm(name, asked.policy, number, policy.strategy, dict(asked.overrides), whole, documents.sha256(whole))


def _base(asked: ArmIn, path: str, versions: Versions) -> tuple[int, dict[str, Any]] | Problem:
    """(version, document) that the overrides apply to."""
    if bool(asked.policy) == bool(asked.strategy):
        return Problem(path, asked.policy or None, f"a policy, or a strategy: one of {', '.join(STRATEGIES)}")
    if asked.strategy:
        if asked.strategy not in STRATEGIES:
            return Problem(f"{path}.strategy", asked.strategy, f"allowed are {', '.join(STRATEGIES)}")
        return 0, documents.default(asked.strategy)
    try:
        return versions(asked.policy, asked.version)
    except LookupError as error:
        return Problem(path, asked.policy, f"{error.args[0]}; strategies are {', '.join(STRATEGIES)}")


def _name(asked: ArmIn, number: int) -> str:
    base = asked.strategy or f"{asked.policy}@{number}"
    changes = ", ".join(f"{key.rpartition('.')[2]}={value}" for key, value in asked.overrides.items())
    return f"{base} {changes}"[:60].strip() if changes else base

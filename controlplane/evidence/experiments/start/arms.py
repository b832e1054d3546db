"""Resolves the arms of a request: a strategy or a version of a policy, with changes."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import ValidationError

from controlplane.common.input_errors import problems_of
from controlplane.evidence.experiments.models import AS_IT_IS, Arm, FleetChanges
from controlplane.evidence.experiments.start.body import ARM_NAME, ArmIn
from router.contract.values.problem import InvalidInput, Problem
from router.policy.schema import document as documents
from router.policy.strategies import STRATEGIES


@dataclass(frozen=True, slots=True)
class Base:
    """The policy of an arm before its overrides."""

    number: int  # number of the version; 0 for a strategy's default document
    document: dict[str, Any]


Check = Callable[[FleetChanges, str], list[Problem]]  # checks the changes of a fleet; the text is their path
# (policy, version or None for the live one) → its document; raises LookupError with a message if it does not exist
Versions = Callable[[str, int | None], Base]


def resolve(
    asked: Sequence[str | ArmIn], versions: Versions, pool_policy: str, check_fleet: Check
) -> tuple[list[Arm], list[Problem]]:
    """Return the valid arms, and every problem of the others. `pool_policy` is the policy of arms that do not name
    one."""
    arms: list[Arm] = []
    problems: list[Problem] = []
    for index, item in enumerate(asked):
        arm = _resolve(item, f"arms.{index}", versions, pool_policy, check_fleet)
        if isinstance(arm, list):
            problems += arm
        elif arm.name in {other.name for other in arms}:
            problems.append(Problem(f"arms.{index}.name", arm.name, "each arm needs a different name"))
        else:
            arms.append(arm)
    return arms, problems


def _from_text(text: str, path: str) -> ArmIn | list[Problem]:
    """Parse a strategy, a policy (its live version), policy@live or policy@number, followed by key=value words."""
    first, *words = text.split() or [""]
    asked = _named(first, path)
    if isinstance(asked, Problem):
        return [asked]
    for word in words:
        key, equals, given = word.partition("=")
        if not equals:
            return [Problem(path, word, "after the policy come key=value words, such as fleet.replicas=4")]
        if key == "name":
            asked["name"] = given
        else:
            _change(asked, key, json_of(given))
    try:
        return ArmIn.model_validate(asked)
    except ValidationError as error:
        return [replace(problem, path=f"{path}.{problem.path}") for problem in problems_of(error)]


def _change(asked: dict[str, Any], key: str, value: Any) -> None:
    inside = key.removeprefix("fleet.")
    if inside == key:
        asked.setdefault("overrides", {})[key] = value
        return
    fleet = asked.setdefault("fleet", {})
    part = "store" if inside.startswith("store.") else "engine"
    changed = fleet if inside == "replicas" else fleet.setdefault(part, {})
    changed[inside.removeprefix(f"{part}.")] = value


def _named(text: str, path: str) -> dict[str, Any] | Problem:
    policy, at, version = text.partition("@")
    if not at:
        return {"strategy": text} if text in STRATEGIES else {"policy": text}
    if version == "live":
        return {"policy": policy}
    if not (version.isascii() and version.isdigit() and 0 < len(version) < 10):
        return Problem(path, text, "after @ comes the number of a version, or live")
    return {"policy": policy, "version": int(version)}


def json_of(text: str) -> Any:
    """Parse JSON; anything else is returned as text."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _resolve(
    item: str | ArmIn, path: str, versions: Versions, pool_policy: str, check_fleet: Check
) -> Arm | list[Problem]:
    asked = item if isinstance(item, ArmIn) else _from_text(item, path)
    if isinstance(asked, list):
        return asked
    if not asked.policy and not asked.strategy:
        asked = asked.model_copy(update={"policy": pool_policy})
    fleet = FleetChanges(**asked.fleet.model_dump()) if asked.fleet else AS_IT_IS
    problems = check_fleet(fleet, f"{path}.fleet") if fleet != AS_IT_IS else []
    base = _base(asked, path, versions)
    if isinstance(base, Problem):
        return [base, *problems]
    try:
        policy = documents.parse(documents.apply_overrides(base.document, asked.overrides))
    except InvalidInput as error:
        wrong = [Problem(f"{path}.overrides.{e.path}", e.value, e.message, e.allowed) for e in error.problems]
        return wrong + problems
    name = asked.name or _name(asked, base.number)
    if not ARM_NAME.fullmatch(name):
        rule = "1 to 60 letters, digits, spaces and . _ @ = , -, beginning with a letter or digit"
        problems.append(Problem(f"{path}.name", name, rule))
    if problems:
        return problems
    whole = documents.dump(policy)
    sha256 = documents.sha256(whole)
    return Arm(name, asked.policy, base.number, policy["strategy.name"], dict(asked.overrides), whole, sha256, fleet)


def _base(asked: ArmIn, path: str, versions: Versions) -> Base | Problem:
    if bool(asked.policy) == bool(asked.strategy):
        return Problem(path, asked.policy or None, f"a policy, or a strategy: one of {', '.join(STRATEGIES)}")
    if asked.strategy:
        if asked.strategy not in STRATEGIES:
            return Problem(f"{path}.strategy", asked.strategy, f"allowed: {', '.join(STRATEGIES)}")
        return Base(0, documents.default(asked.strategy))
    try:
        return versions(asked.policy, asked.version)
    except LookupError as error:
        return Problem(path, asked.policy, f"{error.args[0]}; strategies are {', '.join(STRATEGIES)}")


def _name(asked: ArmIn, number: int) -> str:
    base = asked.strategy or f"{asked.policy}@{number}"
    given = dict(asked.overrides)
    if asked.fleet:
        given |= asked.fleet.engine | asked.fleet.store
        given |= {"replicas": asked.fleet.replicas} if asked.fleet.replicas else {}
    changes = ", ".join(f"{key.rpartition('.')[2]}={value}" for key, value in given.items())
    return f"{base} {changes}"[:60].strip() if changes else base

"""Says typed arms as the pages of results do, so that a form shows what its keys mean."""

from collections.abc import Sequence

from pydantic import ValidationError

from controlplane.evidence.experiments import services
from controlplane.evidence.experiments.results.output.display import policy_of
from controlplane.evidence.experiments.start.arms import resolve
from controlplane.evidence.experiments.start.body import ArmIn
from fleet.selectors import pools
from router.contract.json_value import Json


def in_words(arms: Sequence[Json], pool: Json) -> list[tuple[str, str]]:
    """Return (name, policy with its changes) of the arms, whose fleets are not checked; empty if one cannot be read."""
    try:
        asked = [arm if isinstance(arm, str) else ArmIn.model_validate(arm) for arm in arms]
    except ValidationError:
        return []
    known = pools().filter(name=str(pool)).first()
    found, _ = resolve(asked, services.policy_version, known.policy if known else "", lambda fleet, path: [])
    return [(arm.name, policy_of(arm)) for arm in found]

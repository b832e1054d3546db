"""Build a delivery's published values for tests."""

from typing import Any

from router.contract.redis.published import CandidateVersion, PolicyValue, Rollout, SplitRollout
from router.policy.schema import document


def candidate(made: dict[str, Any], version: int = 44) -> CandidateVersion:
    return CandidateVersion(version=version, sha256=document.sha256(made), document=made)


def split(**changes: Any) -> SplitRollout:
    values = {"delivery": 7, "generation": 3, "salt": "5f2b", "share": 0.25}
    return SplitRollout(**{**values, "candidate": candidate(document.default("lpwl")), **changes})


def policy_value(rollout: Rollout, version: int = 42, strategy: str = "round_robin") -> PolicyValue:
    made = document.default(strategy)
    return PolicyValue(
        pool="demo",
        policy="default",
        version=version,
        sha256=document.sha256(made),
        document=made,
        rollout=rollout,
    )

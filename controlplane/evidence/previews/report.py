"""Writes the savings of live versions to Redis, for Live and the wall, which read only Redis."""

from controlplane.evidence.previews import selectors
from controlplane.evidence.previews.analysis.saving import DAY_S, HOUR_S, is_sure
from controlplane.evidence.previews.models import Preview
from controlplane.traffic.policies import selectors as policies
from controlplane.traffic.policies.models import Policy, PolicyVersion
from fleet.redis import connect
from fleet.tries import tries
from router.contract.redis import codec, redis_keys
from router.contract.redis.use import SavingLine, SavingLines


def report() -> SavingLines:
    found = []
    with tries() as attempt:
        for policy in policies.policies():
            with attempt(f"policy {policy.name}"):
                found.append(_line(policy))
        value = SavingLines(lines=tuple(line for line in found if line is not None))
        connect().set(redis_keys.SAVINGS, codec.encode(value), ex=redis_keys.SAVINGS_TTL_S)
    return value


def _line(policy: Policy) -> SavingLine | None:
    version = policy.versions.filter(number=policy.live).first()
    before = policies.before(version) if version is not None else None
    if version is None or before is None:
        return None
    preview = selectors.preview_behind(version, before)
    return _scaled(version, before, preview) if preview is not None else None


def _scaled(version: PolicyVersion, before: PolicyVersion, preview: Preview) -> SavingLine | None:
    """Return the saving per request; None if its interval includes zero, or if the preview's load is unknown."""
    result = preview.result or {}
    saving, rate = result.get("saving"), result.get("requests_per_s")
    if not saving or not saving["new_tokens"] or not is_sure(saving) or not rate or preview.ended_at is None:
        return None
    a_day = rate * DAY_S
    ends = [saving[end] / saving["new_tokens"] for end in ("low", "high")]
    return SavingLine(
        policy=preview.policy.name,
        version=version.number,
        before=before.number,
        pool=preview.pool,
        preview=preview.pk,
        requests=result["classes"].get("all", {}).get("n", 0),
        at=preview.ended_at.timestamp(),
        gpu_s=saving["gpu_hours"] * HOUR_S / a_day,
        dollars=None if saving["dollars"] is None else saving["dollars"] / a_day,
        low=min(ends),
        high=max(ends),
    )

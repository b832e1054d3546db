"""Instances that serve only together, such as the context servers of a DWDP group."""

from fleet.kinds import KINDS
from fleet.kinds.option import build
from fleet.models import Instance, State


def waits_for_group(instance: Instance) -> str:
    """Why a ready instance gets no requests: others of its group are not ready. Empty: it gets them."""
    group = _group_of(instance) if instance.state == State.READY else ()
    if not group:
        return ""
    ready = set(instance.pool.instances.filter(state=State.READY).values_list("ordinal", flat=True))
    missing = [f"{instance.pool.name}-{ordinal}" for ordinal in group if ordinal not in ready]
    return f"its DWDP group serves only whole, not ready: {', '.join(missing)}" if missing else ""


def _group_of(instance: Instance) -> tuple[int, ...]:
    """Ordinals; none of a kind or with options that are no longer known."""
    try:
        kind = KINDS[instance.pool.kind]
        return kind.group(build(kind.spec, instance.pool.engine), instance.ordinal)
    except LookupError:
        return ()

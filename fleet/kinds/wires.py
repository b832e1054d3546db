"""What a pool's instances will be to routers, before any of them is started. Pure."""

from collections.abc import Mapping

from fleet.kinds.kind import Kind, Launch
from fleet.kinds.option import build
from fleet.kinds.wire import Wire


def wires(kind: Kind, options: Mapping[str, object], pool: str, model: str, replicas: int) -> dict[str, Wire]:
    """By the instance's name; empty for a kind that routers do not know."""
    if not kind.serves:
        return {}
    spec, ports = build(kind.spec, options), dict.fromkeys(kind.ports, 0)
    names = {f"{pool}-{ordinal}": ordinal for ordinal in range(replicas)}
    return {
        name: kind.wire(spec, Launch(name, model, "127.0.0.1", ports, "python", ordinal))
        for name, ordinal in names.items()
    }

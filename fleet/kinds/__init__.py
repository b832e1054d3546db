"""The kinds of engine that a pool can run: one file each, one line here."""

from fleet.kinds.kind import Kind
from fleet.kinds.sim import SIM

KINDS: dict[str, Kind] = {kind.name: kind for kind in (SIM,)}

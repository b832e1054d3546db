"""The configuration with which an engine starts, in the form in which instances and versions of a pool store it."""

from typing import Any

from msgspec import Struct

from fleet.kinds import KINDS
from fleet.kinds.kind import Kind
from fleet.kinds.options.option import build


class EngineConfig(Struct, frozen=True):
    model: str = ""
    kind: str = ""
    engine: dict[str, object] = {}  # the declared options

    @property
    def known_kind(self) -> Kind | None:
        """Return the kind; None if another version of Weir started the instance."""
        return KINDS.get(self.kind)

    def options(self) -> Any:
        """Return the kind's dataclass of options."""
        return build(KINDS[self.kind].spec, self.engine)

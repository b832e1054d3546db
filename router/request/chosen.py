"""The target of an alias chosen for a request, and the reason (router/serving/aliases.py)."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from router.contract.models import Alias, Target
from router.tokenize import Prompt

Hashed = dict[int, Sequence[int]]  # chain hashes of the prompt, by salt


@dataclass(slots=True)
class Chosen:
    name: str  # name of the alias
    alias: Alias
    prompt: Prompt  # as the client sent it
    body: bytes  # body as the client sent it
    target: Target
    why: str
    left: tuple[Target, ...] = ()  # fallbacks not tried yet
    serves: str = ""  # engine's name of the model
    hashed: Hashed = field(default_factory=dict)
    fell_back: list[tuple[str, str]] = field(default_factory=list)  # (failed pool, condition)

    @property
    def renames(self) -> bool:
        """Return whether the engine's name of the model differs from the client's."""
        return self.serves != self.name

"""Which target of an alias serves a request, and why (router/serving/aliases.py)."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from router.contract.models import Alias, Target
from router.tokenize.prompt import Prompt

Hashed = dict[int, Sequence[int]]  # chain hashes of the prompt, by their salt


@dataclass(slots=True)
class Chosen:
    name: str  # name of the alias
    alias: Alias
    prompt: Prompt  # as the client sent it
    body: bytes  # the same
    target: Target
    why: str
    left: tuple[Target, ...] = ()  # fallbacks that were not tried
    serves: str = ""  # name of the model for the engine
    hashed: Hashed = field(default_factory=dict)
    fell_back: list[tuple[str, str]] = field(default_factory=list)  # (pool that failed, condition)

    @property
    def renames(self) -> bool:
        """The engine knows the model by another name than the client."""
        return self.serves != self.name

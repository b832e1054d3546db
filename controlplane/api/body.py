"""The base of what a request's body may hold: these fields and no others."""

from ninja import Schema
from pydantic import ConfigDict


class Body(Schema):
    """A key that nobody reads is refused: misspelt, it would seem to have been taken."""

    model_config = ConfigDict(extra="forbid")

"""Base of request bodies: unknown fields are refused."""

from ninja import Schema
from pydantic import ConfigDict


class Body(Schema):
    """A misspelt field would otherwise be ignored silently."""

    model_config = ConfigDict(extra="forbid")

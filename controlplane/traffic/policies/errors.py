"""Errors of policies.

InvalidInput (router/contract/values/problem.py)
└── NothingToPublish   the draft equals the live version
PolicyError
├── RulesForbid            a fleet document gives pools a policy that the rules do not let go live
├── NoSuchPolicy           no such policy, version or draft
└── Conflict               the policy changed meanwhile; `.fields` holds base, theirs and mine of each field in dispute
"""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from django.http import Http404

from router.contract.values.json_value import Json, JsonObject
from router.contract.values.problem import InvalidInput, Problem


class PolicyError(Exception):
    """The message is addressed to the person who made the request."""


class NothingToPublish(InvalidInput):
    pass


class RulesForbid(PolicyError):
    """The rules forbid joins; `problems` names the pools, `refusals` has the reason for each."""

    def __init__(self, problems: Sequence[Problem], refusals: Sequence[Exception]) -> None:
        super().__init__("; ".join(map(str, problems)))
        self.problems, self.refusals = tuple(problems), tuple(refusals)


class NoSuchPolicy(PolicyError, Http404):
    pass


@dataclass(frozen=True, slots=True)
class Dispute:
    """A field that another person, or both people, changed."""

    path: str
    base: Json  # value before either change
    theirs: Json  # current value
    mine: Json  # value in the request


class Conflict(PolicyError):
    def __init__(
        self,
        message: str,
        *,
        kind: str,
        theirs: JsonObject | None = None,
        mine: JsonObject | None = None,
        base: JsonObject | None = None,
        current: str = "",
    ) -> None:
        super().__init__(message)
        # Kinds: "draft", "stale" (the version in If-Match is outdated), "live" (another version is live), "exists",
        # "gone"
        self.kind = kind
        self.base = base or {}
        self.theirs = theirs or {}
        self.mine = mine or {}
        self.current = current  # etag to send instead


@contextlib.contextmanager
def stale_if_overtaken(if_match: str | None) -> Iterator[None]:
    """Report a version that went live a moment earlier as stale if the caller sent If-Match."""
    try:
        yield
    except Conflict as error:
        if if_match is not None and error.kind == "live":
            error.kind = "stale"
        raise

"""Ways to serve a request: a flow sends it to engines and answers with the connection that carries the answer.

A new flow is a file here and a line in `FLOWS`; policies name it in `flow.heavy`.
"""

from collections.abc import Awaitable, Callable

from router.call import Call
from router.connection import Connection
from router.flows import colocated
from router.member import Member
from router.policy.types import Policy

Flow = Callable[[Call, Member, Policy], Awaitable[Connection]]  # raises UpstreamError

FLOWS: dict[str, Flow] = {"colocated": colocated.serve}

__all__ = ["FLOWS", "Flow"]

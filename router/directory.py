"""Sessions that other routers have bound, looked up in Redis."""

import asyncio

from router import wire
from router.affinity import Bound
from router.call import Call
from router.link import FAILURES, Link
from router.member import Member
from router.peers import Peers

LOOK_UP_S = 0.1  # a slow Redis costs a session its cache, not its time
RECHECK_S = 5.0  # with other routers about, a binding older than this may have moved


class Directory:
    def __init__(self, link: Link, peers: Peers) -> None:
        self._link = link
        self._peers = peers

    def is_to_be_asked(self, call: Call, bound: Bound | None) -> bool:
        return call.session_shared and self._link.up and self._may_have_moved(bound, call.at)

    def _may_have_moved(self, bound: Bound | None, now: float) -> bool:
        return bound is None or (len(self._peers) > 0 and now - bound.used_at > RECHECK_S)

    def sent(self, call: Call, member: Member) -> None:
        self._peers.sent(call, member)

    async def look_up(self, call: Call) -> str | None:
        """The instance that another router has put down for the session."""
        try:
            async with asyncio.timeout(LOOK_UP_S):
                return await self._link.get(wire.affinity_key(call.pool.name, call.session or ""))
        except TimeoutError:
            return None
        except FAILURES as error:
            self._link.failed(error)
            return None

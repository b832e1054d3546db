"""A pool's instances as the policy sees them, kept from decision to decision: only those are looked at again of which
something has changed, which they tell, and those whose breaker is not closed, since time changes it."""

from collections.abc import Mapping
from dataclasses import replace

from router.policy.fleet import Fleet
from router.policy.types import Instance
from router.pool.endpoint import Member


class Standing:
    def __init__(self) -> None:
        self._changed: set[str] = set()  # ids
        self._suspects: set[str] = set()  # whose breaker is open or half open
        self._members: Mapping[str, Member] = {}
        self._fleet: Fleet | None = None

    def take(self, members: Mapping[str, Member]) -> None:
        """These are the pool's instances from now on."""
        self._members, self._fleet = members, None
        self._changed, self._suspects = set(), set()
        for member in members.values():
            member.changes = self._changed

    def fleet(self, tried: Mapping[str, str], now: float, open_s: float) -> Fleet:
        """`tried`: instances that have failed the request in question, and how; `now` is the loop's time."""
        fleet = self._fleet
        if fleet is None:
            fleet = self._fleet = Fleet(self._seen(member, now, open_s) for member in self._members.values())
        else:
            for name in self._changed | self._suspects:
                place = fleet.place(name)
                if place is not None:
                    fleet.replace(place, self._seen(self._members[name], now, open_s))
        self._changed.clear()
        if not tried:
            return fleet
        return Fleet(replace(one, refused=tried[one.id]) if one.id in tried else one for one in fleet)

    def _seen(self, member: Member, now: float, open_s: float) -> Instance:
        if member.breaker.state == "closed":
            self._suspects.discard(member.id)
        else:
            self._suspects.add(member.id)
        return member.view(member.refusal(now, open_s))

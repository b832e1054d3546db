"""The outcome of a delivery: a word for REST, an exit status for `manage.py deliver`. Pure."""

from collections.abc import Mapping

from controlplane.traffic.deliveries.states import CLOSED, State, Trigger

DELIVERED, REFUSED, GUARD, PERSON, NEEDS_PERSON, TIME = 0, 2, 3, 4, 5, 6
MEANING: Mapping[int, str] = {
    DELIVERED: "delivered",
    REFUSED: "refused",
    GUARD: "ended by a guard or a router",
    PERSON: "ended by a person",
    NEEDS_PERSON: "needs a person",
    TIME: "out of time",
}
WORDS: Mapping[int, str] = {
    DELIVERED: "delivered",
    GUARD: "guard",
    PERSON: "person",
    NEEDS_PERSON: "needs_person",
    TIME: "time",
}
_BY_STATE = {
    State.DELIVERED: DELIVERED,
    State.FINISHED: DELIVERED,
    State.REJECTED: PERSON,
    State.WITHDRAWN: PERSON,
    State.EXPIRED: TIME,
    State.MISSED: TIME,
    State.PROPOSED: NEEDS_PERSON,
    State.WAITING: NEEDS_PERSON,
    State.PAUSED: NEEDS_PERSON,
}
_BY_TRIGGER = {Trigger.FAIL: GUARD, Trigger.TRIP: GUARD, Trigger.GIVE_UP: TIME}  # how it was aborted or rolled back


def status(state: str, what: str) -> int | None:
    """Return the exit status; None while the delivery continues by itself. `what`: the latest transition."""
    known = State(state)
    if known in _BY_STATE:
        return _BY_STATE[known]
    if known in CLOSED:
        return _BY_TRIGGER.get(Trigger(what), PERSON)
    return None


def word(state: str, what: str) -> str:
    """Return the outcome; empty while the delivery continues by itself."""
    code = status(state, what)
    return "" if code is None else WORDS[code]

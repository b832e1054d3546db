"""A session stays on its instance."""

from router.policy.rules.affinity import binding
from router.policy.rules.classify import class_by_cache, class_on
from router.policy.rules.hashing import MASK, hash_of, rendezvous
from router.policy.strategies.baselines.least_requests import fewest_requests
from router.policy.strategies.strategy import FEWER, REQUESTS_FIRST, Shortlisting, Strategy
from router.policy.types import Pick, RoutingRequest
from router.policy.view import View


def rank(view: View) -> Pick:
    """The session's instance; the one by its hash for a new session; the fewest requests without a session."""
    bound = binding(view)
    if bound.instance is not None:
        return Pick(bound.instance, class_on(view, bound.instance), "session", bound.reasons)
    rest = view.without(bound.left)
    if view.request.session is None or view.request.bound_to is not None:
        return fewest_requests(rest, class_by_cache(rest), bound.reasons)
    return _by_hash(view, view.request.session)


def _new_session(request: RoutingRequest) -> str | None:
    return request.session if request.bound_to is None else None


def _by_hash(view: View, session: str) -> Pick:
    """Return the instance with the lowest hash of (session, instance), by rendezvous hashing."""
    scores = rendezvous(hash_of(session), view.instances)
    instance = view.instances[scores.index(min(scores))]
    reasons = ("the session has no instance yet: the one that its hash says",)
    ranked = [score / MASK for score in scores]
    return Pick(instance, class_by_cache(view), "session_hash", reasons, view.instances, ranked)


STRATEGY = Strategy(
    "session_sticky",
    "Session sticky",
    "The session's instance unless it is overloaded; a new session goes where its hash says, a request without a "
    "session to the fewest requests.",
    "the session's instance while work_i ≤ break_ratio · min work; new: argmin hash(session, i); else argmin R_i",
    rank,
    affinity=True,
    by_pace=True,
    shortlisting=Shortlisting(most=FEWER, request_tokens=REQUESTS_FIRST, key=_new_session),
)

"""Accuracy of both indexes by kind of request, so that one client's requests do not affect other clients'."""

from collections.abc import Mapping

from router.prefix.accuracy import JUDGED, Accuracy
from router.prefix.belief import Belief, Doubt, believe
from router.prefix.exact.groups import NONE
from router.prefix.shortfall import Shortfall, SpeculationRule

MOST_KINDS = 32  # kinds with additional fields, per instance; of a group, the least recently used kind is forgotten
MOST_NEW = MOST_KINDS // 4  # limit of kinds with few judged answers, so that they cannot displace the others
# Number of requests after a suspicion for which an instance's tokens by each rule of speculation are requested
ASKS = 8
MOST_UNASKED = 64


class KindAccuracy:
    __slots__ = ("approximate", "exact", "shortfall", "speculation", "used")

    def __init__(self) -> None:
        self.exact = Accuracy()
        self.approximate = Accuracy()
        self.shortfall = Shortfall()
        self.speculation = SpeculationRule()
        self.used = 0  # number of its latest use, counted over all kinds

    @property
    def judged(self) -> int:
        return max(self.exact.n, self.approximate.n)


class AccuracyByKind:
    def __init__(self) -> None:
        self.kinds: dict[str, KindAccuracy] = {}
        self.uses = 0
        self.asks = 0  # number of coming requests for which the tokens by each rule of speculation are requested
        self._unasked = 0  # suspicions since the last one that led to questions
        self._followed_after = 1  # suspicions

    def suspect(self) -> None:
        """Ask for the rule by which the engine speculates, less often while the answers teach nothing."""
        self._unasked += not self.asks
        if self._unasked >= self._followed_after:
            self.asks, self._unasked = ASKS, 0
            self._followed_after = min(2 * self._followed_after, MOST_UNASKED)

    def has_learnt(self) -> None:
        """Let the next suspicion lead to questions: a rule was learned."""
        self.asks, self._followed_after = 0, 1

    def of(self, kind: str) -> KindAccuracy:
        found = self.kinds.get(kind)
        if found is None:
            self._make_room()
            found = self.kinds[kind] = KindAccuracy()
        self.uses = found.used = self.uses + 1
        return found

    def _make_room(self) -> None:
        """Forget a kind, but never a plain API: those are few, and clients cannot invent more. Kinds with few judged
        answers replace only each other, however many arrive.
        """
        further = [kind for kind in self.kinds if " " in kind]
        if len(further) >= MOST_KINDS:
            new = [kind for kind in further if self.kinds[kind].judged < JUDGED]
            known = [kind for kind in further if kind not in new]
            del self.kinds[min(new if len(new) >= MOST_NEW else known, key=lambda kind: self.kinds[kind].used)]

    def short_of(self, kind: str) -> int:
        """Return the tokens by which hits of the kind are shorter than the blocks that an engine holds; 0 if there is a
        rule, because the rule explains the same answers.
        """
        known = self.kinds.get(kind)
        return known.shortfall.tokens if known is not None and known.speculation.rule == NONE else 0

    def beliefs(self, trouble: str | None, unconfirmed: int = 0, *, doubt: Doubt) -> tuple[Belief, dict[str, Belief]]:
        """Return the belief of the instance, and of each kind with enough requests; "" is for all other kinds."""
        known = {
            kind: believe(trouble, doubt, accuracy.exact, accuracy.approximate, unconfirmed)
            for kind, accuracy in self.kinds.items()
            if accuracy.judged
        }
        some = any(belief.index == "exact" for belief in known.values())
        nothing = Accuracy()
        other = believe(trouble, "" if some else doubt, nothing, nothing, unconfirmed)
        return _of_all(known, other), known | {"": other}


def _of_all(known: Mapping[str, Belief], other: Belief) -> Belief:
    """Return the best index used for any kind, and the kinds for which it is not used."""
    best = min(known.values(), key=lambda belief: _RANK[belief.index], default=other)
    worse = sorted(kind for kind, belief in known.items() if _RANK[belief.index] > _RANK[best.index])
    if not worse:
        return best
    named = "; ".join(f"not for {kind}: {known[kind].why}" for kind in worse[:3])
    more = f"; nor for {len(worse) - 3} other kinds of requests" if len(worse) > 3 else ""
    return Belief(best.index, f"{best.why + '; ' if best.why else ''}{named}{more}", best.reason)


_RANK = {"exact": 0, "approximate": 1, "none": 2}

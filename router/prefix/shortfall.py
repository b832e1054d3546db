"""The number of tokens by which an engine's hits are shorter than its blocks. With speculation (EAGLE, MTP), most
versions compute the last block again, and no event reports that. Pure."""

from collections.abc import Collection, Sequence

from router.prefix.exact.groups import NONE

SURE = 4  # consecutive answers with the same shortfall
MOST_BLOCKS = 2
MOST_SCORE = 8


class Shortfall:
    __slots__ = ("_seen", "_times", "tokens")

    def __init__(self) -> None:
        self.tokens = 0  # expected shortfall
        self._seen = 0
        self._times = 0

    def add(self, allowed: int, actual: int, block_size: int) -> None:
        """Add an answer: the tokens that the engine's blocks allowed it to reuse, and the tokens that it reused."""
        missing = allowed - actual
        if not allowed or not 0 <= missing <= MOST_BLOCKS * block_size:
            return
        self._times = self._times + 1 if missing == self._seen else 1
        self._seen = missing
        if self._times >= SURE:
            self.tokens = missing


class SpeculationRule:
    """The rule by which an engine with several groups of layers drops blocks (router/prefix/exact/groups.py), learned
    from answers that only one rule explains."""

    __slots__ = ("_scores", "rule")

    def __init__(self) -> None:
        self.rule = NONE
        self._scores = [0, 0, 0]  # by rule: answers that it explains minus answers that it does not, 0 to MOST_SCORE

    def add(self, by_rule: Sequence[int], actual: int, of_others: Collection[int] = ()) -> None:
        """Compare the tokens that each rule predicted for an answer with the tokens that the engine reused. One answer
        suffices to adopt a rule that other instances of the pool follow (`of_others`)."""
        if actual not in by_rule or len(set(by_rule)) == 1:
            return
        scores = self._scores = [
            min(score + 1, MOST_SCORE) if tokens == actual else max(score - 1, 0)
            for score, tokens in zip(self._scores, by_rule, strict=True)
        ]
        best = scores.index(max(scores))
        unlikely = NONE in (best, self.rule) and best not in of_others
        if scores[best] - scores[self.rule] >= (SURE if unlikely else 1):
            self.rule = best

"""The facts that this router has learned about an engine from its answers: refusals, cache, rendering, lending."""

from collections import Counter

from router.pool.load.lent import KEPT_S
from router.prefix.accuracy import Accuracy
from router.prefix.accuracy_by_kind import AccuracyByKind
from router.prefix.belief import GUESS, Belief, Index

MOST_REASONS = 20  # distinct reasons of refused answers


class LearnedFromAnswers:
    def __init__(self) -> None:
        self.engine_id = ""  # from the bootstrap server of its connector, if any
        self.refused: Counter[str] = Counter()  # refused answers: reason → how often
        self.reports_cached = False  # whether its usage has ever included cached tokens
        self.unconfirmed = 0  # hits predicted from KV events although it has reported no cached tokens
        self.lends: set[tuple[str, bool]] = set()  # (API path, streamed) of answers that report where their KV is
        self.lends_s = KEPT_S  # time for which it keeps lent blocks
        self.hung_on_lent = False  # True if a prefill with lent blocks was not answered in time
        # s, loop's time: until then the engine is not asked to render text, or prompts with media, because it failed
        self.renders_from = [0.0, 0.0]
        # The same by API key, after an answer that was slow or too large
        self.renders_for: dict[tuple[str, bool], float] = {}
        self.exact = Accuracy()
        self.approximate = Accuracy()
        self.by_kind = AccuracyByKind()
        self.belief = GUESS
        self.beliefs: dict[str, Belief] = {}  # by kind of request, "" for others; if empty, `belief` applies

    def note_refused(self, reason: str) -> None:
        """Count an unusable answer by its reason. The number of reasons is bounded."""
        self.refused[reason if reason in self.refused or len(self.refused) < MOST_REASONS else "other"] += 1

    def cached_tokens(self, reported: int | None) -> int | None:
        """Read the cached tokens of an answer. vLLM omits zeros, so the result is None until the engine has reported
        cached tokens once."""
        if reported is not None:
            self.reports_cached, self.unconfirmed = True, 0
        return 0 if reported is None and self.reports_cached else reported

    def index_for(self, kind: str) -> Index:
        """Return the index in use for this kind of request."""
        return self.belief_for(kind).index

    def belief_for(self, kind: str) -> Belief:
        return (self.beliefs.get(kind) or self.beliefs[""]) if self.beliefs else self.belief

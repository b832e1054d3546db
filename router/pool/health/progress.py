"""Detection of engines without progress. Pure: checked once a second, so tokens cost nothing.

An engine that holds requests and produces no token for longer than its limit is suspected, and the router asks it for
one; it is stalled when it does not answer, whatever its health page says. Signs of a token: the first content of an
answer, further events of a stream, a computed prefill, a whole answer, and counters of its metrics page that move.
Requests that end without a token count as held and leave the silence as it is; other time without requests does not
count. What it needs is learned: a silence that a token ended was no hang.
"""

from math import inf

from router.contract.redis.sample import InstanceSample, RankSample

LEAST_S = 10.0  # shorter silences never count
CONFIRM_S = 3.0  # beyond the limit, for an answer to the router's own request
KEPT_S = 1800.0  # silences are remembered for one to two times this time
SURPRISE = 2.0  # times the limit: most that one silence can teach, so that a hang does not hide the next
ASSUMED_TOKENS_PER_S = 1_000.0  # assumed rate of a prefill, until one was measured
EQUAL_COST_TOKENS = 32_768.0  # assumed context at which attention doubles the cost of a new token
SERVED = 3  # answers after which counters must have moved
UNMOVED_READINGS = 5  # readings without a moving counter
TRIAL_S = 10.0  # between trials of a stalled engine


class Progress:
    __slots__ = (
        "_before_s",
        "_came",
        "_counted",
        "_ended",
        "_explained_s",
        "_kept_s",
        "_limit_s",
        "_longest_s",
        "_page_holds",
        "_rest_s",
        "_served",
        "_trial",
        "_unmoved",
        "by_requests",
        "is_producing",
        "is_proven",
        "is_suspected",
        "quiet_s",
        "stalled",
    )

    def __init__(self) -> None:
        self.is_proven = False  # the process has produced a token
        self.is_producing = False  # a token came before the last look
        self.quiet_s = 0.0  # time with requests since the last token
        self.is_suspected = False  # its silence is beyond its limit
        self.stalled = ""  # why the engine takes no requests; empty unless stalled
        self.by_requests = False  # trials use clients' requests, as the engine refuses the router's
        self._came = False  # a token came since the last look
        self._ended = False  # a request ended without a token since the last look
        self._longest_s = self._before_s = 0.0  # longest ended silence, in this period and before
        self._kept_s = 0.0  # age of the current period
        self._limit_s = inf  # latest limit
        self._explained_s = 0.0  # part of the silence explained by prompts in computation
        self._counted: float | None = None  # tokens and preemptions on its metrics page
        self._page_holds = False
        self._served = 0  # answers since its counters moved
        self._unmoved = 0  # readings whose counters did not move
        self._trial = False  # a trial is in progress
        self._rest_s = 0.0  # time until the next trial

    # Events

    def came(self) -> None:
        """Note a token."""
        self._came = True

    def ended_without(self) -> None:
        """Note the end of a request without a token: refused, timed out or abandoned."""
        self._ended = True

    def served(self) -> None:
        """Note the end of a request with tokens."""
        self._served += 1

    def read(self, requests: float | None, *totals: float | None, holds: bool = False) -> None:
        """Take a reading of the metrics page: requests running and waiting, and counters if present. `holds`:
        requests of this router."""
        known = [total for total in totals if total is not None]
        counted = sum(known) if known else None
        if counted != self._counted:
            if self._counted is not None:
                self._came = True
            self._counted, self._served, self._unmoved = counted, 0, 0
        elif (counted is not None and self._served >= SERVED) or (holds and requests == 0):
            self._unmoved += 1
        elif requests or not self.is_unmoved:
            self._unmoved = 0
        self._page_holds = bool(requests) and not self.is_unmoved

    def read_sample(self, sample: InstanceSample, mine: InstanceSample | RankSample, *, holds: bool) -> None:
        """Take a sample; `mine`: this rank's part. Without totals per rank (older nodes) the engine's count for all."""
        prompts, tokens = mine.prompt_tokens_total, mine.generation_tokens_total
        if prompts is None and tokens is None:
            prompts, tokens = sample.prompt_tokens_total, sample.generation_tokens_total
        requests = [count for count in (mine.running, mine.waiting) if count is not None]
        self.read(sum(requests) if requests else None, prompts, tokens, sample.preemptions_total, holds=holds)

    @property
    def has_counters(self) -> bool:
        """Return whether the metrics page counts tokens."""
        return self._counted is not None

    def unread(self) -> None:
        """Note that the metrics page has stopped."""
        self._page_holds = False

    @property
    def is_unmoved(self) -> bool:
        """Return whether the metrics page ignores the engine's requests, so that its figures mean nothing."""
        return self._unmoved >= UNMOVED_READINGS

    # Once a second

    def look(self, passed_s: float, *, holds: bool, alive: bool, page_counts: bool = True) -> bool:
        """Return True while the silence is long enough to call `judge`. `holds`: requests of this router.

        An engine that takes no requests anyway (not `alive`) is not judged. `page_counts`: its page's requests count.
        """
        self._kept_s += passed_s
        if self._kept_s >= KEPT_S:
            self._before_s, self._longest_s, self._kept_s = self._longest_s, 0.0, 0.0
        self._rest_s -= passed_s
        self.is_producing = self._came
        if self._came:
            self._produced()
        elif not alive and not self.stalled:
            self.quiet_s = 0.0
        elif holds or self._ended or (self._page_holds and page_counts):
            self.quiet_s += passed_s
        self._ended = False
        return self.quiet_s > LEAST_S and not self.stalled

    def _produced(self) -> None:
        """Learn from a silence, unless its prompts or the compilation at its start explain it."""
        if self.quiet_s > self._explained_s:
            most_s = SURPRISE * self._limit_s if self.is_proven else LEAST_S
            self._longest_s = max(self._longest_s, min(self.quiet_s, most_s))
        self._came, self.is_proven, self.quiet_s = False, True, 0.0
        self._limit_s, self._explained_s = inf, 0.0
        self.stalled, self.is_suspected, self.by_requests, self._rest_s = "", False, False, 0.0

    def judge(self, after_s: float, factor: float, prefill_s: float) -> bool:
        """Return True if stalled. `after_s`: limit for an unknown process; `prefill_s`: expected time of the longest
        prompt in computation."""
        longest_s = max(self._longest_s, self._before_s)
        least_s = min(LEAST_S, after_s) if self.is_proven else after_s
        self._explained_s = max(self._explained_s, factor * prefill_s)
        self._limit_s = max(least_s, factor * longest_s, self._explained_s)
        self.is_suspected = self.quiet_s > self._limit_s
        if not self.is_suspected or (self.quiet_s <= self._limit_s + CONFIRM_S and not self.by_requests):
            return False
        since = "" if self.is_proven else " since its start"
        self.stalled = f"stalled: no token{since} for {self.quiet_s:.0f} s with requests (limit {self._limit_s:.0f} s)"
        return True

    # Trials

    @property
    def refusal(self) -> str:
        """Return why the engine takes no request; empty if it takes one, or this one as a trial."""
        return "" if self.by_requests and self._is_due else self.stalled

    @property
    def _is_due(self) -> bool:
        return not self._trial and self._rest_s <= 0

    def begin(self, *, probe: bool = False) -> bool:
        """Note that a request is sent; return whether it is a trial. Each trial ends with `end`."""
        wanted = self.is_suspected if probe else bool(self.stalled)
        trial = wanted and self._is_due and self.by_requests != probe
        self._trial = self._trial or trial
        return trial

    def end(self) -> None:
        self._trial, self._rest_s = False, TRIAL_S

    def try_by_requests(self) -> None:
        """Use the next client's request as a trial, as the engine refuses the router's probes."""
        self.by_requests, self._rest_s = True, 0.0


def prefill_s(tokens: float, tokens_per_s: float, equal_cost_tokens: float) -> float:
    """Estimate the time of a prompt computed alone; a rate or cost of 0 is unknown."""
    cost = tokens + tokens * tokens / (2 * (equal_cost_tokens or EQUAL_COST_TOKENS))
    return cost / (tokens_per_s or ASSUMED_TOKENS_PER_S)

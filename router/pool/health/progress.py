"""Detects engines that make no progress. Pure: it runs once a second, so tokens cost nothing. An engine that holds
requests and produces no token for longer than its limit is suspected, and the router sends it a short probe. If the
engine does not answer, it is stalled, whatever its health page says. Signs of a token are the first content of an
answer, further events of a stream, a computed prefill, a whole answer, and growing counters on its metrics page. While
requests end without a token, the silence continues; time without requests does not count. The limit is learned: a
silence that a token ended was no hang. An engine may answer the routers' own requests and yet hang on its clients'. The
silence of clients' requests is therefore judged as well, but only while this router holds such a request; other routers
judge theirs. It ends with any refusal, and when counters move by more, or more steadily, than the routers' own requests
explain.
"""

from math import inf

from router.contract.redis.sample import InstanceSample, RankSample

LEAST_S = 10.0  # shorter silences never count
CONFIRM_S = 3.0  # time beyond the limit to answer the router's own request
KEPT_S = 1800.0  # a silence is remembered for at least this time and at most twice as long
SURPRISE = 2.0  # a silence teaches at most this many times the limit, so that one hang does not hide the next
ASSUMED_TOKENS_PER_S = 1_000.0  # assumed rate of a prefill until one has been measured
EQUAL_COST_TOKENS = 32_768.0  # assumed context at which attention doubles the cost of a new token
SERVED = 3  # answers after which counters must have grown
UNMOVED_READINGS = 5  # readings without growth after which the counters are ignored
TRIAL_S = 10.0  # time between trials of a stalled engine
PROBE_TOKENS = 4.0  # largest number of tokens of a router's own request, prompt and answer together
STEADY = 3  # consecutive readings whose counters grew by more than a probe explains


class Silence:
    """The time with requests since the last token, and the longest such times that ended with a token."""

    __slots__ = ("_before_s", "_explained_s", "_longest_s", "limit_s", "s")

    def __init__(self) -> None:
        self.s = 0.0
        self.limit_s = inf  # latest limit
        self._explained_s = 0.0  # part explained by prompts being computed
        self._longest_s = self._before_s = 0.0  # longest ended silence, in this period and in the previous one

    def end(self, *, is_proven: bool) -> None:
        """End the silence and learn from it, unless prompts or the compilation at process start explain it."""
        if self.s > self._explained_s:
            most_s = SURPRISE * self.limit_s if is_proven else LEAST_S
            self._longest_s = max(self._longest_s, min(self.s, most_s))
        self.s, self.limit_s, self._explained_s = 0.0, inf, 0.0

    def turn(self) -> None:
        """Begin another period."""
        self._before_s, self._longest_s = self._longest_s, 0.0

    def is_over(self, least_s: float, factor: float, prefill_s: float) -> bool:
        """Return whether the silence exceeds its limit. `prefill_s` is the expected time of the longest prompt being
        computed."""
        self._explained_s = max(self._explained_s, factor * prefill_s)
        self.limit_s = max(LEAST_S, least_s, factor * max(self._longest_s, self._before_s), self._explained_s)
        return self.s > self.limit_s


class Progress:
    __slots__ = (
        "_abandoned_s",
        "_came",
        "_clients",
        "_counted",
        "_ended_s",
        "_is_blind",
        "_kept_s",
        "_moved",
        "_page_holds",
        "_probes",
        "_quiet",
        "_rest_s",
        "_served",
        "_serves",
        "_steady",
        "_trial",
        "_unmoved",
        "by_requests",
        "fails_clients",
        "is_producing",
        "is_proven",
        "is_suspected",
        "stalled",
    )

    def __init__(self) -> None:
        self.is_proven = False  # the process has produced a token
        self.is_producing = False  # a token has arrived since the check before last
        self.is_suspected = False  # its silence exceeds its limit
        self.stalled = ""  # why the engine takes no requests; empty unless stalled
        self.by_requests = False  # trials use clients' requests, because the engine refuses the router's own
        self._quiet = Silence()  # without any token
        self._clients = Silence()  # time without a token for a client's request
        self.fails_clients = False  # stalled although it answers the router's own requests
        self._abandoned_s = inf  # duration of the shortest request that ended without a token, as of the last check
        self._came = False  # a token has arrived since the last check
        self._serves = False  # a client's request has received a token since the last check
        self._ended_s = inf  # like `_abandoned_s`, since the last check
        self._kept_s = 0.0  # age of the current period
        self._counted: float | None = None  # tokens and preemptions on its metrics page
        self._moved = 0.0  # tokens counted during the silence of clients' requests, like the next two
        self._probes = 0  # number of this router's own requests
        self._steady = 0  # number of latest consecutive readings that grew
        self._is_blind = True  # its metrics page is not read
        self._page_holds = False
        self._served = 0  # answers since its counters last grew
        self._unmoved = 0  # readings without growth of its counters
        self._trial = False  # a trial is in progress
        self._rest_s = 0.0  # time until the next trial

    # Events

    def came(self) -> None:
        """Note a token of a client's request."""
        self._came = self._serves = True

    def probed(self) -> None:
        """Note a token of one of the router's own requests."""
        self._came = True

    def ended_without(self, held_s: float = 0.0) -> None:
        """Note that a request ended without a token after this time: refused, timed out or abandoned."""
        self._ended_s = min(self._ended_s, held_s)

    def refused(self) -> None:
        """Note that the engine refused a client's request, which shows that it still handles such requests."""
        if not self.stalled:
            self._restart()

    def served(self) -> None:
        """Note the end of a request that received tokens."""
        self._served += 1

    def read(self, requests: float | None, *totals: float | None, holds: bool = False) -> None:
        """Take a reading of the metrics page: requests running and waiting, and counters if present. `holds` is the
        number of this router's requests.
        """
        known = [total for total in totals if total is not None]
        counted = sum(known) if known else None
        self._steady = self._steady if counted != self._counted else 0
        if self._is_blind and known:
            self._is_blind, self._clients.s = False, 0.0  # from now on, the page shows tokens
        if counted != self._counted:
            if self._counted is not None:
                self._came = True
                self._moved += max(0.0, (counted or 0.0) - self._counted)
                self._steady += 1
                self._serves = self._serves or self._steady >= STEADY
            self._counted, self._served, self._unmoved = counted, 0, 0
        elif (counted is not None and self._served >= SERVED) or (holds and requests == 0):
            self._unmoved += 1
        elif requests or not self.is_unmoved:
            self._unmoved = 0
        self._page_holds = bool(requests) and not self.is_unmoved

    def read_sample(self, sample: InstanceSample, mine: InstanceSample | RankSample, *, holds: bool) -> None:
        """Take a sample. `mine` is this rank's part of it; older nodes have no totals per rank, and then the engine's
        totals count for each rank.
        """
        prompts, tokens = mine.prompt_tokens_total, mine.generation_tokens_total
        if prompts is None and tokens is None:
            prompts, tokens = sample.prompt_tokens_total, sample.generation_tokens_total
        requests = [count for count in (mine.running, mine.waiting) if count is not None]
        self.read(sum(requests) if requests else None, prompts, tokens, sample.preemptions_total, holds=holds)

    @property
    def has_counters(self) -> bool:
        """Return whether the metrics page counts tokens."""
        return self._counted is not None

    @property
    def shows_probes(self) -> bool:
        """Return whether the engine's counters show tokens during the clients' silence, but no more than the routers'
        own requests explain.
        """
        return self._moved > 0 and not self.is_unmoved

    def unread(self) -> None:
        """Note that the metrics page is no longer readable."""
        self._page_holds, self._moved, self._is_blind = False, 0.0, True

    @property
    def is_unmoved(self) -> bool:
        """Return whether the metrics page ignores the engine's requests, which makes its figures meaningless."""
        return self._unmoved >= UNMOVED_READINGS

    # Once a second

    def look(self, passed_s: float, *, holds: bool, alive: bool, page_counts: bool = True, routers: int = 1) -> bool:
        """Return True once the silence is long enough for `judge` to decide. `holds` is the number of this router's
        requests. An engine that takes no requests (not `alive`) is not judged. `page_counts` is True if requests on its
        metrics page count. `routers` is the number of routers that send requests to it.
        """
        self._age(passed_s)
        probes = self._probes + (routers - 1) * (1 + self._clients.s / TRIAL_S)
        self._serves = self._serves or self._moved > PROBE_TOKENS * probes
        waits = holds or self._ended_s < inf or (self._page_holds and page_counts)
        was_proven, self.is_producing = self.is_proven, self._came
        self._abandoned_s, self._ended_s = self._ended_s, inf
        if self._came:
            self._produced(holds=holds)
        else:
            self._quiet.s += passed_s if waits else 0.0
        self._clients.s += passed_s if holds else 0.0
        if self._serves:
            self._served_clients(was_proven=was_proven)
        elif not alive and not self.stalled:
            self._quiet.s = 0.0
            self._restart()
        return not self.stalled and max(self._quiet.s, self._clients.s) > LEAST_S

    def _age(self, passed_s: float) -> None:
        self._rest_s -= passed_s
        self._kept_s += passed_s
        if self._kept_s >= KEPT_S:
            self._quiet.turn()
            self._clients.turn()
            self._kept_s = 0.0

    def _produced(self, *, holds: bool) -> None:
        """End the silence, and end a stall unless only clients' requests are stalled."""
        self._quiet.end(is_proven=self.is_proven)
        self._came, self.is_proven, self.is_suspected = False, True, False
        if not self.fails_clients:
            if self.stalled and not holds:
                self._clients.s = 0.0  # the requests have ended
            self._return()

    def _served_clients(self, *, was_proven: bool) -> None:
        self._clients.end(is_proven=was_proven)
        self._serves = False
        self._restart()
        self._return()

    def _restart(self) -> None:
        self._clients.s, self._moved, self._probes = 0.0, 0.0, 0

    def _return(self) -> None:
        self.stalled, self.by_requests, self.fails_clients, self._rest_s = "", False, False, 0.0

    @property
    def quiet_s(self) -> float:
        """Return the time with requests since the last token."""
        return self._quiet.s

    def judge(self, after_s: float, factor: float, prefill_s: float, late_s: float = 0.0) -> bool:
        """Return True if the engine is stalled. `after_s` is the limit for a new process, `prefill_s` the expected time
        of the longest prompt being computed. `late_s` is the lower bound of the limit for clients' silence if tokens
        may show only at the end of an answer, so that clients that gave up earlier prove nothing; otherwise 0.
        """
        least_s = 0.0 if self.is_proven else after_s
        self.is_suspected = self._quiet.is_over(least_s, factor, prefill_s)
        confirmed_s = 0.0 if self.by_requests else CONFIRM_S
        if self.is_suspected and self._quiet.s > self._quiet.limit_s + confirmed_s:
            since = "" if self.is_proven else " since its start"
            self.stalled = f"stalled: no token{since} for {_with_limit(self._quiet)}"
        if self._abandoned_s < late_s:
            self._clients.s = 0.0
        is_over = self._clients.is_over(max(after_s, late_s), factor, prefill_s)
        if is_over and self._clients.s > self._quiet.s and not self.is_suspected:
            self.stalled = f"stalled: tokens of the router's own requests alone for {_with_limit(self._clients)}"
            self.fails_clients = True
            self.try_by_requests()
        return bool(self.stalled)

    # Trials

    @property
    def refusal(self) -> str:
        """Return why the engine takes no request; empty if it takes requests, or takes this one as a trial."""
        return "" if self.by_requests and self._is_due else self.stalled

    @property
    def _is_due(self) -> bool:
        return not self._trial and self._rest_s <= 0

    def begin(self, *, probe: bool = False) -> bool:
        """Note that a request is being sent. Return whether it is a trial; each trial ends with `end`."""
        wanted = self.is_suspected if probe else bool(self.stalled)
        trial = wanted and self._is_due and self.by_requests != probe
        self._trial = self._trial or trial
        self._probes += trial and probe
        return trial

    def end(self) -> None:
        self._trial, self._rest_s = False, TRIAL_S

    def leave_trial(self) -> None:
        """Let the next request be the trial, without delay."""
        self._trial = False

    def excuse(self) -> None:
        """Forget a silence that only the engine's metrics page shows, as the engine refuses the router's probes."""
        self._quiet.s, self.is_suspected = 0.0, False

    def try_by_requests(self) -> None:
        """Use the next client's request as a trial, because the engine refuses the router's probes."""
        self.by_requests, self._rest_s = True, 0.0


def _with_limit(silence: Silence) -> str:
    return f"{silence.s:.0f} s with requests (limit {silence.limit_s:.0f} s)"


def prefill_s(tokens: float, tokens_per_s: float, equal_cost_tokens: float) -> float:
    """Estimate the time of a prompt that is computed alone; a rate or cost of 0 is unknown."""
    cost = tokens + tokens * tokens / (2 * (equal_cost_tokens or EQUAL_COST_TOKENS))
    return cost / (tokens_per_s or ASSUMED_TOKENS_PER_S)

"""Measured rates of a pool: how fast its engines compute prompts, and how fast KV moves between them. Pure. Prefill
rate: the median of new tokens / time to first byte over the last long prompts that were this router's only request on
their instance. The median is robust against load from other routers, which is not known exactly. Pace of an instance:
its speed relative to the pool's median instance. In tokens per second, an instance with short prompts or much context
would look slow, so prompts are compared by their fitted times (prompt_fit.py). The speed of a speed group (equal GPUs,
parallelism and role) is the inverse of the time in which it would compute the pool's last prompts. An instance corrects
it by its own prompts once there are OWN_PROMPTS of them. Time of a further token of a prompt: seconds = constant +
tokens / rate, fitted like transfers. The prefill rate above also contains that constant, so for short prompts it is
lower. Transfers: seconds = t0 + bytes / rate, by least squares over the offloads, each weighing FORGET times as much as
the next. The time runs from the computed prompt to the first byte of the decoder's stream, so t0 includes the API and
one step. An answer that was not streamed has no such time.
"""

from bisect import bisect_left, insort
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from math import inf

from router.policy.types import Rates
from router.pool.health.progress import EQUAL_COST_TOKENS
from router.pool.load.prompt_fit import Factors, PromptFit, Terms, terms

PROMPTS = 33  # latest prefills in the median
SHORTEST = 512  # new tokens; below this the engine's API dominates the time
OWN_PROMPTS = 20  # prompts of an instance after which they correct the rate of its group
SLOWEST, FASTEST = 0.25, 4.0  # bounds of the correction of a group's rate
EVEN = 0.1  # relative; smaller corrections and paces closer to 1 are noise that only slows decisions
MARGIN = 1e-6  # allowance for rounding when a correction is ruled out without being computed
PACES_S = 1.0  # interval between computations of the paces, which are costly in a large pool
FORGET = 0.95  # weight of an offload relative to the following one
LEARN = 0.1  # weight of the latest pull in the ratio of actual to predicted time
SPREAD = 0.05  # relative spread of sizes below which t0 and the rate cannot be separated

Computed = tuple[Terms, float]  # (terms of the prompt, its duration in s)


class Pace:
    def __init__(self) -> None:
        self._prefills: deque[Computed] = deque(maxlen=PROMPTS)
        self._rate, self._work_rate = MovingMedian(), MovingMedian()
        self._equal = float(EQUAL_COST_TOKENS)  # like the field of Rates, for `_work_rate`
        self._prompts = LinearFit()
        self._fits: defaultdict[str, PromptFit] = defaultdict(PromptFit)  # by group
        self._by_group: defaultdict[str, deque[Computed]] = defaultdict(lambda: deque(maxlen=PROMPTS))
        self._by_instance: defaultdict[str, deque[Computed]] = defaultdict(lambda: deque(maxlen=PROMPTS))
        # Prompts of an instance that has enough of them to correct its group's rate
        self._ample: dict[str, deque[Computed]] = {}
        # By instance: speed for its last prompts, computed with these factors
        self._known: dict[str, tuple[float, Factors]] = {}
        self._transfers = LinearFit()
        self._pull_extra_s = 0.0

    def prefill(self, tokens: int, cached: int, seconds: float, instance: str = "", group: str = "") -> bool:
        """Add a prompt with this many new tokens, computed while the instance had no other. Return False if it is too
        short to count."""
        if tokens < SHORTEST or seconds <= 0:
            return False
        computed = terms(tokens, cached), seconds
        self._known.pop(instance, None)
        for kept in (self._prefills, self._by_group[group], self._by_instance[instance]):
            kept.append(computed)
        if len(kept) >= OWN_PROMPTS:
            self._ample[instance] = kept
        self._rate.add(tokens / seconds)
        self._work_rate.add(_work(computed, self._equal))
        self._fits[group].add(*computed)
        self._prompts.add(tokens, seconds)
        return True

    def paces(self, groups: Mapping[str, str]) -> dict[str, float]:
        """Return the pace of each instance; 1 while its speed group has no prompt."""
        return dict.fromkeys(groups, 1.0) | self.uneven(groups)

    def uneven(self, groups: Mapping[str, str]) -> dict[str, float]:
        """Return the paces other than 1, of which a large pool has few."""
        if not self._by_instance.keys() <= groups.keys():
            for gone in self._by_instance.keys() - groups.keys():
                del self._by_instance[gone]
                self._ample.pop(gone, None)
                self._known.pop(gone, None)
        laws = {group: self._relative(fit.fitted()) for group, fit in self._fits.items()}
        usual = {group: _speed(prompts, laws[group]) for group, prompts in self._by_group.items()}
        own = {
            name: self._own(name, prompts, laws[groups[name]], usual[groups[name]])
            for name, prompts in self._ample.items()
            if groups[name] in usual
        }
        if len(usual) == 1 and {*own.values()} <= {*usual.values()}:
            return {}  # all are alike, the usual case
        sizes = Counter(groups.values()) - Counter(groups[name] for name in own)
        of_groups = chain.from_iterable([rate] * sizes[group] for group, rate in usual.items())
        every = [*of_groups, *own.values()]
        if not every:
            return {}
        middle = _median(sorted(every))
        by_group = {group: _pace(rate / middle) for group, rate in usual.items()}
        if any(pace != 1.0 for pace in by_group.values()):
            paces = {name: by_group.get(group, 1.0) for name, group in groups.items()}
        else:
            paces = {}
        paces |= {name: _pace(rate / middle) for name, rate in own.items()}
        return {name: pace for name, pace in paces.items() if pace != 1.0}

    def _own(self, name: str, prompts: Iterable[Computed], law: Factors, usual: float) -> float:
        """Return the corrected rate of an instance; recompute its speed only if the law has changed noticeably."""
        if (known := self._known.get(name)) is not None:
            speed, before = known
            low, high = _change(before, law)
            if (1 - EVEN + MARGIN) * usual < speed * low and speed * high < (1 + EVEN - MARGIN) * usual:
                return usual
        speed = _speed(prompts, law)
        self._known[name] = speed, law
        return _corrected(usual, speed)

    def _relative(self, factors: Factors) -> Factors:
        """Divide the factors by the time that they predict for the pool's last prompts."""
        new, pairs, prompt, each = factors
        last_s = sum([new * n + pairs * p + prompt * t + each for (n, p, t, _), _ in self._prefills])
        return new / last_s, pairs / last_s, prompt / last_s, each / last_s

    def transfer(self, size: int, seconds: float) -> None:
        """Learn from a transfer of `size` bytes."""
        self._transfers.add(size, seconds)

    def pulled(self, seconds: float, predicted_s: float) -> None:
        """Learn from a pull. `predicted_s` includes the extra time of `rates`."""
        self._pull_extra_s = max(0.0, self._pull_extra_s + LEARN * (seconds - predicted_s))

    def rates(self, bytes_per_token: float, equal_cost_tokens: float, by_law: Mapping[str, float] = {}) -> Rates:
        """Return the rates, including those from the engines' law, `by_law`. `equal_cost_tokens` is as in Rates; 0:
        unknown."""
        setup_s, bytes_per_s = self._transfers.fitted()
        equal = float(equal_cost_tokens or EQUAL_COST_TOKENS)
        if equal != self._equal:
            self._equal, self._work_rate = equal, MovingMedian(_work(one, equal) for one in self._prefills)
        return Rates(
            prefill_tokens_per_s=self._rate.middle,
            kv_bytes_per_token=bytes_per_token,
            transfer_bytes_per_s=bytes_per_s,
            transfer_setup_s=setup_s,
            compute_tokens_per_s=self._prompts.fitted()[1],
            pull_extra_s=self._pull_extra_s,
            work_tokens_per_s=self._work_rate.middle,
            **by_law,
        )


def _speed(prompts: Iterable[Computed], law: Factors) -> float:
    new, pairs, prompt, each = law  # written out for speed, because a large pool computes tens of thousands at once
    return _median(sorted([(new * n + pairs * p + prompt * t + each) / seconds for (n, p, t, _), seconds in prompts]))


def _change(before: Factors, now: Factors) -> tuple[float, float]:
    """Return the smallest and the largest ratio between the times that two laws predict for a prompt."""
    ratios = [b / a if a else inf for a, b in zip(before, now, strict=True) if a or b]
    return (min(ratios), max(ratios)) if ratios else (0.0, inf)


def _work(computed: Computed, equal: float) -> float:
    (new, pairs, *_), seconds = computed
    return (new + pairs / equal) / seconds


def _median(ascending: Sequence[float]) -> float:
    half = len(ascending) // 2
    return ascending[half] if len(ascending) % 2 else (ascending[half - 1] + ascending[half]) / 2


def _corrected(usual: float, own: float) -> float:
    correction = own / usual
    return usual if _is_even(correction) else usual * min(max(correction, SLOWEST), FASTEST)


def _pace(ratio: float) -> float:
    pace = round(ratio, 2)
    return 1.0 if _is_even(pace) else pace


def _is_even(ratio: float) -> bool:
    return abs(ratio - 1) < EVEN


class MovingMedian:
    """The median of the last PROMPTS values, kept in order."""

    def __init__(self, values: Iterable[float] = ()) -> None:
        self._last: deque[float] = deque()
        self._ascending: list[float] = []
        for value in values:
            self.add(value)

    def add(self, value: float) -> None:
        if len(self._last) == PROMPTS:
            del self._ascending[bisect_left(self._ascending, self._last.popleft())]
        self._last.append(value)
        insort(self._ascending, value)

    @property
    def middle(self) -> float:
        """Return the median; 0 without values."""
        return _median(self._ascending) if self._ascending else 0.0


class LinearFit:
    """seconds = t0 + size / rate, from weighted sums. Pure."""

    __slots__ = ("_seconds", "_size", "_square", "_sum", "_weight")

    def __init__(self) -> None:
        self._weight = self._size = self._square = self._seconds = self._sum = 0.0

    def add(self, size: float, seconds: float) -> None:
        self._weight = self._weight * FORGET + 1
        self._size = self._size * FORGET + size
        self._square = self._square * FORGET + size * size
        self._seconds = self._seconds * FORGET + seconds
        self._sum = self._sum * FORGET + size * seconds

    def fitted(self) -> tuple[float, float]:
        """Return (t0 in s, rate per s); zeros without data. All time counts as transfer if the sizes are too similar or
        the fit is implausible: a larger transfer took less time, or t0 is negative.
        """
        if not self._weight:
            return 0.0, 0.0
        size, seconds = self._size / self._weight, self._seconds / self._weight
        variance = self._square / self._weight - size * size
        if variance > (SPREAD * size) ** 2:
            slope = (self._sum / self._weight - size * seconds) / variance
            if slope > 0 and seconds - slope * size >= 0:
                return seconds - slope * size, 1 / slope
        return 0.0, size / seconds if seconds else 0.0

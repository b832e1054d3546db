"""Explains one receipt in sentences: why this instance, what was expected, how it ended. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from controlplane.common.figures import ms, percent, whole
from controlplane.pages.receipts import by_law
from controlplane.pages.receipts.by_law import recorded
from controlplane.pages.receipts.replay import is_passed_over
from fleet.counted import counted, significant
from router.contract.redis.receipt import Receipt, ReceiptAttempt
from router.policy.replay import reasons
from router.policy.strategies import title_of
from router.policy.types import Candidate, InstanceState

FEW = 20  # with fewer requests, no typical request is shown
OUTCOMES = {
    "ok": "It was answered in full.",
    "client_error": "The request itself was at fault, so it counts against no engine and no version.",
    "error": "It failed.",
    "refused": "The router refused it.",
    "cancelled": "The client went away before the end; the engine was told to stop.",
    "picked": "A gateway was told where to send it and reported no result.",
}

# Explanations more precise than the outcome (docs/router.md#outcomes)
RESULTS = {
    "failed_alike": "It failed alike on two engines, so the request itself was at fault and no engine was.",
    "failed_before_content": "The engine failed before it had sent any content.",
    "failed_after_content": "The engine failed in the middle of the answer, which is incomplete.",
    "router_failed": "The router failed, not an engine.",
}


@dataclass(frozen=True, slots=True)
class TimelinePhase:
    """A phase in the bar; `start` and `width` are in percent of the whole."""

    name: str
    start: float
    width: float
    ms: float
    meaning: str

    @property
    def label(self) -> str:
        return LABELS.get(self.name, self.name)


LABELS = {"first": "until the first content"}  # the router cannot divide it into network, queue, stall and prefill


def sentences(receipt: Receipt) -> list[str]:
    said = [write(receipt) for write in (_asked, _classed, _chosen, _offloaded, _retried, _predicted, _ended)]
    return [text for text in (*said, *_by_law(receipt)) if text]


def _asked(receipt: Receipt) -> str:
    length, cached = receipt.prompt_tokens, receipt.predicted_cached
    if not length:
        return ""
    text = f"The prompt has {whole(length)} tokens (L)."
    if cached is not None and receipt.instance:
        text += f" The prefix index expected {whole(cached)} of them ({percent(cached / length)})"
        text += f" in the cache of {receipt.instance}: {whole(receipt.new_tokens)} new ones to compute."
        if receipt.index_reason:
            text += f" It was not exact: {receipt.index_reason}."
    return text


def _classed(receipt: Receipt) -> str:
    name = receipt.request_class
    return f"That makes it a {name} request in pool {receipt.pool}." if name else ""


def _chosen(receipt: Receipt) -> str:
    if not receipt.instance:
        return ""
    by = f"Strategy {title_of(receipt.strategy or '')} of policy {receipt.policy} v{receipt.version}"
    return f"{by} chose {receipt.instance} by the rule “{(receipt.rule or '').replace('_', ' ')}”."


OFFLOADS = {
    "ok": "and the KV moved from there",
    "fallback": "but was computed by the instance that decoded",
    "ineligible": "but a request like this cannot be split",
    "failed": "which failed",
    "cancelled": "until the client went away",
}


def _offloaded(receipt: Receipt) -> str:
    if not receipt.prefill_instance:
        return ""
    why = f": {receipt.offload_reason}" if receipt.offload_reason else ""
    if receipt.pull_ms is not None:
        why = f", as it holds more of it and that would take {ms(receipt.pull_ms)}{why}"
    came = OFFLOADS.get(receipt.offload or "", "which had no effect")
    times = ""
    if receipt.prefill_ms is not None:
        times = f" The prefill took {ms(receipt.prefill_ms)}"
        times += f", the transfer {ms(receipt.transfer_ms)}." if receipt.transfer_ms is not None else "."
    if receipt.lent_by:
        times += f" It took {whole(receipt.lent_tokens)} tokens of the session's last turn from {receipt.lent_by}."
    return f"The prompt was to be computed on {receipt.prefill_instance}, {came}{why}.{times}"


def _retried(receipt: Receipt) -> str:
    if not receipt.retries:
        return ""
    failed = [attempt for attempt in receipt.attempts if attempt.error or _has_failed(attempt)]
    tried = "; ".join(f"{attempt.instance}: {attempt.error or attempt.status}" for attempt in failed)
    return f"It was retried {receipt.retries} time(s) before anything was sent to the client ({tried})."


def _has_failed(attempt: ReceiptAttempt) -> bool:
    """Return whether the attempt failed, by its result or, in receipts of older routers, by its status."""
    return attempt.result != "served" if attempt.result is not None else (attempt.status or 0) >= 500


def _predicted(receipt: Receipt) -> str:
    actual, predicted = receipt.cached_tokens, receipt.predicted_cached
    if actual is None or predicted is None:
        return ""
    if abs(actual - predicted) <= max(64, 0.02 * (receipt.prompt_tokens or 0)):
        return f"The engine found {whole(actual)} tokens in its cache, as expected{_from_tiers(receipt)}."
    word = "more" if actual > predicted else "fewer"
    difference = whole(abs(actual - predicted))
    by = f"{difference} {word} than the index expected"
    return f"The engine found {whole(actual)} tokens in its cache, {by}{_from_tiers(receipt)}."


def _from_tiers(receipt: Receipt) -> str:
    """Describe the tiers that the tokens were read from, as far as router and engine report them."""
    known = ((receipt.predicted_tiers, "the index expected"), (receipt.cached_tiers, "the engine took"))
    parts = [f"{verb} {tiers_in_words(tiers)}" for tiers, verb in known if tiers]
    if receipt.predicted_store:
        parts.insert(0, f"the index expected {whole(receipt.predicted_store)} in the store of the pool")
    return "; " + ", ".join(parts) if parts else ""


def tiers_in_words(tiers: Sequence[int]) -> str:
    places = zip(tiers, ("from the device", "from host memory", "from disk"), strict=True)
    return " and ".join(f"{whole(tokens)} {place}" for tokens, place in places if tokens) or "none"


def _ended(receipt: Receipt) -> str:
    text = RESULTS.get(receipt.result or "") or OUTCOMES.get(receipt.outcome or "", "")
    if receipt.outcome == "ok" and receipt.e2e_ms is not None:
        tokens = f" with {whole(receipt.output_tokens)} output tokens" if receipt.output_tokens else ""
        return f"It was answered in full{tokens} after {ms(receipt.e2e_ms)}."
    if receipt.code or receipt.error:
        said = f": {receipt.error}" if receipt.error else ""
        return f"{text} HTTP {receipt.status}, {receipt.code or 'no code'}{said}."
    return text


def _by_law(receipt: Receipt) -> list[str]:
    phase = next((one for one in phases(receipt) if one.name == "first"), None)
    return by_law.sentences(receipt, phase.ms if phase else None)


def phases(receipt: Receipt) -> list[TimelinePhase]:
    """Return the request's phases: queue, prefill, KV transfer, decode; empty if too little is known."""
    return _laid_out(_ends(receipt), receipt.e2e_ms or 0.0)


def _ends(receipt: Receipt) -> list[tuple[str, float, str]]:
    """Return (name, ms from the request's arrival to the end, meaning) of each phase, in order."""
    whole_ms = receipt.e2e_ms
    if not whole_ms:
        return []
    if not receipt.instance:
        return [("queue", whole_ms, "in the router; no instance was asked")]
    queue = min(receipt.queue_ms or 0.0, whole_ms)
    ends = [("queue", queue, "queued in the router")]
    first, prefill, elsewhere = receipt.ttft_ms, receipt.prefill_ms, receipt.prefill_instance
    if first is None:  # the first byte of a whole answer arrives with its last token
        if prefill is not None:
            ends.append(("prefill", min(queue + prefill, whole_ms), f"on {elsewhere}"))
        return [*ends, ("engine", whole_ms, "in the engine; not streamed, so its first token is not known")]
    first = min(max(first, queue), whole_ms)
    if prefill is not None and receipt.transfer_ms is not None:
        ends.append(("prefill", min(queue + prefill, first), f"on {elsewhere}"))
        ends.append(("transfer", first, f"of its KV to {receipt.instance}, and one step"))
    else:
        ends.append(("first", first, f"network, the queue of {receipt.instance} and its prefill"))
    return [*ends, ("decode", whole_ms, "from the first token to the last")]


def _laid_out(ends: Sequence[tuple[str, float, str]], scale_ms: float) -> list[TimelinePhase]:
    laid, start = [], 0.0
    for name, end, meaning in ends:
        laid.append(TimelinePhase(name, 100 * start / scale_ms, 100 * (end - start) / scale_ms, end - start, meaning))
        start = end
    return laid


@dataclass(frozen=True, slots=True)
class Waterfall:
    """A request beside the typical request of its class, on one scale."""

    own: list[TimelinePhase]
    typical: list[TimelinePhase]  # median of each phase's end; empty with too few other requests
    n: int  # number of requests that it is based on
    typical_ms: float
    sentence: str  # how the time was spent; empty if unknown


def waterfall(receipt: Receipt, others: Sequence[Receipt]) -> Waterfall:
    """Build a waterfall. `others` are recent requests of its pool and class."""
    own = _ends(receipt)
    names = [name for name, _, _ in own]
    laid_others = ((other, _ends(other)) for other in others)
    alike = [(other, ends) for other, ends in laid_others if [name for name, _, _ in ends] == names]
    if not own or len(alike) < FEW:
        laid = phases(receipt)
        return Waterfall(laid, [], len(alike), 0.0, _longest(receipt, laid))
    middle = [(name, median(ends[i][1] for _, ends in alike), "") for i, name in enumerate(names)]
    scale = max(own[-1][1], middle[-1][1])
    laid, typical = _laid_out(own, scale), _laid_out(middle, scale)
    sentence = _beside_typical(receipt, laid, typical, [other for other, _ in alike])
    return Waterfall(laid, typical, len(alike), middle[-1][1], sentence)


DOING = {
    "queue": "waiting in the router's queue",
    "prefill": "computing its prompt elsewhere",
    "first": "waiting for the first content",
    "transfer": "moving its KV",
    "decode": "decoding",
    "engine": "waiting for the engine",
}
# Tokens that determine a phase's time: field of the receipt, and their name
TOKENS = {
    "prefill": ("new_tokens", "new token"),
    "first": ("new_tokens", "new token"),
    "decode": ("output_tokens", "output token"),
}
ALIKE = 1.25  # factor within which a value counts as close to the median


def _longest(receipt: Receipt, own: Sequence[TimelinePhase]) -> str:
    if not own:
        return ""
    took, total = _took(receipt), sum(phase.ms for phase in own)
    phase = max(own, key=lambda phase: phase.ms)
    return f"{took}; {_share(phase, total)}."


def _beside_typical(
    receipt: Receipt, own: Sequence[TimelinePhase], typical: Sequence[TimelinePhase], others: Sequence[Receipt]
) -> str:
    total, usual = (sum(phase.ms for phase in laid) for laid in (own, typical))
    ratio = total / usual if usual else float("inf")
    median_of = f"the median of {counted(len(others), f'recent {receipt.request_class} request')} ({ms(usual)})"
    took = _took(receipt)
    longer, its = max(zip(own, typical, strict=True), key=lambda pair: pair[0].ms - pair[1].ms)
    here, there = _tokens(longer.name, receipt, others)
    excess = f"{ms(longer.ms)}{here} instead of {ms(its.ms)}{there}"
    if _stood_still(longer, its, receipt, others):
        excess += f". {STOOD_STILL}"
        doing = "after the first content, without decoding"
    else:
        doing = DOING[longer.name]
    if ratio > ALIKE:
        part = "the difference" if longer.ms - its.ms >= 0.9 * (total - usual) else "most of the difference"
        return f"{took}, {significant(ratio, 1)} times {median_of}; {part} is {doing}: {excess}."
    beside = "about" if ratio >= 1 / ALIKE else "less than"
    if longer.ms > ALIKE * its.ms and longer.ms - its.ms > 0.2 * usual:
        return f"{took}, {beside} {median_of}, but spent longer {doing}: {excess}."
    return f"{took}, {beside} {median_of}; {_share(max(own, key=lambda phase: phase.ms), total)}."


LEAST_DECODED = 8  # median number of output tokens below which a token's usual time is unknown
STOOD_STILL = "The rest is the network, a client that reads slowly, or a process that stood still"


def _stood_still(own: TimelinePhase, typical: TimelinePhase, receipt: Receipt, others: Sequence[Receipt]) -> bool:
    """Return whether the engine's tokens were so slow that it cannot have been decoding all the time."""
    mine, theirs = receipt.output_tokens, [other.output_tokens for other in others if other.output_tokens]
    if own.name != "decode" or not mine or not theirs or median(theirs) < LEAST_DECODED:
        return False
    # the first token ends the previous phase
    return own.ms / max(mine - 1, 1) > by_law.NOT_PREFILL * typical.ms / (median(theirs) - 1)


def _tokens(phase: str, receipt: Receipt, others: Sequence[Receipt]) -> tuple[str, str]:
    """Return (tokens processed in a phase of this request, the median); both are empty if one is unknown."""
    field, noun = TOKENS.get(phase, ("", ""))
    mine = getattr(receipt, field, None)
    theirs = [tokens for other in others if (tokens := getattr(other, field, None)) is not None]
    return (f" for {counted(mine, noun)}", f" for {whole(median(theirs))}") if mine is not None and theirs else ("", "")


def _took(receipt: Receipt) -> str:
    return f"It {'took' if receipt.outcome == 'ok' else 'ended after'} {ms(receipt.e2e_ms)}"


def _share(phase: TimelinePhase, total_ms: float) -> str:
    return f"{ms(phase.ms)} ({percent(phase.ms / total_ms)}) went into {DOING[phase.name]}"


def left_out(receipt: Receipt) -> dict[str, int]:
    """Count the instances that the decision did not compare, by reason."""
    kept = receipt.candidates.get("left_out") if isinstance(receipt.candidates, dict) else None
    if not isinstance(kept, dict):
        return {}
    return {str(why): count for why, count in kept.items() if isinstance(count, int)}


@dataclass(frozen=True, slots=True)
class CandidateRow:
    candidate: Candidate
    state: InstanceState
    chosen: bool
    bar: float | None  # percent of the highest score
    passed_over: bool  # True if the candidate was not compared although others were
    why: str  # the reason that names it


def candidates(receipt: Receipt) -> list[CandidateRow]:
    """Return the candidates: the chosen one first, then by score, refused ones last."""
    found = recorded(receipt)
    scores = [one.score for one, _ in found if one.score is not None]
    highest = max(scores, default=0.0)
    rows, why_these = [], reasons(receipt)
    for one, state in found:
        chosen, score = one.id == receipt.instance, one.score
        bar = 100 * score / highest if score is not None and highest > 0 and score >= 0 else None
        passed_over = not chosen and is_passed_over(one, scored=bool(scores))
        why = next((text for text in why_these if one.id in text), "")
        rows.append(CandidateRow(one, state, chosen, bar, passed_over, why))
    return sorted(rows, key=_rank)


def _rank(row: CandidateRow) -> tuple[bool, bool, bool, float]:
    score = row.candidate.score
    return not row.chosen, bool(row.candidate.refused), score is None, score or 0.0

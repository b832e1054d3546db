"""Judges a request whose prefill and decode ran on different engines, without using the router's code."""

from router.tests.liar import oracle, plans
from router.tests.liar.engines import Attempt
from router.tests.liar.oracle import AFTER, ALIKE, BEFORE, CLIENTS, Asked

REFUSED = "refused"
# Connectors that send both halves at once: if one half fails first, the other engine's actions are not seen
TOGETHER = ("mooncake_p2p", "neuron", "sglang")


def judge(asked: Asked, connector: str) -> None:
    """Raise AssertionError for a false outcome."""
    assert len(asked.outcomes) == 1, f"{len(asked.outcomes)} outcomes of one request"
    told, got = asked.outcomes[0], asked.got
    result = told["result"]
    assert not got.problem, f"no valid HTTP: {got.problem}"
    assert result != "router_failed", told["error"]
    if got.has_left:
        return
    oracle.judge_client(asked, result)
    true = may_come_to(asked, connector)
    assert result in true or (result == REFUSED and not told["attempts"]), f"{result}, where {sorted(true)} is true"
    if result == "served":
        said = oracle.tokens(decoding(asked))
        assert told["output_tokens"] == said[1], f"{told['output_tokens']} tokens, and the decoder said {said[1]}"


def decoding(asked: Asked) -> Attempt:
    """Return the last attempt at the client's own request. Both of SGLang's halves receive it, in any order."""
    own = [attempt for attempt in asked.attempts if not attempt.is_prefill] or asked.attempts
    tried = [attempt["instance"] for attempt in (asked.outcomes or [{"attempts": []}])[0]["attempts"]]
    return ([attempt for attempt in own if attempt.engine in tried[-1:]] or own)[-1]


def may_come_to(asked: Asked, connector: str) -> set[str]:
    """Return the results that are true of some attempt; if two fail alike, the request may be at fault."""
    true: set[str] = set()
    failing = set()
    for attempt in asked.attempts:
        of = results(attempt)
        failing |= {attempt.engine} if BEFORE in of else set()
        true |= of
    true |= {ALIKE} if len(failing) > 1 else set()
    if connector == "neuron" and asked.path in plans.CHUNKED and BEFORE in true:
        true |= {AFTER}  # the client already has the prefill's token
        true |= {"served"} if "end" in decoding(asked).sent else set()  # an error followed by an answer
    return true


def results(attempt: Attempt) -> set[str]:
    of = oracle.results(attempt)
    if not attempt.is_prefill:
        return of
    return of - {"served", AFTER} | ({BEFORE} if AFTER in of or attempt.streams or not attempt.is_whole else set())


def hurts(asked: Asked, connector: str) -> str:
    """Return why an honest request was not served although good engines were there; empty if it had to be served."""
    told = asked.outcomes[0]
    result, lies = told["result"], [attempt for attempt in asked.attempts if attempt.plan is not plans.GOOD]
    if result == "served" or asked.is_poison or asked.got.has_left:
        return ""
    if not told["attempts"]:
        is_known = (
            told["code"] in ("insufficient_quota", "rate_limit_exceeded") or "cannot be offloaded" in told["error"]
        )
        return "" if is_known else f"it was refused: {told['error']}"
    prompt_is_known = any(
        attempt.is_prefill and attempt.is_whole and attempt.plan is plans.GOOD for attempt in asked.attempts
    )
    if prompt_is_known and connector not in TOGETHER:
        lies = [attempt for attempt in lies if not attempt.is_prefill]
    if len({attempt.engine for attempt in lies}) > 1:  # two engines failed alike, or one was tried again
        return ""
    true = may_come_to(asked, connector)
    return "" if result in (AFTER, CLIENTS) and result in true else f"it came to {result}: {told['error']}"


def may_be_one(asked: Asked, connector: str) -> bool:
    """Return whether one engine may have caused all failures; of two halves sent at once, either half may have."""
    halves = [{one.engine for one in asked.attempts if one.is_prefill is is_prefill} for is_prefill in (True, False)]
    return connector in TOGETHER and min(map(len, halves)) < 2


__all__ = ["TOGETHER", "hurts", "judge", "may_be_one"]

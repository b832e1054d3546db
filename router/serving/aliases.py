"""Chooses the target of a request whose model is an alias: first by its session, then by the fallbacks. A conversation
without a session id stays with the pool that has served it; its first request is drawn by the request id. A target gets
no share of the split if its pool was removed or is not allowed for the request's key.
"""

from collections.abc import Callable, Mapping

from router.contract.answer.verdict import VERDICTS
from router.contract.models import Alias, Condition, Target
from router.http.errors import ErrorResponse
from router.policy.value import replace
from router.pool.rollout import SHARES, hashed
from router.request.chosen import Chosen
from router.tokenize import Prompt
from router.tokenize.prompt import renamed

CONDITION_OF: dict[str, Condition] = {
    **dict.fromkeys(("no_instance_ready", "waking", "adapter_not_loaded"), "no_instance_ready"),
    **dict.fromkeys(("saturated", "displaced", "queue_timeout", "deadline_unmeetable", "over_ttft_limit"), "saturated"),
    **dict.fromkeys(("upstream_failed", "upstream_timeout", "prefill_failed", "prefill_timeout"), "upstream_failed"),
}

Barred = Callable[[str], ErrorResponse | None]  # pool → why the request cannot use it
Known = Callable[[Target], int]  # chunks of the conversation known to the target's pool


def choose(name: str, alias: Alias, read: Prompt, body: bytes, barred: Barred, draw: "Draw") -> Chosen:
    """Choose the target. Raise ErrorResponse if none is left."""
    refused = {target.pool: refusal for target in alias.targets if (refusal := barred(target.pool)) is not None}
    split = [target for target in alias.split if target.weight and target.pool not in refused]
    spare = tuple(target for target in alias.fallback if target.pool not in refused)
    if split:
        target, why = (split[0], _only(alias, refused)) if len(split) == 1 else draw(name, split)
        return Chosen(name, alias, read, body, target, why, spare)
    first = next(refused[target.pool] for target in alias.split if target.pool in refused)
    if spare and CONDITION_OF.get(first.code) in alias.on:
        return Chosen(name, alias, read, body, spare[0], f"fallback: {first.message}", spare[1:])
    raise first


def _only(alias: Alias, refused: Mapping[str, ErrorResponse]) -> str:
    reasons = [refused[target.pool].message for target in alias.split if target.pool in refused]
    return f"the only one left: {'; '.join(reasons)}" if reasons else "the only target"


Draw = Callable[[str, list[Target]], tuple[Target, str]]


def drawing(session: str | None, request_id: str, known: Known) -> Draw:
    def draw(name: str, split: list[Target]) -> tuple[Target, str]:
        if session is None:
            tokens = [known(target) for target in split]
            if any(tokens):
                return split[tokens.index(max(tokens))], "continues a conversation there"
        target = by_weight(hashed(name, session or request_id), split)
        total = sum(candidate.weight for candidate in split)
        return target, f"{target.weight} of {total} by its {'id' if session is None else 'session'}"

    return draw


def by_weight(key: int, split: list[Target]) -> Target:
    """Pick a target by weight. A higher weight of the last target never moves a session away from it."""
    position, total = key >> 32, sum(target.weight for target in split)
    end = 0
    for target in split:
        end += target.weight
        if position * total < end * SHARES:
            return target
    return split[-1]


def in_pool(name: str, alias: Alias, read: Prompt, body: bytes, pool: str) -> Chosen | None:
    """Return the target in the pool named by `x-weir-pool`. None: the pool receives the model name unchanged."""
    target = next((target for target in alias.targets if target.pool == pool), None)
    return Chosen(name, alias, read, body, target, "x-weir-pool") if target is not None else None


def may_fall_back(chosen: Chosen | None, condition: Condition) -> bool:
    return chosen is not None and bool(chosen.left) and condition in chosen.alias.on


def fall_back(chosen: Chosen, refusal: ErrorResponse) -> bool:
    """Switch to the next target; return False if the refusal stands."""
    condition = CONDITION_OF.get(refusal.code)
    is_the_clients = VERDICTS[refusal.result].fault == "client"
    is_final = not refusal.should_retry and refusal.retry_after_s is None  # the request may have crashed an engine
    if condition is None or is_the_clients or is_final or not may_fall_back(chosen, condition):
        return False
    chosen.fell_back.append((chosen.target.pool, condition))
    chosen.why = f"fallback: {condition} of {chosen.target.words}"
    chosen.target, *left = chosen.left
    chosen.left = tuple(left)
    return True


def aimed(chosen: Chosen, pool_model: str) -> tuple[Prompt, bytes]:
    """Return the prompt and the body for the target's engines."""
    target = chosen.target
    chosen.serves = target.adapter.name if target.adapter is not None else target.model or pool_model or chosen.name
    if not chosen.renames:
        return chosen.prompt, chosen.body
    document = {**chosen.prompt.document, "model": chosen.serves}
    return replace(chosen.prompt, document=document), renamed(chosen.body, chosen.name, chosen.serves)

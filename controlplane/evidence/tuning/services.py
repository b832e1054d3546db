"""Starts tunings, by one request from REST and the form, and opens drafts with the values of winners."""

from typing import Annotated

from pydantic import Field

from controlplane.evidence.experiments.start.body import (
    Milliseconds,
    Seed,
    Strict,
    checked,
    limits,
    number,
    without_fraction,
)
from controlplane.evidence.previews import policy_job
from controlplane.evidence.previews import services as previews
from controlplane.evidence.previews.body import MAX_REQUESTS, MOST_REQUESTS
from controlplane.evidence.previews.policy_job import as_seen
from controlplane.evidence.previews.source import TrafficPart
from controlplane.evidence.tuning import display
from controlplane.evidence.tuning.goals import OBJECTIVES
from controlplane.evidence.tuning.models import HELD_OUT, Tuning
from controlplane.evidence.tuning.space import Range, space_of
from controlplane.evidence.tuning.types import Objective, Winner
from controlplane.evidence.twin.pool_model import NotModelled, twin_of
from controlplane.people.audit.services import Actor, record
from controlplane.traffic.policies import selectors as policies
from controlplane.traffic.policies.drafts.services import open_draft, patch_draft
from controlplane.traffic.policies.errors import Conflict
from controlplane.traffic.policies.models import Draft, Policy
from fleet import jobs
from fleet.jobs import DONE
from fleet.models import Pool
from router.contract.values.problem import InvalidInput, Problem, invalid
from router.policy.schema import document as documents

KEPT = 50  # newest tunings kept per policy
ABOUT = (  # fields in the audit log
    *("live_version", "pool", "trace_name", "max_requests", "seed", "workers", "total"),
    *("objectives", "time_limit_s", "held_out", "space"),
)
LEAST_REQUESTS = 100
# Smallest number of requests to search on, and to hold out; with fewer there is no verdict (stats.LOW_N)
LEAST_PART = 20
TRIALS, WORKERS, TIME_LIMIT = number(1, 500, "int"), number(1, 8, "int"), number(10, 86_400, "int")
REQUESTS, HELD_OUT_SHARE = number(LEAST_REQUESTS, MOST_REQUESTS, "int"), number(0.1, 0.8)
Trials = Annotated[int, checked(TRIALS), limits(TRIALS)]
Finite = Annotated[float, Field(allow_inf_nan=False)]


class RangeIn(Strict):
    path: str = Field(max_length=80, examples=["classes.heavy_new_tokens"])
    low: Finite | None = Field(None, description="Default: the parameter's own bound")
    high: Finite | None = None
    step: Finite | None = Field(None, description="Distance between values, from low on; default: any value")
    log: bool | None = Field(None, description="On a logarithmic scale; default: where the bounds are 100 times apart")


class TuningIn(Strict):
    """Every field is optional."""

    pool: str = Field("", max_length=63, description="Default: the pool with the most recorded requests")
    trace: str = Field("", max_length=100, description="Default: the pool's recorded traffic, as for a preview")
    parameters: list[RangeIn] = Field(
        [], max_length=40, description="Default: the parameters by which the strategy decides"
    )
    trials: Trials = 60
    workers: Annotated[int, checked(WORKERS), limits(WORKERS)] = Field(
        2, description="Processes that simulate at the same time"
    )
    seed: Seed = Field(1, description="Seed of the search and of the twin")
    max_requests: Annotated[int, checked(REQUESTS), limits(REQUESTS)] = MAX_REQUESTS
    ttft_limit_ms: Milliseconds | None = Field(None, description="Limit for goodput; default: the live version's p90")
    tpot_limit_ms: Milliseconds | None = None
    objectives: list[Objective] = Field(["ttft", "tpot", "goodput"], min_length=1, max_length=3)
    time_limit_s: Annotated[int, checked(TIME_LIMIT), limits(TIME_LIMIT)] | None = Field(
        None, description="Time limit of the search; default: none"
    )
    held_out: Annotated[float, checked(HELD_OUT_SHARE), limits(HELD_OUT_SHARE)] = Field(
        HELD_OUT, description="Share of the requests, the last ones, that check the winners"
    )

    @property
    def ranges(self) -> list[Range]:
        return [Range(**{name: without_fraction(value) for name, value in each}) for each in self.parameters]


def start(policy: Policy, actor: Actor, asked: TuningIn) -> Tuning:
    """Start a tuning. Raise InvalidInput if pool, traffic or parameters are not suitable."""
    live = policies.live_version(policy)
    space = space_of(documents.parse(live.document)["strategy.name"], asked.ranges)
    pool = previews.pool_of(policy, asked.pool)
    part = previews.part_of(pool, asked.trace, asked.max_requests, asked.seed)
    _check(pool, part, asked.held_out)
    made = Tuning(
        policy=policy,
        live_version=live.number,
        pool=pool.name,
        trace_name=part.name,
        trace=part.facts(),
        max_requests=asked.max_requests,
        seed=asked.seed,
        workers=asked.workers,
        limits={"ttft_ms": asked.ttft_limit_ms, "tpot_ms": asked.tpot_limit_ms},
        objectives=[name for name in OBJECTIVES if name in asked.objectives],
        time_limit_s=asked.time_limit_s,
        held_out=asked.held_out,
        space=[dimension.as_dict() for dimension in space],
        total=asked.trials,
    )
    policy_job.start(made, actor, ABOUT, KEPT)
    return made


def _check(pool: Pool, part: TrafficPart, held_out: float) -> None:
    count = len(part.trace.requests)
    if count < LEAST_REQUESTS:
        message = f"{part.name} has {count} requests to play: a tuning needs at least {LEAST_REQUESTS}"
        raise invalid("trace", part.name, message)
    searched = cut(count, held_out)
    if min(searched, count - searched) < LEAST_PART:
        message = f"leaves {searched:,} requests to search and {count - searched:,} to check"
        problem = Problem("held_out", held_out, message, f"at least {LEAST_PART} of each")
        raise InvalidInput("the tuning was not started", (problem,))
    try:
        twin_of(pool)
    except NotModelled as error:
        raise invalid("pool", pool.name, str(error)) from None


def cut(count: int, held_out: float) -> int:
    """Return the number of requests to search on."""
    return round((1 - held_out) * count)


def resume(tuning: Tuning, actor: Actor, *, if_match: str | None = None) -> bool:
    """Continue from the trials so far. Return False unless the tuning failed or was cancelled. Raise
    ChangedMeanwhile."""
    with as_seen(tuning, if_match):
        if not jobs.resume(tuning):
            return False
        record(actor, "tuning.resume", str(tuning))
    jobs.send(tuning)
    return True


def draft_of(tuning: Tuning, trial: int, actor: Actor, *, if_match: str | None = None) -> Draft:
    """Open a draft with a winner's values and its evidence as the note. It is never published automatically. Raise
    InvalidInput if the trial was not checked; Conflict if a draft is open, or another version is live now.
    """
    with as_seen(tuning, if_match) as tuning:
        return _drafted(tuning, _winner(tuning, trial), trial, actor)


def _drafted(tuning: Tuning, winner: Winner, trial: int, actor: Actor) -> Draft:
    policy = tuning.policy
    live = policies.live_version(policy)
    if live.number != tuning.live_version:
        by = f"v{live.number} by {live.actor_name}"
        text = f"the tuning compared with v{tuning.live_version}, and {by} is live now: tune again"
        raise Conflict(text, kind="live", theirs=live.upgraded, current=live.etag)
    _check_no_draft(policy)
    document = documents.apply_overrides(live.upgraded, winner["values"])
    draft = open_draft(policy, actor)
    if draft.revision > 1 or draft.opened_by != actor.name:  # another person opened the draft a moment earlier
        raise _open(policy, draft)
    draft = patch_draft(policy, winner["values"], actor, if_match=draft.etag)
    draft.note = display.note(tuning, winner)
    Draft.objects.filter(pk=draft.pk).update(note=draft.note)
    Tuning.objects.filter(pk=tuning.pk).update(drafted=trial)
    record(actor, "tuning.draft", str(tuning), f"trial {trial}", live.upgraded, document)
    return draft


def _winner(tuning: Tuning, trial: int) -> Winner:
    if tuning.status != DONE or tuning.result is None:
        raise invalid("trial", trial, f"the tuning is {tuning.status}: wait until it is done")
    winners: dict[int, Winner] = {each["trial"]: each for each in tuning.result["winners"]}
    if trial not in winners:
        allowed = ", ".join(map(str, winners)) or "none"
        message = "was not checked on the held-out requests"
        raise InvalidInput("only a winner can become a draft", (Problem("trial", trial, message, allowed),))
    return winners[trial]


def _check_no_draft(policy: Policy) -> None:
    draft = policies.open_draft(policy)
    if draft is not None:
        raise _open(policy, draft)


def _open(policy: Policy, draft: Draft) -> Conflict:
    text = (
        f"{draft.updated_by} has a draft of {policy.name} open (revision {draft.revision}): publish or discard it first"
    )
    return Conflict(text, kind="exists", theirs=draft.upgraded, current=draft.etag)

"""Runs a preview as a job, from its row to its result."""

from typing import Any

from celery import shared_task
from django.utils import timezone

from controlplane.evidence.previews import policy_job, source
from controlplane.evidence.previews.analysis import trust
from controlplane.evidence.previews.analysis.compute import Computed, FirstAnswer, PreviewInputs, compute
from controlplane.evidence.previews.analysis.saving import saving_of
from controlplane.evidence.previews.analysis.types import Caution, DraftEffect, Saving
from controlplane.evidence.previews.models import Preview
from controlplane.evidence.previews.source import TrafficPart
from controlplane.evidence.twin.pool_model import Modelled, NotModelled, twin_of
from controlplane.evidence.twin.prompt_cost import prompt_cost
from controlplane.traffic.policies import selectors as policies
from fleet import jobs, selectors, subprocess
from fleet.kinds import KINDS
from fleet.kinds.options.option import build
from fleet.models import Pool
from router.policy.schema import document as documents


@shared_task(name="previews.run")
def run_preview(preview_id: int) -> None:
    """Compute the preview, unless another worker has claimed it."""
    policy_job.perform(Preview, preview_id, _perform)


def _perform(preview: Preview) -> dict[str, Any]:
    """Return the values of the row once it is done."""
    pool = policy_job.pool_of(preview)
    try:
        twin = twin_of(pool)
    except NotModelled as error:
        raise jobs.JobFailed(str(error), trust=[trust.caution("not_modelled", str(error))]) from None
    parts = [
        source.take(preview.trace_name, preview.max_requests, seed, preview.trace["until"]) for seed in preview.seeds
    ]
    heartbeat = jobs.Heartbeat(preview)

    def take(sent: int | FirstAnswer) -> None:
        if isinstance(sent, FirstAnswer):
            heartbeat.write(timezone.now(), {"first_result": sent.effect})
        else:
            preview.done = sent

    computed = subprocess.run_in_subprocess(
        compute, _inputs(preview, twin, parts), lambda: heartbeat.beat(done=preview.done), take
    )
    return {
        "done": preview.total,
        "trace": {**parts[0].facts(), "requests": preview.trace["requests"]},
        "twin": {**policy_job.about(twin), "deviation": computed.deviation},
        "trust": _trust(preview, pool, twin, parts[0], computed),
        "first_result": None,
        "result": {**computed.effect, "saving": _saving(computed.effect, twin, pool)},
    }


def _saving(effect: DraftEffect, twin: Modelled, pool: Pool) -> Saving | None:
    """Return the saving at current prices."""
    kind = KINDS[pool.kind]
    new_tokens_per_s = effect["new_tokens_per_s"]
    if new_tokens_per_s is None:
        return None
    cost = prompt_cost(twin.fleet, kind, build(kind.spec, pool.engine))
    return saving_of(new_tokens_per_s, cost, selectors.prices().gpu_hour, effect.get("saved_tokens_per_s"))


def _inputs(preview: Preview, twin: Modelled, parts: list[TrafficPart]) -> PreviewInputs:
    live = policies.version(preview.policy, preview.live_version)
    return PreviewInputs(
        fleet=twin.fleet,
        pool=preview.pool,
        live=documents.parse(live.document),
        version=(preview.policy.name, live.number),
        draft=documents.parse(preview.draft_document),
        traces=tuple((seed, part.trace) for seed, part in zip(preview.seeds, parts, strict=True)),
    )


def _trust(preview: Preview, pool: Pool, twin: Modelled, part: TrafficPart, computed: Computed) -> list[Caution]:
    by_class = {name: effect["n"] for name, effect in computed.effect["classes"].items()}
    return [
        *policy_job.of_origin(preview, pool, part),
        *trust.of_requests(by_class),
        *trust.of_deviation(computed.deviation, twin.expected["ttft_mean"]),
        *trust.of_versions(computed.versions),
        *(trust.caution("caution", text) for text in dict.fromkeys((*twin.cautions, *computed.not_modelled))),
    ]

"""Performing a preview as a job, from its row to its result."""

from typing import Any

import redis
from django.utils import timezone

from controlplane.policies import selectors as policies
from controlplane.policies.errors import PolicyError
from controlplane.previews import source, subprocess
from controlplane.previews.analysis import trust
from controlplane.previews.analysis.compute import Computed, PreviewInputs
from controlplane.previews.analysis.saving import saving_of
from controlplane.previews.analysis.types import Caution, Effect, Saving
from controlplane.previews.models import Preview
from controlplane.previews.source import TrafficPart
from controlplane.previews.subprocess import SubprocessFailed
from controlplane.traces import library
from controlplane.traces.types import BadTrace
from controlplane.twin.pool_model import Modelled, NotModelled, twin_of
from fleet import jobs, selectors
from fleet.jobs import DONE, FAILED
from fleet.kinds import KINDS
from fleet.kinds.kind import hardware_of
from fleet.kinds.option import build
from fleet.kinds.serving import BOTH
from fleet.models import Pool
from router.policy.schema import document as documents
from router.policy.schema.document import InvalidDocument

EXPECTED = (library.TraceError, BadTrace, SubprocessFailed, PolicyError, InvalidDocument, redis.RedisError)


def run_preview(preview_id: int) -> None:
    """Compute the preview, unless another worker has claimed it."""
    with jobs.held(Preview, preview_id) as preview:
        if preview is not None:
            _run(preview)


def _run(preview: Preview) -> None:
    try:
        values = _perform(preview)
    except jobs.Stopped:
        jobs.send_next(Preview)
    except NotModelled as error:
        fail(preview, str(error), trust=[trust.caution("not_modelled", str(error))])
    except Pool.DoesNotExist:
        fail(preview, f"pool {preview.pool} is no longer there")
    except Exception as error:
        fail(preview, jobs.cause_of(error, EXPECTED))
    else:
        end(preview, DONE, **values)


def fail(preview: Preview, cause: str, **values: Any) -> None:
    end(preview, FAILED, cause, **values)


def end(preview: Preview, status: str, cause: str = "", **values: Any) -> bool:
    ended = jobs.end(preview, status, cause, **values)
    jobs.send_next(Preview)
    return ended


def _perform(preview: Preview) -> dict[str, Any]:
    """The values of the row once it is done."""
    pool = selectors.pool(preview.pool)
    twin = twin_of(pool)
    parts = [
        source.take(preview.trace_name, preview.max_requests, seed, preview.trace["until"]) for seed in preview.seeds
    ]
    heartbeat = jobs.Heartbeat(preview)
    computed = subprocess.compute_in_subprocess(
        _job(preview, twin, parts),
        lambda done: heartbeat.beat(done=done),
        lambda first: heartbeat.write(timezone.now(), {"first_result": first.effect}),
    )
    return {
        "done": preview.total,
        "trace": {**parts[0].facts(), "requests": preview.trace["requests"]},
        "twin": {
            "basis": twin.basis,
            "about": twin.about,
            "expected": twin.expected,
            "deviation": computed.deviation,
        },
        "trust": _trust(preview, pool, twin, parts[0], computed),
        "first_result": None,
        "result": {**computed.effect, "saving": _saving(computed.effect, twin, pool)},
    }


def _saving(effect: Effect, twin: Modelled, pool: Pool) -> Saving | None:
    """The saving at present prices."""
    kind = KINDS[pool.kind]
    hardware = hardware_of(kind, build(kind.spec, pool.engine), BOTH)
    new_tokens_per_s = effect["new_tokens_per_s"]
    if new_tokens_per_s is None:
        return None
    return saving_of(new_tokens_per_s, twin.fleet, hardware.gpus, selectors.prices().gpu_hour)


def _job(preview: Preview, twin: Modelled, parts: list[TrafficPart]) -> PreviewInputs:
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
    measured = [request.measured for request in part.trace.requests if request.measured is not None]
    by_class = {name: effect["n"] for name, effect in computed.effect["classes"].items()}
    return [
        *trust.of_origin(
            preview.trace_name,
            pool.name,
            pool.model,
            pools=(each.pool for each in measured),
            models=(each.model for each in measured),
        ),
        *trust.of_requests(by_class),
        *trust.of_deviation(computed.deviation, twin.expected["ttft_mean"]),
        *trust.of_versions(computed.versions),
        *(trust.caution("caution", text) for text in dict.fromkeys((*twin.cautions, *computed.not_modelled))),
    ]

"""Computing a preview: from its row to its result, however it ends."""

import redis
import structlog

from controlplane.policies import selectors as policies
from controlplane.policies.errors import PolicyError
from controlplane.previews import services, source, subprocess
from controlplane.previews.analysis import trust
from controlplane.previews.analysis.compute import Computed, PreviewInputs
from controlplane.previews.heartbeat import PreviewHeartbeat, PreviewStopped
from controlplane.previews.models import DONE, FAILED, Preview
from controlplane.previews.source import TrafficPart
from controlplane.previews.subprocess import Broken
from controlplane.traces import library
from controlplane.traces.types import BadTrace
from controlplane.twin.pool_model import Modelled, NotModelled, twin_of
from fleet.models import Pool
from fleet.selectors import pool
from router.policy.schema import document as documents
from router.policy.schema.document import InvalidDocument

log = structlog.get_logger(__name__)
EXPECTED = (library.TraceError, BadTrace, Broken, PolicyError, InvalidDocument, redis.RedisError)


def run_preview(preview_id: int) -> None:
    """Do all of it, unless somebody else does; a second message for the same preview does nothing."""
    if not services.claim(preview_id):
        return
    preview = Preview.objects.select_related("policy").get(pk=preview_id)
    try:
        _perform(preview)
    except PreviewStopped:
        services.send_next()
    except NotModelled as error:
        services.end(preview_id, FAILED, str(error), trust=[trust.caution("not_modelled", str(error))])
    except Pool.DoesNotExist:
        services.end(preview_id, FAILED, f"pool {preview.pool} is no longer there")
    except EXPECTED as error:
        services.end(preview_id, FAILED, str(error))
    except Exception as error:
        log.exception("preview.crashed", preview=preview_id)
        services.end(preview_id, FAILED, f"{type(error).__name__}: {error}")


def _perform(preview: Preview) -> None:
    own = pool(preview.pool)
    twin = twin_of(own)
    parts = [
        source.take(preview.trace_name, preview.max_requests, seed, preview.trace["until"]) for seed in preview.seeds
    ]
    computed = subprocess.compute_apart(_job(preview, twin, parts), PreviewHeartbeat(preview.pk).beat)
    services.end(
        preview.pk,
        DONE,
        done=preview.total,
        trace={**parts[0].facts(), "requests": preview.trace["requests"]},
        twin={"basis": twin.basis, "about": twin.about, "deviation": computed.deviation},
        trust=_trust(preview, own, twin, parts[0], computed),
        result=computed.effect,
    )


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


def _trust(preview: Preview, own: Pool, twin: Modelled, part: TrafficPart, computed: Computed) -> list[trust.Caution]:
    told = [request.measured for request in part.trace.requests if request.measured is not None]
    by_class = {name: found["n"] for name, found in computed.effect["classes"].items()}
    return [
        *trust.of_origin(
            preview.trace_name,
            own.name,
            own.model,
            pools=(measured.pool for measured in told),
            models=(measured.model for measured in told),
        ),
        *trust.of_requests(by_class),
        *trust.of_deviation(computed.deviation),
        *trust.of_versions(computed.versions),
        *(trust.caution("caution", text) for text in dict.fromkeys((*twin.cautions, *computed.not_modelled))),
    ]

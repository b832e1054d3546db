"""The curl command that starts the same experiment or matrix as the form."""

import json
import shlex
from pathlib import Path

from django.conf import settings
from django.http import HttpRequest

from controlplane.evidence.experiments.matrix.body import MatrixIn
from controlplane.evidence.experiments.start.body import ExperimentIn, without_fraction
from router.contract.values.json_value import JsonObject

DEFAULTS_SHOWN = {"mode", "duration_s", "time_scale", "load_factor", "seeds", "pacing"}


def body_of(asked: ExperimentIn | MatrixIn) -> JsonObject:
    """Return the body for the API, without optional fields that have their defaults."""
    given = asked.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    whole = asked.model_dump(mode="json", by_alias=True)
    return {key: without_fraction(value) for key, value in whole.items() if key in given or key in DEFAULTS_SHOWN}


def curl_of(request: HttpRequest, asked: ExperimentIn | MatrixIn) -> str:
    """Return a command for a shell on this machine."""
    url = request.build_absolute_uri(f"/api/v1/{'matrices' if isinstance(asked, MatrixIn) else 'experiments'}")
    token = Path(settings.DATA_DIR) / "token"
    body = json.dumps(body_of(asked), ensure_ascii=False)
    return (
        f"curl -sS {shlex.quote(url)} \\\n"
        f'  -H "Authorization: Bearer $(cat {shlex.quote(str(token))})" \\\n'
        f"  -H 'Content-Type: application/json' \\\n"
        f"  -d {shlex.quote(body)}"
    )


def example_body() -> JsonObject:
    """Return an experiment that a new installation simulates in seconds."""
    return {
        "name": "Strategies on agentic sessions",
        "trace": "agentic-demo",
        "pool": "demo",
        "duration_s": 300,
        "mode": "twin",
        "arms": ["round_robin", "cache_aware", "priced"],
    }

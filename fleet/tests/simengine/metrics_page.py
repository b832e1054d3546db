"""Parse /metrics pages and streams for tests."""

import json
from collections.abc import Iterable

from prometheus_client.parser import text_string_to_metric_families


def parse_page(page: str) -> dict[str, float]:
    """Return samples by name, without the labels that all samples have: `name` or `name{label=value,…}`."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            own = {key: value for key, value in sample.labels.items() if key not in ("model_name", "engine")}
            labels = ",".join(f"{key}={value}" for key, value in sorted(own.items()))
            found[sample.name + (f"{{{labels}}}" if labels else "")] = sample.value
    return found


def events(lines: Iterable[str]) -> list[dict[str, object]]:
    """Return the JSON of each `data:` line except the last, which is [DONE] if the API sends it."""
    data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    return [json.loads(item) for item in data if item != "[DONE]"]

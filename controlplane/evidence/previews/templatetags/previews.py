"""Tags for previews, the only way in which the pages of policies use them."""

import re
from collections.abc import Mapping
from typing import Any

from django import template
from django.template.defaultfilters import linebreaksbr
from django.utils.safestring import mark_safe

from controlplane.evidence.experiments.results.output.effects import arm_title
from controlplane.evidence.previews import page, policy_job, selectors
from controlplane.traffic.policies.models import Policy, PolicyVersion

register = template.Library()
register.filter(arm_title)
LISTED = 20
TUNING = re.compile(r"(/policies/[a-z0-9-]+/tunings/\d+/)")


@register.inclusion_tag("previews/_panel.html", takes_context=True)
def preview_panel(context: dict[str, Any]) -> dict[str, Any]:
    """Return the panel in the editor. `preview_typed` and `preview_problems` are set after a refused start."""
    draft, typed = context["draft"], context.get("preview_typed", {})
    found = page.panel(context["request"], draft.policy, draft, selectors.latest_of(draft))
    problems = context.get("preview_problems", [])
    return {**found, "problems": problems, "choices": page.choices(draft.policy, found["preview"], typed)}


@register.inclusion_tag("previews/_line.html", takes_context=True)
def preview_line(context: dict[str, Any]) -> dict[str, Any]:
    """Return the line for the review page: the preview of the document about to be published, if there is one."""
    draft = context["draft"]
    found = page.panel(context["request"], draft.policy, draft, selectors.latest_of(draft))
    current = found["preview"] is not None and found["shown"].status.current
    return {**found, "preview": found["preview"] if current else None, "older": found["preview"]}


@register.simple_tag
def previews_by_version(policy: Policy) -> dict[int, page.VersionPreview]:
    """Return previews of published versions by number; see of_version."""
    return page.by_version(policy)


@register.simple_tag
def latest_jobs() -> list[policy_job.TwinJob]:
    """Return the newest previews, tunings and plans, for components/job_table.html."""
    return policy_job.latest(LISTED)


@register.filter
def of_version(previews: Mapping[int, page.VersionPreview], version: PolicyVersion) -> page.VersionPreview | None:
    return previews.get(version.number)


@register.filter
def linked(note: str) -> str:
    """Return the note of a draft, with a link to the tuning that it names."""
    return mark_safe(TUNING.sub(r'<a href="\1">\1</a>', linebreaksbr(note)))  # noqa: S308 - linebreaksbr escapes

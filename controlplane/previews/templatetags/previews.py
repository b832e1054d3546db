"""Previews on the policies' pages, which know nothing of previews but these tags."""

from collections.abc import Mapping
from typing import Any

from django import template

from controlplane.policies.models import Policy, PolicyVersion
from controlplane.previews import page, selectors

register = template.Library()


@register.inclusion_tag("previews/_panel.html", takes_context=True)
def preview_panel(context: dict[str, Any]) -> dict[str, Any]:
    """On the editor. `preview_typed` and `preview_problems` are there after a start that was refused."""
    draft, typed = context["draft"], context.get("preview_typed", {})
    found = page.panel(context["request"], draft.policy, draft, selectors.latest_of(draft))
    problems = context.get("preview_problems", [])
    return {**found, "problems": problems, "choices": page.choices(draft.policy, found["preview"], typed)}


@register.inclusion_tag("previews/_line.html", takes_context=True)
def preview_line(context: dict[str, Any]) -> dict[str, Any]:
    """On the review: the preview of exactly what is about to be published, or that there is none."""
    draft = context["draft"]
    found = page.panel(context["request"], draft.policy, draft, selectors.latest_of(draft))
    current = found["preview"] is not None and found["shown"].standing.current
    return {**found, "preview": found["preview"] if current else None, "older": found["preview"]}


@register.simple_tag
def foreseen(policy: Policy) -> dict[int, page.PreviewPanel]:
    """What was foreseen of the policy's published versions; see of_version."""
    return page.foreseen(policy)


@register.filter
def of_version(found: Mapping[int, page.PreviewPanel], version: PolicyVersion) -> page.PreviewPanel | None:
    return found.get(version.number)

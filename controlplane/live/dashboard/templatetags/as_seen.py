"""The template tag for the version from which a form was made."""

from django import template
from django.db.models import Model
from django.utils.html import format_html

from controlplane.common.as_seen import etag

register = template.Library()


@register.simple_tag
def seen(row: Model | str) -> str:
    """Return a hidden field with the row's ETag, which `as_seen.posted` reads."""
    value = row if isinstance(row, str) else etag(row)
    return format_html('<input type="hidden" name="etag" value="{}">', value)

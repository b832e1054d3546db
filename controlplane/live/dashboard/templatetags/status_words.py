"""The explanation next to a status."""

from django import template

from fleet.plan import state

register = template.Library()


@register.filter
def beside(reason: str, status: str) -> str:
    return state.beside(status, reason)

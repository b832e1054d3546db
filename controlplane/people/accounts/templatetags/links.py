"""Links in templates: {% if user|may_open:href %}."""

from django import template

from controlplane.people.accounts import decorators

register = template.Library()
register.filter("may_open", decorators.may_open)

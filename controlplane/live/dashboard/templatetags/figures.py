"""Numbers as text, as filters of templates."""

from django import template

from controlplane.common import figures

register = template.Library()
for shown in (
    *(figures.significant, figures.whole, figures.size, figures.limit, figures.setting),
    *(figures.percent, figures.ms, figures.seconds, figures.moment),
    *(figures.words, figures.dollars),
):
    register.filter(shown)

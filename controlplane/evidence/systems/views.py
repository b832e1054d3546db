"""The pages of systems: the list, and one system with its form, its answer and the published values."""

import json
from collections.abc import Container, Iterator, Mapping
from dataclasses import asdict, dataclass
from urllib.parse import urlencode

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from controlplane.evidence.systems.registry import SYSTEMS, ask, figures, plays
from controlplane.evidence.systems.system import System
from fleet.kinds.options.option import build, options_of
from fleet.kinds.options.option_field import OptionField, shown, typed_value
from router.contract.values.fields import Field
from router.contract.values.problem import InvalidInput, by_path


@require_GET
def systems(request: HttpRequest) -> HttpResponse:
    return render(request, "systems/list.html", {"systems": SYSTEMS.values()})


@require_GET
def system(request: HttpRequest, slug: str) -> HttpResponse:
    """Show the answer to the inputs in the URL; 422 with each problem beside its field."""
    chosen = _find(slug)
    given = _given(chosen, request.GET)
    errors: dict[str, str] = {}
    answer = None
    try:
        answer = ask(chosen, given)
    except InvalidInput as error:
        errors = by_path(error.problems)
    fields = {one.name: _field(one, given, request.GET, errors) for one in options_of(chosen.inputs)}
    context = {
        "system": chosen,
        "answer": answer,
        "charts": [asdict(chart) for chart in answer.charts] if answer else [],
        "wrong": [field for field in fields.values() if field.error],
        "groups": list(_groups(chosen, fields)),
        "presets": list(_presets(chosen, given, valid=not errors)),
        "plays": _plays(chosen, given) if answer else {},
    }
    return render(request, "systems/system.html", context, status=422 if errors else 200)


@require_GET
def published(request: HttpRequest, slug: str) -> HttpResponse:
    """Show the published values beside the model's; for htmx, only the panel, which the system's page loads after its
    answer."""
    chosen = _find(slug)
    template = "systems/_figures.html" if request.headers.get("HX-Request") else "systems/figures.html"
    return render(request, template, {"system": chosen, "figures": figures(slug)})


def _plays(chosen: System, given: Mapping[str, object]) -> dict[str, list[tuple[str, str]]]:
    """Return the experiments of these inputs by pool: title and body."""
    found: dict[str, list[tuple[str, str]]] = {}
    for play in plays(chosen, given):
        found.setdefault(play.pool, []).append((play.title, json.dumps(play.body)))
    return found


def _find(slug: str) -> System:
    if slug not in SYSTEMS:
        raise Http404(f"no system is named {slug}")
    return SYSTEMS[slug]


def _given(chosen: System, query: Mapping[str, str]) -> dict[str, object]:
    """Return the inputs in the query; an empty field takes its default."""
    values = {one.name: typed_value(one, query.get(one.name, "")) for one in options_of(chosen.inputs)}
    return {name: value for name, value in values.items() if value is not None}


def _field(one: Field, given: Container[str], query: Mapping[str, str], errors: Mapping[str, str]) -> OptionField:
    text = query[one.name] if one.name in given else shown(one.default)
    return OptionField(one, one.name, text, errors.get(one.name, ""), can_be_left_out=False)


@dataclass(frozen=True, slots=True)
class FieldGroup:
    title: str
    fields: list[OptionField]
    open: bool


def _groups(chosen: System, fields: Mapping[str, OptionField]) -> Iterator[FieldGroup]:
    """Yield the groups. The first one is open, and so are groups with an error or a value other than the default."""
    grouped = {name for group in chosen.groups for name in group.names}
    first = [field for name, field in fields.items() if name not in grouped]
    if first:
        yield FieldGroup("Main inputs", first, open=True)
    for group in chosen.groups:
        of_group = [fields[name] for name in group.names]
        changed = any(field.error or field.value != shown(field.option.default) for field in of_group)
        yield FieldGroup(group.title, of_group, changed)


@dataclass(frozen=True, slots=True)
class PresetLink:
    title: str
    query: str
    current: bool


def _presets(chosen: System, given: Mapping[str, object], *, valid: bool) -> Iterator[PresetLink]:
    inputs = build(chosen.inputs, given) if valid else None
    for title, values in chosen.presets.items():
        query = urlencode({name: shown(value) for name, value in values.items()})
        yield PresetLink(title, query, current=inputs == build(chosen.inputs, values))

"""Adopts a fleet that another system runs, in three steps: the location of its engines, the discovered engines, one
document.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import yaml
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_http_methods

from controlplane.pages.fleet_ops import actions, adoption
from controlplane.pages.fleet_ops.adoption import FoundFleet
from controlplane.pages.fleet_pages import pool_form
from controlplane.pages.fleet_pages.apply_views import TypedDocument, refused_page
from controlplane.pages.fleet_pages.pool_form import PoolEntry
from controlplane.people.accounts.decorators import RoleMissing
from controlplane.people.audit.services import actor_of
from controlplane.people.permissions import can_operate
from controlplane.traffic.policies.errors import RulesForbid
from controlplane.traffic.policies.selectors import published_names
from fleet import services
from fleet.kinds.external import EXTERNAL
from fleet.kinds.servers import CHOICES, SERVERS
from fleet.services import Applied
from fleet.spec import document as documents
from fleet.spec.document import UnreadableDocument
from fleet.spec.fleet_spec import OBSERVE, SERVE, InvalidFleet
from router.contract.values.problem import Problem

PLACES = {"urls": ("urls",), "dns": ("dns",), "file": ("file",), "kubernetes": ("namespace", "selector")}
_PLACE = ("urls", "dns", "file", "namespace", "selector", "port")
_OPTIONS = ("kv_endpoint", "tokenizer", "engine_key", "labels", "authorities", "more")
PLAIN = ("name", "model", "policy", *_PLACE, *_OPTIONS)
LONGEST = 20_000  # characters of one field


@dataclass(frozen=True, slots=True)
class Typed:
    """The values entered into the form."""

    fields: Mapping[str, str]
    way: str = "urls"
    mode: str = OBSERVE
    server: str = "auto"

    @classmethod
    def of(cls, request: HttpRequest) -> "Typed":
        given = {name: request.POST.get(name, "").replace("\x00", "").strip()[:LONGEST] for name in PLAIN}
        way, mode = request.POST.get("way", ""), request.POST.get("mode", "")
        server = request.POST.get("server", "")
        return cls(
            given,
            _way(given, way),
            mode if mode in (SERVE, OBSERVE) else OBSERVE,
            server if server in CHOICES else CHOICES[0],
        )

    def engine(self) -> dict[str, object]:
        """Return the options of the kind `external`. Raise InvalidFleet."""
        given = self.fields
        place: Mapping[str, object] = {
            "urls": given["urls"].split(),
            "dns": given["dns"],
            "file": given["file"],
            "kubernetes": {name: given[name] for name in ("namespace", "selector", "port") if given[name]},
        }
        typed: dict[str, object] = {"server": self.server if self.server != CHOICES[0] else ""}
        typed |= {name: given[name] for name in ("kv_endpoint", "tokenizer", "engine_key")}
        typed |= {"labels": {"role": given["labels"]} if given["labels"] else {}}
        typed |= {"tls": {"authorities": given["authorities"]} if given["authorities"] else {}}
        filled = {name: value for name, value in {self.way: place[self.way], **typed}.items() if value}
        return self._with_further(filled)

    def _with_further(self, filled: Mapping[str, object]) -> dict[str, object]:
        """Return the filled-in fields together with the additional options as entered; false and 0 count as values.
        Raise InvalidFleet.
        """
        engine, twice = dict(filled), []
        for name, value in self._further().items():
            known = filled.get(name)
            if isinstance(known, dict) and isinstance(value, dict) and not known.keys() & value.keys():
                engine[name] = known | value
            elif known is not None or name in PLACES:
                twice.append(name)
            else:
                engine[name] = value
        if twice:
            names = ", ".join(twice)
            raise InvalidFleet([Problem("more", names, f"must not name what a field above says: {names}")])
        return engine

    def _further(self) -> Mapping[str, object]:
        """Return the options that have no field on the form."""
        typed = self.fields["more"]
        try:
            found = documents.load(typed) if typed else {}
            why = "" if isinstance(found, dict) else "must be options of the kind external, one per line"
        except UnreadableDocument as error:
            why = str(error)
        if why:
            raise InvalidFleet([Problem("more", typed, why, "as in the fleet document: role: prefill")])
        return {str(name): value for name, value in found.items()}


def _way(given: Mapping[str, str], chosen: str) -> str:
    """Return the chosen way; if its field is empty, the only way whose field is filled in."""
    filled = [way for way, fields in PLACES.items() if any(given[name] for name in fields)]
    if len(filled) == 1 and chosen not in filled:
        return filled[0]
    return chosen if chosen in PLACES else "urls"


@require_http_methods(["GET", "POST"])
def adopt(request: HttpRequest) -> HttpResponse:
    if request.method == "GET":
        return _page(request, Typed({"name": _free_name(), "policy": "default", "port": "8000"}))
    if not can_operate(request.user):
        raise RoleMissing("operator")
    typed = Typed.of(request)
    try:
        engine = typed.engine()
        found = adoption.look(engine, typed.fields["name"], actor_of(request))
    except InvalidFleet as error:
        return _page(request, typed, problems=error.problems)
    model = typed.fields["model"] or (found.models[0] if found.models else "")
    if not model:
        return _page(request, typed, found=found)
    ranks = {"data_parallel_size": found.ranks} if found.ranks > 1 else {}
    return _planned(request, typed, found, _pool(typed, ranks | engine, model))


def _free_name() -> str:
    taken = {pool.name for pool in services.current_spec().pools}
    return next(name for name in ("adopted", *(f"adopted-{n}" for n in range(2, 1000))) if name not in taken)


def _pool(typed: Typed, engine: Mapping[str, object], model: str) -> PoolEntry:
    common: dict[str, object] = {"name": typed.fields["name"], "model": model}
    common["policy"] = typed.fields["policy"] or "default"
    urls = engine.get("urls")
    if isinstance(urls, list):
        common["replicas"] = len(urls)
    if typed.mode == OBSERVE:
        common["mode"] = OBSERVE
    return PoolEntry(EXTERNAL.name, common, engine)


def _planned(request: HttpRequest, typed: Typed, found: FoundFleet, pool: PoolEntry) -> HttpResponse:
    """Show the discovered engines, and the change that adopts them, ready to be applied."""
    whole = services.export()
    name = str(pool.common["name"])
    if any(each["name"] == name for each in whole["spec"]["pools"]):
        taken = Problem("name", name, "a pool has this name already")
        return _page(request, typed, found=found, problems=(taken,))
    whole["spec"]["pools"], index = pool_form.with_pool(whole["spec"]["pools"], pool, "")
    try:
        plan = actions.apply(whole, actor_of(request), dry_run=True)
    except InvalidFleet as error:
        return _page(request, typed, found=found, problems=_of_pool(error, index))
    except RulesForbid as error:
        return refused_page(request, TypedDocument(documents.dump(whole)), error)
    own = yaml.safe_dump(pool.as_dict(), sort_keys=False, allow_unicode=True, width=100)
    return _page(request, typed, found=found, plan=plan, document=documents.dump(whole), own=own)


def _of_pool(error: InvalidFleet, index: int) -> tuple[Problem, ...]:
    start = f"spec.pools[{index}]."
    return tuple(Problem(one.path.removeprefix(start), one.value, one.message, one.allowed) for one in error.problems)


def _page(
    request: HttpRequest,
    typed: Typed,
    *,
    found: FoundFleet | None = None,
    plan: Applied | None = None,
    problems: tuple[Problem, ...] = (),
    document: str = "",
    own: str = "",
) -> HttpResponse:
    context = {
        "typed": typed,
        "found": found,
        "plan": plan,
        "problems": problems,
        "document": document,
        "own": own,
        "digest": services.digest() if plan is not None else "",
        "policies": sorted(published_names()) or ["default"],
        "servers": [(CHOICES[0], "told by its answers"), *((one.name, one.title) for one in SERVERS.values())],
    }
    status = 422 if problems else 200
    return render(request, "fleet/adopt.html", context, status=status)

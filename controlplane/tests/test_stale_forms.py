"""Forms that post the version on which they are based: each is refused once someone else has changed the object that it
showed.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from html.parser import HTMLParser
from types import MappingProxyType
from typing import Any

import pytest
from django.conf import settings
from django.contrib.auth.models import Group, User
from django.contrib.messages import get_messages
from django.core.exceptions import ObjectDoesNotExist
from django.db.models import Model
from django.test import Client
from django.urls import URLResolver, get_resolver

from controlplane.common.as_seen import SEEN, etag
from controlplane.doors.api.tests import versioned_kinds as kinds
from controlplane.pages.shares.models import Share
from controlplane.people.accounts.models import ApiToken
from controlplane.people.accounts.services import user_etag
from controlplane.people.accounts.tests.test_closed_by_default import concrete
from controlplane.people.notices.models import Channel
from controlplane.traffic.deliveries.models import Freeze
from controlplane.traffic.keys import services as keys
from controlplane.traffic.keys.models import ApiKey, Budget
from controlplane.traffic.policies.models import Policy
from controlplane.traffic.use import budgets
from fleet.models import Instance, Node, Pool
from fleet.spec.fleet_spec import PoolSpec

ADA = kinds.ADA
ROWS = (ApiKey, ApiToken, Budget, Channel, Freeze, Share, User)
POOL, INSTANCE, NODE = "/fleet/pools/demo/", "/fleet/instances/demo-0/", "/fleet/nodes/gpu-1/"
POLICY = "/policies/default/"
# Forms with another kind of version: their own ETag, or the digest of the plan that they show.
OWN_VERSION = {
    "delivery-act", "draft", "draft-deliver", "draft-discard", "draft-publish", "draft-resolve", "fleet-apply",
    "models-alias", "models-discard", "models-draft", "models-publish", "models-rollback", "policy-rollback",
    "fleet/pool_form.html",
}  # fmt: skip
# They create something, or change nothing.
CREATE = {
    "channels", "delivery-try", "draft-open", "draft-preview", "experiment-repeat", "experiment-start", "freezes",
    "keys", "login", "models-open", "oidc-link", "playground", "policy-create", "shares", "test-channel", "tokens",
    "plans", "tunings", "users", "write-note", "experiments/new.html",
    "fleet/adopt.html", "traces/traces.html", "accounts/own_password.html", "accounts/sign_in_link.html", "base.html",
}  # fmt: skip
# These actions are possible in one state only, which Weir itself ends; they report if they are too late. A version
# would refuse to cancel a job that has just begun.
ONE_STATE = {
    "cancel-batch", "experiment-cancel", "fleet-calibration-cancel", "matrix-cancel", "matrix-resume",
    "preview-cancel", "tuning-draft", "components/job_state.html",
}  # fmt: skip
OF_JOBS = {"plan-cancel", "tuning-cancel", "tuning-resume"}  # components/job_state.html contains their addresses


NOTHING: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class StaleForm:
    name: str  # name of the route to which the form is sent
    page: str
    action: str
    make: Callable[[], Any]
    change: Callable[[], Any]  # what another user changes meanwhile
    version: Callable[[], str]
    typed: Mapping[str, str] = field(default_factory=dict)


Fields = Mapping[str, str]


def row_form(address: tuple[str, str, str], make: Callable[[], Any], row: type[Model], change: Mapping[str, Any],
             typed: Fields = NOTHING) -> StaleForm:  # fmt: skip
    """Return the form of a row that another user changes."""

    def changed() -> None:
        assert row._default_manager.update(**change) == 1

    return StaleForm(*address, make, changed, lambda: etag(row._default_manager.get()), typed)


def token() -> None:
    ApiToken.issue(user=User.objects.get(username="ada"), name="ci", scopes=["live:read"])


def share() -> None:
    kinds.create_share("wall", "", ADA)


def observed() -> None:
    kinds.pool(kind="external", replicas=1, engine={"urls": ["http://127.0.0.1:9"]}, mode="observe")


def serving() -> None:
    kinds.pool(kind="external", replicas=1, engine={"urls": ["http://127.0.0.1:9"]})


def vera() -> None:
    User.objects.create_user("vera").groups.add(Group.objects.get(name="viewer"))


def promoted() -> None:
    User.objects.get(username="vera").groups.set([Group.objects.get(name="operator")])


def of_vera(**typed: str) -> StaleForm:
    address = ("change-user", "/users/", "/users/{user}")
    return StaleForm(*address, vera, promoted, lambda: user_etag(User.objects.get(username="vera")), typed)


def pool_form(name: str, action: str, make: Callable[[], Any], **typed: str) -> StaleForm:
    return row_form((name, POOL, f"{POOL}{action}"), make, Pool, {"policy": "other"}, typed)


def channel_form(verb: str, typed: Fields = NOTHING) -> StaleForm:
    page = "/channels/{channel}"
    address = (f"{verb}-channel", page, f"{page}/{verb}") if verb else ("channel", page, page)
    return row_form(address, kinds.channel, Channel, {"name": "night"}, typed)


def node_form(name: str, verb: str, **typed: str) -> StaleForm:
    return row_form((name, NODE, f"{NODE}{verb}"), kinds.node, Node, {"cordoned": True}, typed)


BUDGET = {"key": "{apikey}", "limit": "9", "unit": "tokens", "per": "day", "warn_percent": "80"}
RULES = {"reason": kinds.WHY, "least_for_s": "15m"}
FORMS = (
    row_form(("freeze-remove", "/freezes/", "/freezes/{freeze}/remove"), kinds.freeze, Freeze, {"name": "weekends"}),
    row_form(("delivery-rules", POLICY, f"{POLICY}delivery-rules"), kinds.policy, Policy, {"least_share": 0.3}, RULES),
    row_form(("revoke-key", "/keys/", "/keys/{apikey}/revoke"), kinds.key, ApiKey, {"name": "find"}),
    StaleForm("require-keys", "/keys/", "/keys/required", kinds.required, lambda: keys.require_keys([], ADA),
              keys.required_etag, {"required": "*"}),
    channel_form("", {"name": "day", "events": "*"}), channel_form("enable", {"enabled": "0"}),
    channel_form("rotate"), channel_form("delete"),
    row_form(("revoke-token", "/tokens/", "/tokens/{apitoken}/revoke"), token, ApiToken, {"name": "deploy"}),
    pool_form("fleet-scale", "scale", kinds.pool, replicas="7"), pool_form("fleet-mode", "mode/serve", observed),
    pool_form("fleet-mode", "mode/observe", serving), pool_form("fleet-resume", "resume", kinds.halted),
    pool_form("fleet-rollback", "rollback", kinds.changed_pool),
    row_form(("fleet-act", INSTANCE, f"{INSTANCE}drain"), kinds.instance, Instance, {"desired": "stopped"}),
    node_form("fleet-node-act", "cordon"), node_form("fleet-node-forget", "forget", confirm="gpu-1"),
    row_form(("revoke-share", "/shares/", "/shares/{share}/revoke"), share, Share, {"name": "hall"}),
    row_form(("delete-budget", "/use/", "/use/budgets/{budget}/delete"), kinds.budget, Budget, {"limit": 50}),
    row_form(("add-budget", "/use/", "/use/budgets/add"), kinds.budget, Budget, {"limit": 50}, BUDGET),
    of_vera(role="admin"), of_vera(active="no"), of_vera(password="reset"),
)  # fmt: skip


class Forms(HTMLParser):
    """The hidden fields of each posting form of a page, by its action; buttons may name another action."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.by_action: dict[str, list[tuple[str, str]]] = {}
        self._fields: list[tuple[str, str]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag == "form":
            self._fields = []
            self.by_action[given.get("action", "")] = self._fields
        elif given.get("type") == "hidden":
            self._fields.append((given["name"], given.get("value", "")))
        elif "formaction" in given:
            self.by_action[given["formaction"]] = self._fields


def fields(client: Client, form: StaleForm) -> dict[str, list[str]]:
    page = client.get(form.page)
    assert page.status_code == 200, (form.page, page.content)
    posted: dict[str, list[str]] = {}
    for name, value in [*Forms(page.content.decode()).by_action[form.action], *form.typed.items()]:
        posted.setdefault(name, []).append(value)
    return posted


def said(answer: Any) -> list[str]:
    return [str(message) for message in get_messages(answer.wsgi_request)]


def named(form: StaleForm) -> str:
    return " ".join((form.name, form.action, *form.typed))


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Notify no worker."""
    monkeypatch.setattr("controlplane.celery.app.send_task", lambda *_, **__: None)


def made(form: StaleForm) -> StaleForm:
    """Return the form, addressed to a new row."""
    form.make()
    present = [row for row in ROWS if row._default_manager.exists()]
    newest = {row._meta.model_name: row._default_manager.latest("pk").pk for row in present}
    typed = {name: value.format(**newest) for name, value in form.typed.items()}
    return replace(form, page=form.page.format(**newest), action=form.action.format(**newest), typed=typed)


@pytest.mark.parametrize("form", FORMS, ids=named)
def test_an_overtaken_form_does_nothing_and_leads_back_to_its_page(ada_client: Client, form: StaleForm) -> None:
    form = made(form)
    posted = fields(ada_client, form)
    form.change()
    before = form.version()
    answer = ada_client.post(form.action, posted, headers={"referer": f"http://testserver{form.page}"})
    assert (answer.status_code, answer.headers["Location"]) == (302, f"http://testserver{form.page}"), answer.content
    assert re.fullmatch(r"Nothing was done: .+ was changed meanwhile: look at what is there now\.", said(answer)[0])
    assert form.version() == before
    assert "changed meanwhile" in ada_client.get(answer.headers["Location"]).content.decode()


@pytest.mark.parametrize("form", FORMS, ids=named)
def test_a_current_form_is_accepted(ada_client: Client, form: StaleForm) -> None:
    form = made(form)
    before = form.version()
    answer = ada_client.post(form.action, fields(ada_client, form))
    assert answer.status_code in (200, 302), answer.content
    try:
        assert form.version() != before, said(answer)
    except ObjectDoesNotExist:
        assert form.name.startswith("delete") or form.name == "fleet-node-forget"


def test_every_posting_form_carries_a_version_or_is_listed_as_needing_none() -> None:
    with_row: set[str] = set()
    without: set[str] = set()
    folder = settings.BASE_DIR / "templates"
    for template in folder.rglob("*.html"):
        for form in re.findall(r'<form[^>]*method="post".*?</form>', template.read_text(), re.DOTALL):
            name = re.search(r"""action="\{% url '([\w-]+)'""", form)
            (with_row if "{% seen " in form else without).add(name[1] if name else str(template.relative_to(folder)))
    assert with_row == {form.name for form in FORMS}
    assert without == OWN_VERSION | CREATE | ONE_STATE


def test_the_version_of_a_pool_covers_everything_in_its_document() -> None:
    assert PoolSpec.__dataclass_fields__.keys() - {"name"} <= {*SEEN["fleet.Pool"]}


def test_a_page_returned_for_a_form_links_to_its_own_address(ada_client: Client) -> None:
    channel = kinds.channel()["channel_id"]
    for address, page in ((f"/channels/{channel}/rotate", f"/channels/{channel}"), ("/use/budgets/add", "/use/")):
        answer = ada_client.get(address)
        assert (answer.status_code, answer.headers["Location"]) == (302, page)


def test_a_stale_form_from_another_site_leads_to_the_first_page(ada_client: Client) -> None:
    key = kinds.key()
    for referer in ({}, {"referer": "https://elsewhere.example/keys/"}):
        answer = ada_client.post(f"/keys/{key.pk}/revoke", {"etag": "stale"}, headers=referer)
        assert (answer.status_code, answer.headers["Location"]) == (302, "/")


def test_a_page_does_not_replace_a_budget_that_it_did_not_show(
    ada_client: Client,
) -> None:
    key = kinds.key()
    form = next(form for form in FORMS if form.name == "add-budget")
    form = replace(form, typed=BUDGET | {"key": str(key.pk)})
    posted = fields(ada_client, form)
    budgets.create_budget(key, "tokens", "day", budgets.BudgetTerms(limit=100), ADA)
    assert "was changed meanwhile" in said(ada_client.post(form.action, posted))[0]
    assert Budget.objects.get().limit == 100
    assert ada_client.post(form.action, fields(ada_client, form)).status_code == 302
    assert Budget.objects.get().limit == 9


# Addresses that accept POST although no template has a form for them
UNNAMED = {
    "", "healthz", "metrics", "shared-wall", "badge", "experiment-curl",  # they change nothing
    "logout", "sign-in-link", "password", "oidc-backchannel-logout",  # a person's own session and password
    "fleet-adopt", "fleet-calibrate", "fleet-calibrate-from-traffic", "traces",  # they create something
    "draft-autosave", "fleet-new-pool", "fleet-edit-pool",  # with their own version
    "v1/files", "v1/files/<str:name>", "v1/files/<str:name>/content",  # OpenAI's API: rows of the key that change once
    "v1/batches", "v1/batches/<str:name>", "v1/batches/<str:name>/cancel",
}  # fmt: skip


def test_every_address_that_accepts_a_post_has_a_known_form(ada_client: Client) -> None:
    named = {form.name for form in FORMS} | OWN_VERSION | CREATE | ONE_STATE | OF_JOBS
    allowed = {name: ada_client.options(concrete(route)).headers.get("Allow", "POST") for route, name in pages()}
    assert {name for name, methods in allowed.items() if "POST" in methods} - named == UNNAMED


def pages(resolver: URLResolver | None = None, before: str = "") -> Iterator[tuple[str, str]]:
    """Return route and name of each address outside REST."""
    for entry in (resolver or get_resolver()).url_patterns:
        route = f"{before}{entry.pattern}"
        if isinstance(entry, URLResolver):
            yield from () if route.startswith("api/") else pages(entry, route)
        else:
            yield route, entry.name or route

"""The playground's page. With scripts an answer comes piece by piece, without them as a whole page."""

import json
import secrets
from collections.abc import AsyncIterator, Mapping
from typing import Any

from asgiref.sync import async_to_sync
from django import forms
from django.http import HttpRequest, HttpResponse, HttpResponseBase, StreamingHttpResponse
from django.shortcuts import render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods

from controlplane.pages.playground import own_key
from controlplane.pages.playground.asking import UNREACHABLE, ChatQuestion, Said, answer
from controlplane.people.accounts.decorators import operator_required
from controlplane.people.audit.services import actor_of
from controlplane.traffic.aliases import selectors
from controlplane.traffic.batches.running import router_urls
from fleet.models import Pool
from fleet.spec.fleet_spec import SERVE

LINES = "application/x-ndjson"
LONGEST_PROMPT, LONGEST_HISTORY, MOST_TURNS = 50_000, 500_000, 40  # characters, characters, messages
MOST_TOKENS, FEW_TOKENS = 4096, 256
POOL = "pool:"  # prefix of a choice of a pool
ROLES = ("user", "assistant")
Choices = list[tuple[str, list[tuple[str, str]]]]


def pools() -> dict[str, str]:
    """Return name → model of the pools that serve."""
    rows = Pool.objects.filter(ephemeral_owner="", removed=False, mode=SERVE).exclude(model="").order_by("name")
    return dict(rows.values_list("name", "model"))


def askable(models: Mapping[str, str]) -> Choices:
    """Return names and models, as clients can ask for them, and pools."""
    names = sorted(selectors.live().aliases)
    groups = [
        ("Names", [(name, name) for name in names]),
        ("Models", [(model, model) for model in sorted({*models.values()} - {*names})]),
        ("Pools", [(f"{POOL}{name}", name) for name in models]),
    ]
    return [group for group in groups if group[1]]


class QuestionForm(forms.Form):
    model = forms.ChoiceField(label="Ask")
    max_tokens = forms.IntegerField(
        label="Tokens at most", min_value=1, max_value=MOST_TOKENS, help_text=f"Of the answer, 1 to {MOST_TOKENS:,}."
    )
    prompt = forms.CharField(
        label="Question", max_length=LONGEST_PROMPT, widget=forms.Textarea(attrs={"rows": 4, "autocomplete": "off"})
    )
    history = forms.CharField(
        label="Conversation", required=False, max_length=LONGEST_HISTORY, widget=forms.HiddenInput
    )
    session = forms.RegexField(r"^[0-9a-f]{16}$", label="Session", widget=forms.HiddenInput)

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.pools = pools()
        self.fields["model"].choices = askable(self.pools)  # type: ignore[attr-defined]  # it is a ChoiceField

    def clean_history(self) -> list[dict[str, str]]:
        try:
            turns = json.loads(self.cleaned_data["history"] or "[]")
        except (ValueError, RecursionError):
            turns = None
        if not isinstance(turns, list) or len(turns) > MOST_TURNS or not all(map(_is_turn, turns)):
            raise forms.ValidationError(f"at most {MOST_TURNS} messages of you and the model")
        return turns

    def question(self) -> ChatQuestion:
        given = self.cleaned_data
        asked = {"role": "user", "content": given["prompt"]}
        asked_for = given["model"]
        pool = asked_for.removeprefix(POOL) if asked_for.startswith(POOL) else ""
        return ChatQuestion(
            model=self.pools[pool] if pool else asked_for,
            pool=pool,
            messages=[*given["history"], asked],
            max_tokens=given["max_tokens"],
            session=f"playground-{given['session']}",
        )

    def failures(self) -> str:
        """Say the errors in one sentence, with the fields' labels."""
        found = [(self.fields[name].label or name, errors) for name, errors in self.errors.items()]
        return " ".join(f"{label}: {' '.join(map(str, errors))}" for label, errors in found)


def fresh(model: str = "") -> QuestionForm:
    return QuestionForm(initial={"model": model, "max_tokens": FEW_TOKENS, "session": secrets.token_hex(8)})


def _is_turn(turn: object) -> bool:
    if not isinstance(turn, Mapping) or {*turn} != {"role", "content"}:
        return False
    return turn["role"] in ROLES and isinstance(turn["content"], str)


@operator_required
@require_http_methods(["GET", "POST"])
@never_cache
def playground(request: HttpRequest) -> HttpResponseBase:
    if request.method == "GET":
        return _page(request, fresh(request.GET.get("model", "")[:200]))
    form = QuestionForm(request.POST)
    try:
        if not form.is_valid():
            return _refused(request, form, form.failures(), 400)
        urls = router_urls()
        if not urls:
            return _refused(request, form, UNREACHABLE, 503)
        secret = own_key.ready(request.user, actor_of(request))
    except own_key.MayNotAsk as error:
        return _refused(request, form, str(error), 403)
    said = answer(form.question(), secret, urls)
    if _is_scripted(request):
        return StreamingHttpResponse(_lines(said), content_type=LINES, headers={"x-accel-buffering": "no"})
    return _answered(request, form, async_to_sync(_all)(said))


async def _lines(said: AsyncIterator[Said]) -> AsyncIterator[bytes]:
    async for each in said:
        yield json.dumps(each).encode() + b"\n"


async def _all(said: AsyncIterator[Said]) -> list[Said]:
    return [each async for each in said]


def _is_scripted(request: HttpRequest) -> bool:
    return LINES in request.headers.get("accept", "")


def _refused(request: HttpRequest, form: QuestionForm, why: str, status: int) -> HttpResponse:
    if _is_scripted(request):
        return HttpResponse(json.dumps({"failed": why}) + "\n", content_type=LINES, status=status)
    return _page(request, form, failed=why, status=status)


def _answered(request: HttpRequest, form: QuestionForm, said: list[Said]) -> HttpResponse:
    """Show the page of a whole answer, ready for the next question."""
    text = _whole("".join(each.get("text", "") for each in said))
    failed = _whole("".join(each.get("failed", "") for each in said))
    turns = [{**turn, "content": _whole(turn["content"])} for turn in form.question().messages]
    if not failed:
        turns.append({"role": "assistant", "content": text})
    kept = form.cleaned_data | {"history": json.dumps([] if failed else turns), "prompt": ""}
    request_id = next((each["request"] for each in said if "request" in each), "")
    return _page(request, QuestionForm(initial=kept), turns=turns, failed=failed, request_id=request_id)


def _whole(text: str) -> str:
    """Return the text with its halves of characters joined: JSON may write one character as two, UTF-8 may not."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _page(request: HttpRequest, form: QuestionForm, *, status: int = 200, **more: Any) -> HttpResponse:
    context = {"form": form, "key": own_key.key_of(request.user) or own_key.first_key(), **more}
    return render(request, "playground/playground.html", context, status=status)

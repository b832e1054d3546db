"""The playground's page. With scripts, an answer appears as it arrives; without them, as a complete page."""

import json
from collections.abc import AsyncIterator
from typing import Any

from asgiref.sync import async_to_sync
from django.http import HttpRequest, HttpResponse, HttpResponseBase, StreamingHttpResponse
from django.shortcuts import render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods

from controlplane.pages.playground import own_key
from controlplane.pages.playground.asking import UNREACHABLE, Said, answer
from controlplane.pages.playground.form import QuestionForm, fresh
from controlplane.people.accounts.decorators import operator_required
from controlplane.people.audit.services import actor_of
from controlplane.traffic.batches.running import router_urls

LINES = "application/x-ndjson"


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
    """Show the page with a complete answer, ready for the next question."""
    text = _whole("".join(each.get("text", "") for each in said))
    failed = _whole("".join(each.get("failed", "") for each in said))
    turns = [{**turn, "content": _whole(turn["content"])} for turn in form.question().messages]
    if not failed:
        turns.append({"role": "assistant", "content": text})
    kept = form.cleaned_data | {"history": json.dumps([] if failed else turns), "prompt": ""}
    request_id = next((each["request"] for each in said if "request" in each), "")
    return _page(request, QuestionForm(initial=kept), turns=turns, failed=failed, request_id=request_id)


def _whole(text: str) -> str:
    """Return the text with surrogate pairs joined: JSON may write one character as two halves, UTF-8 may not."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _page(request: HttpRequest, form: QuestionForm, *, status: int = 200, **more: Any) -> HttpResponse:
    context = {"form": form, "key": own_key.key_of(request.user) or own_key.first_key(), **more}
    return render(request, "playground/playground.html", context, status=status)

"""Gives ninja's own errors (405 for a wrong method) the API's error shape."""

from collections.abc import Callable

from django.http import HttpRequest, HttpResponseBase

from controlplane.api.problems import CONTENT_TYPE, ApiProblem, response


class ApiProblems:
    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        answer = self.get_response(request)
        if not request.path.startswith("/api/") or answer.status_code < 400:
            return answer
        if answer.headers.get("Content-Type", "").startswith(CONTENT_TYPE):
            return answer
        if answer.status_code == 405:
            allowed = answer.headers.get("Allow", "")
            problem = ApiProblem(405, detail=f"allowed here: {allowed}", headers={"Allow": allowed})
            return response(request, problem)
        return answer

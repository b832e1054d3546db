"""The page that lists the catalogue of profiles."""

import html
import re

import pytest
from django.test import Client

from controlplane.evidence.profiles.views import LISTED
from controlplane.testing import ApiCaller
from fleet.engine.tables import catalogue

pytestmark = pytest.mark.django_db


def read(client: Client, **query: str) -> str:
    answer = client.get("/fleet/profiles/", query)
    assert answer.status_code == 200
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", answer.content.decode())).split())


def test_the_catalogue_can_be_searched_by_model_and_gpu_as_over_rest(vera_client: Client, ci: ApiCaller) -> None:
    assert f"The first {LISTED} of {len(catalogue())} profiles" in read(vera_client)
    listed = ci.get("/profiles?gpu=h200_sxm&model=llama-3.1-70b").json()
    page = read(vera_client, gpu="h200_sxm", model="LLAMA-3.1-70b")
    assert f"{len(listed)} of {len(catalogue())} profiles" in page
    first = listed[0]
    assert f"{first['name']} {first['model']} h200_sxm tp {first['tp']}" in page or f"{first['name']} h200_sxm" in page
    assert f"The first {LISTED} of" in read(vera_client, gpu="h999")
    assert "No profile matches" in read(vera_client, model="no-such-model")


def test_typed_markup_is_shown_as_text(vera_client: Client) -> None:
    assert b"<b>x" not in vera_client.get("/fleet/profiles/", {"model": "<b>x"}).content

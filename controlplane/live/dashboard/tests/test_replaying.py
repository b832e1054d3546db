"""Replaying the decision of a receipt: on the command line, on its page and over REST, by the original version and
by others."""

import json
import re
import time
from io import StringIO
from pathlib import Path

import pytest
import redis
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.test import Client

from controlplane.live.dashboard.tests.fake_fleet import FakeFleet
from controlplane.pages.receipts.replay import outcome_of
from controlplane.people.audit.services import Actor
from controlplane.testing import ApiCaller, api_caller
from controlplane.traffic.policies import services
from fleet.models import Pool
from router.contract.redis import redis_keys
from router.policy.schema import document as documents
from router.policy.types import Candidate
from router.tests.values import stored_receipt

NOW = time.time()
ADA = Actor("user", "ada")
WHY = "to compare it with another"


@pytest.fixture
def kept(db: None, live_redis: redis.Redis) -> FakeFleet:
    """`req-1`, for which default v1 kept a session on demo-1, and a policy `other` that only counts requests."""
    services.ensure_default_policy({"strategy.name": "adaptive_v1"})
    services.create_policy("other", documents.default("least_requests"), ADA, WHY)
    Pool.objects.create(name="demo", model="m", kind="sim", policy="other", replicas=3)
    fleet = FakeFleet(live_redis)
    fleet.version = 1
    fleet.write_receipt("req-1", NOW)
    return fleet


def explained(*arguments: str, expect: int = 0) -> str:
    """The output of the command, with errors at the end."""
    out, err = StringIO(), StringIO()
    if expect:
        with pytest.raises(SystemExit) as ended:
            call_command("explain", *arguments, stdout=out, stderr=err)
        assert ended.value.code == expect
    else:
        call_command("explain", *arguments, stdout=out, stderr=err)
    return out.getvalue() + err.getvalue()


def test_the_command_prints_both_decisions_side_by_side(kept: FakeFleet) -> None:
    told = explained("req-1")
    assert re.search(r"recorded +now, by default v1\n", told)
    assert "\nreasons, recorded\n  the session is bound to demo-1\n\nreasons, now, by default v1\n" in told
    assert re.search(r"\n\ncandidate .*\ndemo-1 +8,192 +4,153 +– +– +chosen +chosen\n", told)
    assert told.rstrip().endswith("the same decision")


@pytest.mark.parametrize("by", [("--policy", "other"), ("--policy", "other", "--version", "1"), ("--pool", "demo")])
def test_the_command_decides_by_another_policy(kept: FakeFleet, by: tuple[str, ...]) -> None:
    told = explained("req-1", *by)
    assert "now, by other v1" in told
    assert "fewest requests: 1" in told
    assert "differs: instance, strategy, rule, reasons, cached tokens, new tokens, candidates" in told


def test_the_command_decides_by_a_document_in_a_file(kept: FakeFleet, tmp_path: Path) -> None:
    file = tmp_path / "policy.json"
    file.write_text(json.dumps({"strategy": {"name": "lpwl"}}))
    assert f"now, by {file}" in explained("req-1", "--file", str(file))


def test_the_command_decides_by_a_document_on_standard_input(kept: FakeFleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", StringIO('{"strategy": {"name": "least_requests"}}'))
    told = explained("req-1", "--file", "-")
    assert "now, by standard input" in told
    assert re.search(r"\ndemo-0 +1,024 +11,321 +– +1 +considered +chosen\n", told)


@pytest.mark.parametrize(("by", "shown"), [("", "<details>"), ("other:1", "<details open>")])
def test_a_replay_with_the_same_choice_is_folded(kept: FakeFleet, vera_client: Client, by: str, shown: str) -> None:
    page = vera_client.get("/requests/req-1/", {"by": by}).content.decode()
    assert f"{shown}<summary>Both decisions</summary>" in page


def test_a_replay_describes_each_candidate_as_the_receipt_does() -> None:
    found = [Candidate("a", 0, 9, 1.0), Candidate("b", 0, 9, None), Candidate("c", 0, 9, None, refused="full")]
    assert [outcome_of(one, "a", scored=True) for one in found] == ["chosen", "passed over", "full"]
    assert outcome_of(found[1], "a", scored=False) == "considered"


def test_a_different_decision_of_the_same_version_is_reported_as_drift(kept: FakeFleet) -> None:
    kept.write_receipt("req-2", NOW, instance="demo-0", rule="least_work")
    told = explained("req-2", expect=3)
    assert "differs: instance, rule" in told
    assert "default v1 decided this request and now decides it differently" in told
    explained("req-2", "--policy", "default", "--version", "1", expect=3)
    explained("req-2", "--policy", "other")


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["gone"], "there is no receipt of 'gone'; receipts are kept for 60 minutes"),
        (["req-1", "--policy", "nope"], "there is no policy nope"),
        (["req-1", "--version", "9"], "policy default has no version 9"),
        (["req-1", "--pool", "nope"], "there is no pool nope"),
        (["req-1", "--file", "/nowhere"], "/nowhere: No such file"),
        (["req-old"], "an older router wrote it"),
        (["req-early"], "was refused before a decision"),
        (["req-exp"], "an experiment's arm decided"),
    ],
)
def test_the_command_says_what_is_wrong_and_exits_with_1(kept: FakeFleet, arguments: list[str], why: str) -> None:
    kept.write_receipt("req-early", NOW, rule=None)
    kept.write_receipt("req-exp", NOW, pool="exp-1-a")
    kept.client.set(redis_keys.receipt_key("req-old"), stored_receipt(kept.receipt("req-old", NOW)))
    with pytest.raises(CommandError, match=why) as refused:
        call_command("explain", *arguments)
    assert refused.value.returncode == 1


@pytest.mark.parametrize(
    ("text", "why"),
    [("{", "is not JSON"), ('{"strategy": {"name": "x"}}', "strategy.name"), ("[]", "must be a JSON object")],
)
def test_a_file_that_is_not_a_policy_is_refused(kept: FakeFleet, tmp_path: Path, text: str, why: str) -> None:
    file = tmp_path / "policy.json"
    file.write_text(text)
    with pytest.raises(CommandError, match=why):
        call_command("explain", "req-1", "--file", str(file))


def test_the_command_says_when_redis_is_unreachable(db: None, redis_away: None) -> None:
    with pytest.raises(CommandError, match="Redis does not answer"):
        call_command("explain", "req-1")


def test_the_page_decides_again_by_the_same_version(vera_client: Client, kept: FakeFleet) -> None:
    page = vera_client.get("/requests/req-1/").content.decode()
    assert "Replay" in page
    assert "default v1 makes the same choice" in page
    assert '<option value="other:1">other v1</option>' in page


def test_the_page_decides_by_another_version_without_scripts_and_with(vera_client: Client, kept: FakeFleet) -> None:
    url = "/requests/req-1/?by=other:1"
    page = vera_client.get(url).content.decode()
    part = vera_client.get(url, headers={"HX-Request": "true", "HX-Target": "replay"}).content.decode()
    assert "<html" in page
    assert part.startswith("<section")
    for text in (page, part):
        assert "other v1 would have sent it to demo-0" in text
        assert "fewest requests: 1" in text
        assert '<option value="other:1" selected>' in text


def test_the_page_warns_of_drift(vera_client: Client, kept: FakeFleet) -> None:
    kept.write_receipt("req-2", NOW, instance="demo-0")
    page = vera_client.get("/requests/req-2/").content.decode()
    assert "default v1 decided this request and now decides it differently" in page


@pytest.mark.parametrize(
    ("by", "why"),
    [("nope:1", "there is no policy nope"), ("other:9", "has no version 9"), ("other", "cannot be replayed")],
)
def test_the_page_says_why_a_decision_cannot_be_replayed(
    vera_client: Client, kept: FakeFleet, by: str, why: str
) -> None:
    answer = vera_client.get(f"/requests/req-1/?by={by}")
    assert answer.status_code == 200
    assert why in answer.content.decode()


def test_a_receipt_of_an_older_router_still_has_its_page(vera_client: Client, kept: FakeFleet) -> None:
    old = {**kept.receipt("req-old", NOW), "candidates": [{"id": "demo-0"}]}
    kept.client.set(redis_keys.receipt_key("req-old"), stored_receipt(old))
    page = vera_client.get("/requests/req-old/").content.decode()
    assert "No candidates were recorded" in page
    assert "replay-title" not in page


def test_the_api_returns_both_decisions(ci: ApiCaller, kept: FakeFleet) -> None:
    same = ci.get("/receipts/req-1/explain").json()
    assert (same["policy"], same["version"], same["own_version"]) == ("default", 1, True)
    assert (same["same"], same["drift"], same["changed"]) == (True, False, [])
    assert same["recorded"] == same["recomputed"]
    other = ci.get("/receipts/req-1/explain?policy=other").json()
    assert (other["own_version"], other["same"], other["drift"]) == (False, False, False)
    assert (other["recorded"]["instance"], other["recomputed"]["instance"]) == ("demo-1", "demo-0")
    assert [one["score"] for one in other["recomputed"]["candidates"]] == [1, 3, None]
    assert other["recomputed"]["candidates"][2]["refused"] == "draining"


def test_the_api_reports_drift(ci: ApiCaller, kept: FakeFleet) -> None:
    kept.write_receipt("req-2", NOW, **{"class": "heavy"})
    told = ci.get("/receipts/req-2/explain").json()
    assert (told["drift"], told["changed"]) == (True, ["class"])


@pytest.mark.parametrize(
    ("path", "status", "why"),
    [
        ("gone/explain", 404, "no receipt is kept under 'gone'"),
        ("req-1/explain?policy=nope", 404, "there is no policy nope"),
        ("req-1/explain?version=9", 404, "policy default has no version 9"),
        ("req-old/explain", 422, "an older router wrote it"),
    ],
)
def test_the_api_says_what_is_wrong(ci: ApiCaller, kept: FakeFleet, path: str, status: int, why: str) -> None:
    kept.client.set(redis_keys.receipt_key("req-old"), stored_receipt(kept.receipt("req-old", NOW)))
    answer = ci.get(f"/receipts/{path}")
    assert answer.status_code == status
    assert why in answer.json()["detail"]


@pytest.mark.parametrize("scope", ["receipts:read", "policy:read"])
def test_the_api_requires_both_scopes(otto: User, kept: FakeFleet, scope: str) -> None:
    assert api_caller(otto, scope).get("/receipts/req-1/explain").status_code == 403

"""The pages of tunings, and the same over REST."""

import pytest

from controlplane.policies.models import Draft
from controlplane.tuning import display, running, search
from controlplane.tuning.models import Tuning
from controlplane.tuning.tests.conftest import started

LIST = "/policies/default/tunings/"
REST = "/policies/default/tunings"


def text(answer):
    return answer.content.decode()


def test_a_tuning_is_started_from_its_page(policy, sent, otto_client, vera_client):
    assert "Not tuned yet" in text(vera_client.get(LIST))
    assert "Tuning requires the role operator" in text(vera_client.get(LIST))
    form = {"trace": "agentic-demo", "trials": "2", "workers": "1", "max_requests": "100", "seed": "3"}
    assert vera_client.post(LIST, form).status_code == 403
    answer = otto_client.post(LIST, {**form, "parameters": ["load.request_tokens"]})
    made = Tuning.objects.get()
    assert answer.headers["Location"] == f"{LIST}{made.pk}/"
    assert (made.total, made.seed, [each["path"] for each in made.space]) == (2, 3, ["load.request_tokens"])
    shown = text(otto_client.get(f"{LIST}{made.pk}/state"))
    assert "every 1s" in shown
    assert "0 of 2 trials" in shown
    assert otto_client.post(f"{LIST}{made.pk}/cancel").status_code == 302
    assert "cancelled by otto" in text(otto_client.get(f"{LIST}{made.pk}/"))


def test_wrong_input_is_named_and_kept(policy, otto_client):
    answer = otto_client.post(LIST, {"trials": "x", "workers": "99", "parameters": ["load.request_tokens"]})
    shown = text(answer)
    assert answer.status_code == 422
    assert "No tuning was started" in shown
    assert "a whole number from 1 to 500" in shown
    assert 'value="99"' in shown
    assert 'value="load.request_tokens" checked' in shown
    assert otto_client.get(f"{LIST}99/").status_code == 404


def test_without_optuna_the_page_says_how_to_install_it(policy, otto_client, monkeypatch):
    monkeypatch.setattr(search, "is_installed", lambda: False)
    shown = text(otto_client.get(LIST))
    assert "requirements-tune.txt" in shown
    assert "Start tuning" not in shown


def test_the_result_has_a_picture_winners_and_what_was_not_tested(done, otto_client, vera_client):
    shown = text(otto_client.get(f"{LIST}{done.pk}/"))
    for part in ("<svg", "tuning-point--winner", "tuning-point--live", "Not tested", "95 % interval", "Open as draft"):
        assert part in shown
    assert "Open as draft" not in text(vera_client.get(f"{LIST}{done.pk}/"))
    trial = done.result["winners"][0]["trial"]
    assert otto_client.post(f"{LIST}{done.pk}/draft", {"trial": "x"}).headers["Location"] == f"{LIST}{done.pk}/"
    assert not Draft.objects.exists()
    assert otto_client.post(f"{LIST}{done.pk}/draft", {"trial": trial}).headers["Location"].endswith("/draft")
    assert f'<a href="{LIST}{done.pk}/"' in text(otto_client.get("/policies/default/draft"))
    assert "has a draft open" in text(otto_client.get(f"{LIST}{done.pk}/"))


def test_points_without_a_time_are_left_out_of_the_picture():
    whole = {"number": 1, "kind": "trial", "ttft_p90_ms": 10.0, "tpot_p90_ms": 1.0, "goodput": 0.5}
    pic = display.picture([whole, {**whole, "number": 2, "ttft_p90_ms": None}], None)
    assert (pic["left_out"], len(pic["points"])) == (1, 1)
    assert display.picture([], None) is None


def test_over_rest_it_is_started_read_cancelled_and_drafted(policy, here, sent, ci):
    body = {"trace": "agentic-demo", "trials": 2, "workers": 1, "max_requests": 100,
            "parameters": [{"path": "load.request_tokens", "high": 9_000}]}  # fmt: skip
    answer = ci.post(REST, body)
    assert answer.status_code == 202, answer.content
    path = answer.headers["Location"].removeprefix("/api/v1")
    assert ci.post(f"{path}/draft", {"trial": 1}).status_code == 422
    running.run_tuning(answer.json()["id"])
    found = ci.get(path).json()
    assert (found["status"], len(found["trials"]), found["parameters"][0]["high"]) == ("done", 2, 9_000)
    assert ci.get(REST).json()[0]["id"] == found["id"]
    assert ci.get(f"{REST}?before={found['id']}").json() == []
    assert ci.post(f"{path}/cancel").status_code == 409
    drafted = ci.post(f"{path}/draft", {"trial": found["result"]["winners"][0]["trial"]})
    assert (drafted.status_code, drafted.json()["revision"]) == (201, 2)
    assert "Not tested" in ci.get("/policies/default/draft").json()["note"]
    again = ci.post(f"{path}/draft", {"trial": found["result"]["winners"][0]["trial"]})
    assert again.status_code == 409
    assert "ci (otto) has a draft of default open" in again.json()["detail"]


@pytest.mark.parametrize("body", [{"trials": 501}, {"parameters": [{"path": "nonsense"}]}, {"pool": "gone"}])
def test_over_rest_bad_input_is_refused(policy, ci, body):
    answer = ci.post(REST, body)
    assert answer.status_code == 422
    assert answer.json()["errors"]


def test_over_rest_a_queued_one_is_cancelled_and_an_unknown_one_not_found(policy, sent, ci):
    made = started(policy)
    assert ci.post(f"{REST}/{made.pk}/cancel").json()["status"] == "cancelled"
    assert ci.get(f"{REST}/{made.pk + 1}").status_code == 404

"""The pages of tunings, and their REST operations."""

import pytest

from controlplane.evidence.experiments.results.output.scatter import AxisRange
from controlplane.evidence.tuning import display, running, search
from controlplane.evidence.tuning.models import Tuning
from controlplane.evidence.tuning.tests.conftest import started
from controlplane.traffic.policies.models import Draft
from router.policy.schema import document as documents

LIST = "/policies/default/tunings/"
REST = "/policies/default/tunings"


def text(answer):
    return answer.content.decode()


def test_a_tuning_is_started_from_its_page(policy, sent, otto_client, vera_client):
    assert "Not tuned yet" in text(vera_client.get(LIST))
    assert "Tuning requires the role operator" in text(vera_client.get(LIST))
    form = {
        "trace": "agentic-demo",
        "trials": "2",
        "workers": "",
        "max_requests": "100",
        "seed": "3",
        "held_out": "0.4",
    }
    assert vera_client.post(LIST, form).status_code == 403
    bounds = {"low:load.request_tokens": "1,000", "high:load.request_tokens": "9000", "step:load.request_tokens": "500"}
    answer = otto_client.post(
        LIST, {**form, **bounds, "parameters": ["load.request_tokens"], "objectives": ["goodput"]}
    )
    made = Tuning.objects.get()
    (space,) = made.space
    assert (space["low"], space["high"], space["step"], space["log"]) == (1_000, 9_000, 500, False)
    assert (made.held_out, made.objectives, made.time_limit_s) == (0.4, ["goodput"], None)
    assert answer.headers["Location"] == f"{LIST}{made.pk}/"
    assert (made.total, made.seed, [each["path"] for each in made.space]) == (2, 3, ["load.request_tokens"])
    shown = text(otto_client.get(f"{LIST}{made.pk}/state"))
    assert "every 1s" in shown
    assert "0 of 2 trials" in shown
    for page in (LIST, "/experiments/", "/experiments/table"):
        listed = text(otto_client.get(page))
        assert f'<a href="{LIST}{made.pk}/">Tuning {made.pk} of default</a>' in listed
        assert "pool demo, against v1" in listed
    assert "of default" not in text(otto_client.get("/experiments/table?q=none"))
    assert otto_client.post(f"{LIST}{made.pk}/cancel").status_code == 302
    assert "cancelled by otto" in text(otto_client.get(f"{LIST}{made.pk}/"))
    assert "Resume tuning" not in text(vera_client.get(f"{LIST}{made.pk}/"))
    assert vera_client.post(f"{LIST}{made.pk}/resume").status_code == 403
    assert otto_client.post(f"{LIST}{made.pk}/resume").headers["Location"] == f"{LIST}{made.pk}/"
    assert "Resume tuning" not in text(otto_client.get(f"{LIST}{made.pk}/"))


LIVE = documents.values_of(documents.default())["classes.heavy_new_tokens"]


def test_the_form_suggests_bounds_around_the_live_values(policy, otto_client):
    shown = text(otto_client.get(LIST))
    for part in (
        f'name="low:classes.heavy_new_tokens" inputmode="decimal" autocomplete="off" size="9" value="{LIVE // 4:,}"',
        'value="classes.heavy_new_tokens" checked',
        'value="flow.heavy">',
        'name="objectives" value="tpot" checked',
        "a whole number from 256 to 1,000,000 tokens",
    ):
        assert part in shown


HEAVY = "classes.heavy_new_tokens"
CHOSEN = {"parameters": [HEAVY], "objectives": ["ttft"], "trace": "agentic-demo"}


@pytest.mark.parametrize(
    ("typed", "messages"),
    [
        (
            {"trials": "x", "workers": "99", "time_limit_s": "9", "held_out": "0.95", "tpot_limit_ms": "0"},
            [
                "a whole number from 1 to 500",
                "from 1 to 8",
                "from 10 to 86,400",
                "from 0.1 to 0.8",
                "a number from 0.001",
            ],
        ),
        ({"objectives": [], "parameters": []}, ["Choose at least one objective", "Choose at least one parameter"]),
        ({f"low:{HEAVY}": "many", f"step:{HEAVY}": "nan"}, ["Must be a number"] * 2),
        ({f"low:{HEAVY}": "1"}, ["1 is below 256"]),
        ({f"low:{HEAVY}": "900", f"high:{HEAVY}": "800"}, ["Is not below the upper bound; allowed: below 800"]),
        ({f"step:{HEAVY}": "8", f"scale:{HEAVY}": "log"}, ["Cannot be combined with a logarithmic scale"]),
        ({"parameters": ["nonsense"]}, ["Cannot be tuned"]),
        ({"held_out": "0.1", "max_requests": "100"}, ["at least 20 of each"]),
        ({"trace": "gone"}, ["gone"]),
    ],
)
def test_invalid_input_is_reported_beside_its_field_and_kept(policy, otto_client, typed, messages):
    answer = otto_client.post(LIST, {**CHOSEN, **typed})
    shown = text(answer)
    assert answer.status_code == 422
    assert "No tuning was started" in shown
    for message in messages:
        assert message in shown
    marked = shown.count('aria-invalid="true"')
    assert marked >= len(messages) or not {"trials", "step", HEAVY} & {name.split(":")[0] for name in typed}
    for name, value in typed.items():
        if isinstance(value, str) and ":" in name and "scale" not in name:
            assert f'name="{name}" inputmode="decimal" autocomplete="off" size="9" value="{value}"' in shown


def test_an_unknown_tuning_is_not_found(policy, otto_client):
    assert otto_client.get(f"{LIST}99/").status_code == 404
    for action in ("cancel", "resume", "draft"):
        assert otto_client.post(f"{LIST}99/{action}", {"trial": 1}).status_code == 404


@pytest.mark.parametrize("installed", [False, True])
def test_without_optuna_a_tuning_can_be_started_and_the_page_says_how_to_search_better(
    policy, otto_client, monkeypatch, installed
):
    monkeypatch.setattr(search, "is_installed", lambda: installed)
    shown = text(otto_client.get(LIST))
    assert (".venv/bin/pip install --require-hashes -r requirements-tune.txt" in shown) is not installed
    assert "Start tuning" in shown


def test_the_result_has_a_picture_winners_and_what_was_not_tested(done, otto_client, vera_client):
    shown = text(otto_client.get(f"{LIST}{done.pk}/"))
    for part in (
        "<svg",
        "tuning-point--winner",
        "tuning-point--live",
        "Not tested",
        "95 % interval",
        " points",
        "Open as draft",
        f'<span class="diff-old">{LIVE:,} tokens</span> →',
        "Heavy threshold: 8,000 to 60,000",
        "Objectives: TTFT p90, TPOT p90, Goodput. Held out: 30 %",
    ):
        assert part in shown
    assert "Open as draft" not in text(vera_client.get(f"{LIST}{done.pk}/"))
    trial = done.result["winners"][0]["trial"]
    assert otto_client.post(f"{LIST}{done.pk}/draft", {"trial": "x"}).headers["Location"] == f"{LIST}{done.pk}/"
    assert not Draft.objects.exists()
    assert otto_client.post(f"{LIST}{done.pk}/draft", {"trial": trial}).headers["Location"].endswith("/draft")
    assert f'<a href="{LIST}{done.pk}/"' in text(otto_client.get("/policies/default/draft"))
    assert "has a draft open" in text(otto_client.get(f"{LIST}{done.pk}/"))


@pytest.mark.parametrize(("verdict", "said"), [("better", False), ("worse", True), ("not distinguishable", True)])
def test_a_result_without_a_better_winner_says_that_no_change_is_supported(done, otto_client, verdict, said):
    for winner in done.result["winners"]:
        for row in winner["effect"]:
            row["verdict"] = verdict
    done.save()
    assert ("No winner is better than v1" in text(otto_client.get(f"{LIST}{done.pk}/"))) is said


def test_points_without_a_time_are_left_out_of_the_picture():
    goals = {"ttft_p90_ms": 10.0, "tpot_p90_ms": 1.0, "goodput": 0.5}
    trials = [display.ShownTrial(i, "trial", {}, goals | {"ttft_p90_ms": ms}) for i, ms in ((1, 10.0), (2, None))]
    pic = display.picture(trials, None)
    assert (pic.left_out, len(pic.points)) == (1, 1)
    assert display.picture([], None) is None


def test_labels_of_overlapping_points_do_not_cover_each_other():
    goals = {"ttft_p90_ms": 10.0, "tpot_p90_ms": 1.0, "goodput": 0.5}
    winners = [display.ShownTrial(number, "winner", {}, goals) for number in (35, 36, 40)]
    points = display.picture(winners, goals).points
    boxes = [(point.x + point.dx, point.y + point.dy, 8 * len(point.label)) for point in points]
    assert [point.label for point in points] == ["35", "36", "40", "live"]
    for one, (left, base, width) in enumerate(boxes):
        for other_left, other_base, other_width in boxes[one + 1 :]:
            beside = left + width <= other_left or other_left + other_width <= left
            assert beside or abs(base - other_base) >= 14


@pytest.mark.parametrize(
    ("values", "texts"),
    [([802, 1537], "800 1,000 1,200 1,400"), ([10.6, 19.7], "12 14 16 18 20"), ([5, 5], "4.8 4.9 5.0 5.1 5.2")],
)
def test_the_axes_of_the_picture_have_round_numbers(values, texts):
    ticks = AxisRange.of(values).ticks()
    assert " ".join(text for _, text in ticks) == texts
    assert all(0 <= share <= 1 for share, _ in ticks)


def test_a_tuning_is_started_read_cancelled_and_drafted_over_rest(policy, here, sent, ci):
    body = {"trace": "agentic-demo", "trials": 2, "workers": 1, "max_requests": 100, "objectives": ["ttft"]}
    body["parameters"] = [{"path": "load.request_tokens", "high": 9_000, "log": True}]
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


@pytest.mark.parametrize(
    "body",
    [
        *({"trials": 501}, {"pool": "gone"}, {"objectives": []}, {"held_out": 0.9}, {"time_limit_s": 1}),
        *({"parameters": [each]} for each in ({"path": "nonsense"}, {"path": "load.request_tokens", "step": 0})),
    ],
)
def test_invalid_input_is_refused_over_rest(policy, ci, body):
    answer = ci.post(REST, body)
    assert answer.status_code == 422
    assert answer.json()["errors"]


def test_over_rest_a_queued_tuning_is_cancelled_and_resumed_and_an_unknown_one_not_found(policy, sent, ci):
    made = started(policy)
    assert ci.post(f"{REST}/{made.pk}/cancel").json()["status"] == "cancelled"
    resumed = ci.post(f"{REST}/{made.pk}/resume")
    assert (resumed.status_code, resumed.json()["status"]) == (202, "queued")
    again = ci.post(f"{REST}/{made.pk}/resume")
    assert (again.status_code, again.json()["detail"]) == (
        409,
        f"tuning {made.pk} is queued: only failed and cancelled tunings can continue",
    )
    assert ci.get(f"{REST}/{made.pk + 1}").status_code == 404

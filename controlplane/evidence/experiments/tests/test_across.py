"""Arms of different experiments in one comparison."""

import pytest

from controlplane.common import computing
from controlplane.evidence.experiments import running
from controlplane.evidence.experiments.matrix.presets import PEERS
from controlplane.evidence.experiments.models import Experiment
from controlplane.evidence.experiments.tests.conftest import body

pytestmark = pytest.mark.django_db


@pytest.fixture
def performed(ci, demo_pool, sent, data_dir):
    def perform(**changes) -> int:
        number = ci.post("/experiments", body(mode="twin", time_scale=1, duration_s=20, **changes)).json()["id"]
        running.run_experiment(number)
        return number

    return perform


@pytest.mark.slow
def test_arms_that_played_the_same_requests_can_be_compared_and_the_link_keeps_the_choice(performed, ci, vera_client):
    one, two = performed(arms=["round_robin", "lpwl"]), performed(arms=["lpwl fleet.replicas=4"])
    arms = f"arm={one}:lpwl&arm={two}:lpwl replicas=4"
    results = ci.get(f"/experiments/compare?{arms}").json()
    assert [arm["name"] for arm in results["arms"]] == [f"{one}: lpwl", f"{two}: lpwl replicas=4"]
    alone = ci.get(f"/experiments/{one}/results").json()["arms"][1]["classes"]["all"]
    assert results["arms"][0]["classes"]["all"]["ttft_p90_ms"] == alone["ttft_p90_ms"]
    assert results["differences"][0]["n"] > 0
    assert [row["path"] for row in results["differing"]["fleet"]] == ["replicas"]
    page = vera_client.get(f"/experiments/compare?{arms}&class=warm").content.decode()
    assert f"{two}: Least prefill work left, replicas=4" in page
    assert f'value="{one}:round_robin"' in page
    assert f"arm={one}%3Alpwl&amp;arm={two}%3Alpwl+replicas%3D4&amp;class=all" in page
    assert f"compare?arm={one}:round_robin" in vera_client.get(f"/experiments/{one}/").content.decode()


@pytest.mark.slow
def test_a_comparison_is_resampled_outside_the_web_process_once_for_page_and_api(
    performed, ci, vera_client, monkeypatch
):
    beside = []

    def run(function, given):
        beside.append(function.__name__)
        return function(*given)

    monkeypatch.setattr(computing, "_beside", run)
    computing.REMEMBERING.clear()
    one, two = performed(arms=["round_robin", "lpwl"]), performed(arms=["lpwl fleet.replicas=4"])
    arms = f"arm={one}:lpwl&arm={two}:lpwl replicas=4"
    assert vera_client.get(f"/experiments/compare?{arms}").status_code == 200
    assert ci.get(f"/experiments/compare?{arms}").status_code == 200
    assert beside == ["compared"]


@pytest.mark.slow
def test_arms_that_cannot_be_compared_are_refused(performed, ci, vera_client):
    one, other = performed(arms=["lpwl"]), performed(arms=["lpwl"], load_factor=2)
    Experiment.objects.filter(pk=performed(arms=["lpwl"])).update(status="running")
    for arms, message in (
        (f"{one}:lpwl {other}:lpwl", "played another load than the first"),
        (f"{one}:lpwl {one}:nothing", "no such experiment with such an arm"),
        (f"{one}:lpwl x:lpwl", "no such experiment with such an arm"),
        (f"{one}:lpwl {other + 1}:lpwl", "is running"),
        (f"{one}:lpwl", "2 to 6"),
        (f"{one}:lpwl {one}:lpwl", "2 to 6"),
    ):
        query = "&".join(f"arm={arm}" for arm in arms.split())
        answer = ci.get(f"/experiments/compare?{query}")
        assert answer.status_code == 422
        assert message in answer.content.decode()
        assert message in vera_client.get(f"/experiments/compare?{query}").content.decode()
    page = vera_client.get("/experiments/compare").content.decode()
    assert "Open an experiment that has ended and follow Compare with other experiments." in page
    assert "notice--warning" not in page


def test_the_page_of_a_cell_with_many_arms_has_no_command(ci, demo_pool, sent, data_dir, vera_client):
    asked = {"name": "many", "traces": ["agentic-demo"], "pool": "demo", "duration_s": 5, "arms": PEERS}
    cell = ci.post("/matrices", asked).json()["cells"][0]["id"]
    page = vera_client.get(f"/experiments/{cell}/").content.decode()
    assert "mooncake_conductor" in page
    assert "Start with curl" not in page

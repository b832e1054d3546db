"""Starting an experiment in the twin from the page."""

import pytest

from controlplane.evidence.experiments.models import Experiment

pytestmark = pytest.mark.django_db


def test_the_form_starts_the_same_experiment_and_keeps_what_was_chosen(otto_client, demo_pool, sent):
    form = {"name": "A vs B", "trace": "agentic-demo", "pool": "demo", "mode": "twin", "seeds": "1"}
    form |= {"arm": ["round_robin"], "duration_s": "20"}
    refused = otto_client.post("/experiments/new", {**form, "time_scale": "10"})
    page = refused.content.decode()
    assert refused.status_code == 422
    assert '<a href="#f-time_scale">Time scale</a>: the twin runs in virtual time' in page
    assert '<option value="twin" selected>' in page
    assert otto_client.post("/experiments/new", form).status_code == 302  # a field that is left out gets its default
    assert Experiment.objects.get().mode == "twin"


def test_a_number_that_was_not_sent_is_shown_as_its_default(otto_client, demo_pool):
    form = {"name": "", "trace": "agentic-demo", "pool": "demo", "mode": "twin", "seeds": "1", "arm": ["lpwl"]}
    page = otto_client.post("/experiments/new", form).content.decode()
    assert 'name="time_scale" value="1"' in page


def test_the_command_of_the_form_contains_the_mode(otto_client, demo_pool):
    form = {"name": "A", "trace": "agentic-demo", "pool": "demo", "mode": "twin", "seeds": "1", "arm": ["lpwl"]}
    page = otto_client.post("/experiments/curl", form).content.decode()
    assert "&quot;mode&quot;: &quot;twin&quot;" in page

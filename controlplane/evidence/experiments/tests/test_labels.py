"""The form's labels for fields that the API names by path."""

import html

import pytest

from controlplane.evidence.experiments.start.form import LABELS, labelled

CHOICES = ("round_robin", "lpwl")
RAW = {
    "seeds": [1, "x"],
    "arms": ["round_robin", "lpwl", "default@99", {"strategy": "adaptive_v1"}],
    "expect": [{"metric": "speed"}],
}


@pytest.mark.parametrize(
    ("path", "field", "label"),
    [
        ("time_scale", "time_scale", "Time scale"),
        ("seeds", "seeds", "Seeds"),
        ("seeds.1", "seeds", "Seeds, x"),
        ("seeds.0", "seeds", "Seeds, number 1"),
        ("arms", "arms", "Arms"),
        ("arms.1", "arms", "Arms, lpwl"),
        ("arms.2", "more_arms", "More arms, line 1"),
        ("arms.3.name", "more_arms", "More arms, line 2, name"),
        ("arms.3.overrides.classes.heavy_new_tokens", "more_arms", "More arms, line 2, Heavy threshold"),
        ("arms.3.overrides.classes.speed", "more_arms", "More arms, line 2, classes.speed"),
        ("expect.0.metric", "expect", "Expectations, number 1, metric"),
        ("colour", "colour", "colour"),
    ],
)
def test_a_problem_is_reported_with_the_label_of_its_field(path, field, label):
    (found,) = labelled({path: "no"}, RAW, CHOICES)
    assert (found.field, found.label) == (field, label)


def test_beside_its_field_a_problem_does_not_repeat_the_label():
    whole, part = labelled({"pool": "gone", "arms.2": "no version 99"}, RAW, CHOICES)
    assert (whole.beside, part.beside) == ("gone", "line 1: no version 99")


@pytest.mark.django_db
def test_an_invalid_arm_typed_as_an_object_is_reported_at_its_line_and_kept(otto_client, demo_pool):
    typed = '{"strategy": "adaptive_v1", "overrides": {"classes.heavy_new_tokens": 10}}'
    form = {"name": "A", "trace": "agentic-demo", "pool": "demo", "seeds": "1", "arm": ["lpwl"], "more_arms": typed}
    answer = otto_client.post("/experiments/new", form)
    page = html.unescape(answer.content.decode())
    assert answer.status_code == 422
    assert '<a href="#f-more_arms">More arms, line 1, Heavy threshold</a>: ' in page
    assert typed in page
    assert "arms.1" not in page


@pytest.mark.django_db
def test_every_label_is_on_the_form(otto_client, demo_pool):
    page = otto_client.get("/experiments/new").content.decode()
    assert [label for field, label in LABELS.items() if f'id="f-{field}"' not in page or label not in page] == []

"""Every strategy can be chosen, looked up and edited in the browser."""

import html

import pytest

from controlplane.traffic.policies import selectors, services
from controlplane.traffic.policies.models import Draft
from controlplane.traffic.policies.tests.conftest import ADA, OTTO, WHY
from router.policy.schema import document as documents
from router.policy.strategies import STRATEGIES

DRAFT = "/policies/mine/draft"


@pytest.fixture
def mine(db, redis_away):
    def make(strategy):
        services.create_policy("mine", documents.default(strategy), ADA, WHY)
        return services.open_draft(selectors.policy("mine"), OTTO)

    return make


def text_of(answer) -> str:
    assert answer.status_code == 200
    return html.unescape(answer.content.decode())


def test_the_list_describes_each_strategy_with_its_formula(redis_away, policy, vera_client):
    content = text_of(vera_client.get("/policies/"))
    for strategy in STRATEGIES.values():
        assert f'<td data-label="What it does">{strategy.summary}</td>' in content
        assert f"<code>{strategy.formula}</code>" in content


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_editor_shows_the_strategy_its_formula_and_all_its_fields(strategy, mine, otto_client):
    mine(strategy)
    content = text_of(otto_client.get(DRAFT))
    assert STRATEGIES[strategy].summary in content
    assert f"<code>{STRATEGIES[strategy].formula}</code>" in content
    for parameter in documents.parameters_of(strategy):
        assert f'name="{parameter.path}"' in content
        assert parameter.help in content


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_form_of_every_strategy_saves_what_it_shows(strategy, mine, otto_client):
    mine(strategy)
    context = otto_client.get(DRAFT).context
    fields = {field.path: field.text for part in context["sections"] for field in part.fields}
    form = {"etag": context["etag"], "loaded": context["loaded"], **fields, "failure.retries": "7"}
    assert otto_client.post(DRAFT, {**form, "action": "save"}).status_code == 302
    expected = documents.default(strategy)
    expected["failure"]["retries"] = 7
    assert Draft.objects.get().document == expected


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_page_of_a_policy_shows_its_rule(strategy, mine, vera_client):
    mine(strategy)
    content = text_of(vera_client.get("/policies/mine/"))
    assert STRATEGIES[strategy].title in content
    assert f"<code>{STRATEGIES[strategy].formula}</code>" in content

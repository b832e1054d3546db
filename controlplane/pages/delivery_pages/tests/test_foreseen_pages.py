"""The prediction of what a plan can show, on its form before the proposal, and on the page of its delivery."""

import pytest

from controlplane.traffic.deliveries.foresight.tests.receipts import WARM_IN_A_MINUTE, fill
from controlplane.traffic.deliveries.models import Delivery
from controlplane.traffic.deliveries.tests.conftest import CANARY, FULL, OTTO, WHY, proposed
from controlplane.traffic.policies import selectors as policies
from controlplane.traffic.policies.tests.conftest import edit

pytestmark = pytest.mark.usefixtures("pool")
URL = "/policies/default/draft/deliver"


@pytest.fixture
def draft(policy):
    edit(policy, OTTO, heavy_new_tokens=9_000)
    return policies.open_draft(policy)


@pytest.fixture
def sent(otto_client, draft):
    context = otto_client.get(URL).context
    return {**context["values"], "etag": context["etag"], "reason": WHY, "foresee": "1"}


def test_the_form_says_what_the_offered_plan_can_show(otto_client, draft, live_redis):
    assert "no recent traffic of demo" in otto_client.get(URL).content.decode()
    fill(live_redis)
    page = otto_client.get(URL).content.decode()
    assert "from 500 requests within 9 min" in page
    assert "Step 2 · warm" not in page  # it has enough
    assert "heavy: 0 % of the requests, and below 1 % it is not judged." in page


def test_a_changed_plan_is_checked_before_it_is_proposed(otto_client, sent, live_redis):
    fill(live_redis)
    response = otto_client.post(URL, {**sent, "shadow.for": "", "canary1.for": "1 min"})
    page = response.content.decode()
    assert (response.status_code, WARM_IN_A_MINUTE.capitalize() in page) == (200, True)
    assert 'value="1 min"' in page
    assert not Delivery.objects.exists()


def test_an_invalid_plan_has_no_prediction(otto_client, sent):
    response = otto_client.post(URL, {**sent, "canary1.share": "70"})
    assert (response.status_code, response.context["foreseen"]) == (422, None)
    assert "canary1.share" in response.context["errors"]


def test_the_page_of_an_open_delivery_keeps_the_prediction(otto_client, policy, live_redis):
    fill(live_redis)
    made = proposed(policy, CANARY, FULL)
    page = otto_client.get(f"/deliveries/{made.pk}/").content.decode()
    assert WARM_IN_A_MINUTE.capitalize() in page
    assert "from 500 requests within 9 min" in page
    for etag, is_in in ((made.etag, False), ("older", True)):  # a change sends it again, as the delivery may have ended
        refreshed = otto_client.get(f"/deliveries/{made.pk}/live?etag={etag}").content.decode()
        assert ("What this plan can show" in refreshed) is is_in

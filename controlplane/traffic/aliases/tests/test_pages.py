"""The page Models: what it shows, and how a name gets from its form to the routers and back."""

import re

import pytest

from controlplane.people.audit.services import Actor
from controlplane.traffic.aliases import selectors, services
from controlplane.traffic.aliases.tests.conftest import BOT, OTTO, SPLIT, WHY, document
from fleet.models import AdapterHome, Instance, Pool
from router.contract.redis import redis_keys
from router.tests.values import loaded

pytestmark = pytest.mark.django_db


def text(answer):
    return " ".join(answer.content.decode().split())


def test_the_page_shows_names_with_their_shares_fallbacks_and_adapters_with_their_homes(pools, vera_client):
    services.publish_document(document(chat=SPLIT, bot=BOT), OTTO, WHY)
    for ordinal, (state, said) in enumerate((("loaded", ""), ("failed", "No adapter found for /lora/bot-v1"))):
        row = Instance.objects.create(pool=pools["loras"], name=f"loras-{ordinal}", ordinal=ordinal)
        AdapterHome.objects.create(
            instance=row, epoch=row.epoch, name="bot@v1", source="/lora/bot-v1", state=state, text=said
        )
    page = text(vera_client.get("/models/"))
    assert "90 %" in page
    assert 'value="10.00" aria-label="small: 10 % of the sessions"' in page
    assert "1 of 1 homes" in page
    assert "No adapter found for /lora/bot-v1" in page
    assert WHY in page
    assert "disabled" in page  # a viewer can change nothing


def test_an_empty_page_says_which_models_clients_can_request(db, vera_client):
    assert "Each pool answers to its model." in text(vera_client.get("/models/"))


def test_the_page_lists_the_models_and_pools_that_clients_can_request(pools, vera_client):
    assert [(one.model, one.pool, one.ready) for one in vera_client.get("/models/").context["served"]] == sorted(
        (pool.model, name, 0) for name, pool in pools.items()
    )
    pools["small"].instances.create(name="small-0", ordinal=0, state="ready")
    page = vera_client.get("/models/")
    assert "1 of 2 ready" in text(page)
    assert {one.pool: one.asked for one in page.context["served"]} == {
        "big": "llama",
        "loras": "loras",
        "small": "llama-8b",
    }
    assert "llama, a name that goes to big" in text(page)


def test_a_pool_with_the_name_of_a_model_gets_the_requests_for_it(pools, vera_client):
    Pool.objects.create(name="llama", model="other", kind="sim", policy="default", replicas=1)
    Pool.objects.create(name="llama-8b", model="", kind="sim-store", replicas=1)
    page = vera_client.get("/models/")
    assert {one.pool: (one.asked, one.first) for one in page.context["served"]} == {
        "big": ("big", "llama"),
        "loras": ("loras", "llama"),
        "small": ("llama-8b", "small"),
        "llama": ("other", "llama"),
    }


def test_a_name_gets_from_its_form_through_the_review_to_the_routers_and_back(pools, otto_client, live_redis):
    assert otto_client.post("/models/open").url == "/models/draft"
    typed = {
        "name": "chat", "was": "", "etag": selectors.open_draft().etag, "target_pool_0": "big", "target_weight_0": "90",
        "target_pool_1": "small", "target_weight_1": "10", "fallback_pool_0": "loras",
        "on_saturated": "1", "adapter_replicas": "1",
    }  # fmt: skip
    assert otto_client.post("/models/draft/name", typed).url == "/models/draft"
    draft = selectors.open_draft()
    assert draft.document["models"]["chat"] == {**SPLIT, "on": ["saturated"]}
    review = text(otto_client.get("/models/draft/review"))
    assert "big 90 %, small 10 %; falls back to loras on saturated" in review
    answer = otto_client.post("/models/draft/publish", {"reason": WHY, "etag": draft.etag})
    assert answer.url == "/models/versions/1/"
    again = otto_client.post("/models/draft/publish", {"reason": WHY, "etag": draft.etag})
    assert again.url == "/models/versions/1/"
    assert loaded(live_redis.get(redis_keys.MODELS))["version"] == 1
    services.publish_document(document(), OTTO, WHY)
    asked = otto_client.get("/models/rollback?to=1")
    assert ">Roll back to v1</button>" in text(asked)
    assert otto_client.post("/models/rollback", {"to": "1", "reason": WHY, "etag": "v2"}).url == "/models/versions/3/"


def test_without_an_earlier_document_the_page_says_that_there_is_nothing_to_roll_back_to(pools, otto_client):
    for published in (False, True):
        if published:
            services.publish_document(document(chat=SPLIT), OTTO, WHY)
        page = otto_client.get("/models/rollback")
        assert page.status_code == 200
        assert "There is nothing to roll back to" in text(page)
        assert '<form method="post" action="/models/rollback"' not in text(page)
    assert otto_client.post("/models/rollback", {"reason": WHY}).status_code == 404


def test_a_form_that_cannot_be_saved_keeps_its_text_and_shows_the_reason_at_the_field(pools, otto_client):
    otto_client.post("/models/open")
    typed = {"name": "/x", "target_pool_0": "big", "target_weight_0": "many", "target_pool_1": "small"}
    answer = otto_client.post("/models/draft/name", typed)
    page = text(answer)
    assert answer.status_code == 422
    assert "Not the name of a model" in page
    assert "Not a whole number within its limits; allowed: 0 to 10,000" in page
    assert 'value="many"' in page
    more = text(otto_client.post("/models/draft/name", {**typed, "more": "1"}))
    assert 'name="target_pool_4"' in more


def test_the_draft_can_be_edited_as_a_document_and_names_can_be_removed(pools, otto_client):
    otto_client.post("/models/open")
    yaml = "schema: 1\nmodels:\n  a: {pool: big}\n  b: {pool: small}\n"
    otto_client.post("/models/draft", {"document": yaml})
    otto_client.post("/models/draft", {"remove": "a"})
    assert selectors.open_draft().document["models"].keys() == {"b"}
    broken = otto_client.post("/models/draft", {"document": "models: {a: {pool: [}}"})
    assert broken.status_code == 422
    assert "Not saved." in text(broken)
    stale = otto_client.post("/models/draft", {"remove": "b", "etag": "d1.1"})
    assert stale.status_code == 412
    otto_client.post("/models/draft/discard", {"etag": selectors.open_draft().etag})
    assert selectors.open_draft() is None


def test_an_overtaken_document_names_the_other_person_and_the_effect_of_saving(pools, otto_client):
    services.open_draft(OTTO)
    seen = selectors.open_draft().etag
    services.save_draft(document(a={"pool": "big"}), Actor("user", "bob"))
    mine = {"document": "schema: 1\nmodels:\n  b: {pool: small}\n", "etag": seen}
    answer = otto_client.post("/models/draft", mine)
    assert answer.status_code == 412
    said = re.sub(r"\s*<[^>]+>\s*", " ", text(answer))
    assert "The draft was saved by bob meanwhile" in said
    assert re.search(r"would change +what bob saved.* a +big +– +b +– +small", said, re.DOTALL)
    assert "b: {pool: small}" in said
    assert selectors.open_draft().document["models"].keys() == {"a"}
    otto_client.post("/models/draft", {**mine, "etag": selectors.open_draft().etag})
    assert selectors.open_draft().document["models"].keys() == {"b"}


@pytest.mark.parametrize(
    ("path", "typed", "kept"),
    [
        ("/models/draft", {"document": "schema: 1\nmodels:\n  b: {pool: small}\n"}, "b: {pool: small}"),
        ("/models/draft/name", {"name": "b", "target_pool_0": "small", "target_weight_0": "1"}, 'value="b"'),
    ],
)
def test_text_typed_into_an_ended_draft_is_kept_in_a_new_one(pools, otto_client, path, typed, kept):
    services.open_draft(OTTO)
    seen = selectors.open_draft().etag
    services.save_draft(document(a={"pool": "big"}), Actor("user", "bob"))
    services.publish(Actor("user", "bob"), WHY)
    answer = otto_client.post(path, {**typed, "etag": seen})
    assert answer.status_code == 412
    assert "The draft was published or discarded meanwhile; v1 by bob is live" in text(answer)
    assert kept in text(answer)
    otto_client.post(path, {**typed, "etag": re.search(r'name="etag" value="([^"]+)"', text(answer))[1]})
    assert "b" in selectors.open_draft().document["models"]


def test_the_review_lists_what_prevents_publication(pools, otto_client):
    services.open_draft(OTTO)
    services.save_draft(document(chat={"pool": "gone"}), OTTO)
    page = text(otto_client.get("/models/draft/review"))
    assert "models.chat.pool" in page
    assert "there is no such pool" in page
    assert "Publish v1</button>" not in page
    refused = otto_client.post("/models/draft/publish", {"reason": WHY})
    assert refused.status_code == 422


def test_a_viewer_can_change_nothing(pools, vera_client):
    for path in ("/models/open", "/models/draft", "/models/draft/publish", "/models/rollback?to=1"):
        assert vera_client.post(path).status_code == 403

"""A pool as a form: what is typed becomes the document, errors are beside their fields, nothing is applied unseen."""

from typing import Any

import pytest
from django.test import Client

from controlplane.pages.fleet_pages.pool_form import PoolEntry, errors_of, fields, typed_pool, with_pool
from controlplane.traffic.policies.services import ensure_default_policy
from fleet import services
from fleet.kinds.options.option_field import shown
from fleet.models import Pool
from router.contract.values.problem import Problem

TYPED = {
    "name": "chat",
    "model": "m",
    "replicas": "2",
    "kind": "vllm",
    "engine.device": "cpu",
    "engine.max_model_len": "4096",
    "engine.gpu_memory_utilization": "0.5",
    "engine.prefix_caching": "false",
    "engine.arguments": "--enforce-eager\r\n\r\n--seed\r\n7\r\n",
    "engine.environment": "HF_TOKEN=hf-1234\nA=b=c",
}


def test_the_typed_form_becomes_the_pool_of_a_document() -> None:
    pool = typed_pool(TYPED, "vllm")
    assert (pool.common, pool.kind) == ({"name": "chat", "model": "m", "replicas": 2}, "vllm")
    assert pool.engine == {
        "device": "cpu",
        "max_model_len": 4096,
        "gpu_memory_utilization": 0.5,
        "prefix_caching": False,
        "arguments": ["--enforce-eager", "--seed", "7"],
        "environment": {"HF_TOKEN": "hf-1234", "A": "b=c"},
    }


def test_the_label_of_an_option_also_contains_its_key_if_its_title_does_not() -> None:
    own = {field.option.name: field.option.named_apart for field in fields(PoolEntry("vllm", {}, {}), {})[1]}
    assert own["max_model_len"]
    assert not own["tensor_parallel"]


def test_unreadable_text_stays_as_typed_for_the_check_to_refuse() -> None:
    pool = typed_pool({"replicas": "two", "engine.max_model_len": "4k", "engine.environment": "A"}, "vllm")
    assert (pool.common["replicas"], pool.engine["max_model_len"], pool.engine["environment"]) == ("two", "4k", "A")


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, ""), (True, "true"), (3, "3"), (["a", "b"], "a\nb"), (("a",), "a"), ({"A": "b"}, "A=b"), ("x", "x")],
)
def test_a_value_is_shown_as_it_is_typed(value: Any, text: str) -> None:
    assert shown(value) == text


def test_a_pool_is_unchanged_by_the_form() -> None:
    pool = typed_pool(TYPED, "vllm")
    common, own = fields(pool, {})
    assert typed_pool({field.name: field.value for field in (*common, *own)}, "vllm") == pool


def test_another_pool_is_replaced_in_its_place_and_keeps_sections_that_the_form_does_not_show() -> None:
    before = [{"name": "a"}, {"name": "b", "kind": "sim", "update": {"surge": 1}}]
    pools, place = with_pool(before, PoolEntry("vllm", {"name": "b"}, {}), "b")
    assert place == 1
    assert pools[1] == {"name": "b", "kind": "vllm", "engine": {}, "update": {"surge": 1}}
    assert with_pool(before, PoolEntry("vllm", {"name": "c"}, {}), "")[1] == 2


def test_problems_are_assigned_to_their_fields() -> None:
    problems = [Problem("spec.pools[1].engine.seed", 1, "no"), Problem("spec.pools[0].name", "", "bad")]
    assert errors_of(problems, 1) == ({"engine.seed": "no"}, [problems[1]])


def document(**pool: Any) -> dict[str, Any]:
    given = {"name": "p", "model": "m", "kind": "sim", "replicas": 0, **pool}
    return {"apiVersion": "weir/v1", "kind": "Fleet", "metadata": {"name": "t"}, "spec": {"pools": [given]}}


@pytest.fixture
def applied(db: None) -> None:
    ensure_default_policy()
    services.apply_fleet(document(engine={"seed": 7}), "ada")


def test_the_form_shows_the_options_of_the_chosen_kind(applied: None, operator: Client) -> None:
    page = operator.get("/fleet/new-pool", {"kind": "mooncake-client"}).content.decode()
    assert 'name="engine.disk_gib"' in page
    assert "0.01 to 1,048,576 GiB" in page
    assert "Default: 131,072." in operator.get("/fleet/new-pool", {"kind": "sim"}).content.decode()
    part = operator.post(
        "/fleet/new-pool", {"step": "kind", "kind": "trtllm", "name": "x"}, headers={"hx-request": "true"}
    )
    assert "<html" not in part.content.decode()
    assert 'name="engine.dwdp_size"' in part.content.decode()
    assert 'value="x"' in part.content.decode()


def test_a_list_in_kv_is_one_choice_of_the_form_and_a_row_of_the_pool(applied: None, operator: Client) -> None:
    engine = {"kv": ["offload-dram", "nixl"]}
    services.apply_fleet(document(name="v", kind="vllm", engine=engine), "ada")
    page = operator.get("/fleet/pools/v/edit").content.decode()
    assert '<option value="nixl+offload-dram" selected>nixl + offload-dram</option>' in page
    typed = {"step": "plan", "name": "v", "model": "m", "kind": "vllm", "replicas": "0"}
    answer = operator.post("/fleet/pools/v/edit", typed | {"engine.kv": "nixl+offload-dram"})
    assert answer.status_code == 200
    answer = operator.post("/fleet/pools/v/edit", typed | {"engine.kv": "nixl+mooncake-p2p"})
    assert (answer.status_code, "at most one of each" in answer.content.decode()) == (422, True)


def test_options_are_checked_against_the_model_of_the_pool(applied: None, operator: Client) -> None:
    group = {"dwdp_size": "4", "prefill_instances": "4", "chunked_prefill": "false", "dwdp_experts": "60"}
    asked = {"step": "plan", "name": "r1", "model": "deepseek-ai/DeepSeek-R1", "kind": "trtllm", "replicas": "5"}
    answer = operator.post("/fleet/new-pool", asked | {f"engine.{name}": value for name, value in group.items()})
    assert answer.status_code == 422
    assert "60 held leave 196 of 256 experts, which 3 GPUs cannot provide" in answer.content.decode()
    typed = {f"engine.{name}": value for name, value in group.items() if name != "dwdp_experts"}
    answer = operator.post("/fleet/new-pool", asked | typed | {"replicas": "3"})
    assert answer.status_code == 422
    assert "serves only whole; allowed: 0 or 4" in answer.content.decode()


def test_an_error_is_shown_beside_its_field_and_nothing_is_lost(applied: None, operator: Client) -> None:
    answer = operator.post(
        "/fleet/pools/p/edit",
        {"step": "plan", "name": "p", "model": "m", "kind": "sim", "replicas": "-1", "engine.seed": "x"},
    )
    page = answer.content.decode()
    assert answer.status_code == 422
    assert "-1 is below 0; allowed: a whole number from 0 to 1,024 instances" in page
    assert 'name="engine.seed" value="x"' in page
    assert Pool.objects.get().engine == {"seed": 7}


def test_changes_and_command_lines_are_shown_before_they_are_applied(applied: None, operator: Client) -> None:
    page = operator.post(
        "/fleet/new-pool", {"step": "plan", **TYPED, "engine.python": "/no/such/python"}
    ).content.decode()
    assert "Start of chat" in page
    assert "HF_TOKEN=&#x27;(hidden)&#x27;" in page
    assert "hf-1234" not in page.split("<textarea")[0]
    assert "/no/such/python could not be run" in page
    assert not Pool.objects.filter(name="chat").exists()
    assert page.count('<form method="post" action="/fleet/apply"') == 2, "the form's own address applies nothing"


def test_editing_begins_with_the_declared_pool(applied: None, operator: Client) -> None:
    page = operator.get("/fleet/pools/p/edit").content.decode()
    assert 'name="engine.seed" value="7"' in page
    assert operator.get("/fleet/pools/q/edit").status_code == 404


def test_a_viewer_can_read_and_not_change(applied: None, viewer: Client) -> None:
    assert "requires the role operator" in viewer.get("/fleet/new-pool").content.decode()
    assert viewer.post("/fleet/new-pool", {"step": "plan", **TYPED}).status_code == 403


def test_the_pool_page_shows_how_the_next_start_runs_with_secrets_hidden(applied: None, viewer: Client) -> None:
    environment = {"HF_TOKEN": "hf-1234", "A": "b"}
    services.apply_fleet(
        document(kind="vllm", engine={"environment": environment, "arguments": ["--seed", "7"]}), "ada"
    )
    page = viewer.get("/fleet/pools/p/").content.decode()
    assert "--served-model-name m" in page
    assert "HF_TOKEN=&#x27;(hidden)&#x27;" in page
    assert "hf-1234" not in page


def test_options_with_a_default_are_folded_unless_they_are_given_or_wrong(otto_client: Client) -> None:
    def folded(page: str) -> str:
        return page.partition('id="more-options"')[2]

    page = otto_client.get("/fleet/new-pool?kind=vllm").content.decode()
    assert "options, all with defaults" in page
    assert "f-engine.model" not in folded(page)
    assert "f-engine.environment" in folded(page)
    typed = {"name": "chat", "kind": "vllm", "engine.max_num_seqs": "many", "step": "plan"}
    refused = otto_client.post("/fleet/new-pool", typed).content.decode()
    assert 'id="f-engine.max_num_seqs"' in refused
    assert "f-engine.max_num_seqs" not in folded(refused)

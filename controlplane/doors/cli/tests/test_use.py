"""Budgets and batches from a pipeline."""

from typing import get_args

import pytest

from controlplane.people.audit.services import SYSTEM
from controlplane.traffic.batches import store
from controlplane.traffic.batches.models import Batch
from controlplane.traffic.keys.models import Budget
from controlplane.traffic.keys.services import KeyTerms, create_key
from router.contract.redis.budgets import Per, Unit

pytestmark = pytest.mark.django_db
OF = ("--unit", "tokens", "--per", "month")


@pytest.fixture(autouse=True)
def administrator(run, ada_api, monkeypatch):
    monkeypatch.setenv("WEIR_TOKEN", ada_api.token)


def test_budgets_of_keys_and_pools_are_set_listed_and_deleted(run, demo):
    create_key("ci", KeyTerms(), SYSTEM)
    for owner, limit in (("--key=ci", "1000"), ("--pool=demo", "5000"), ("--pool=demo", "6000")):
        status, told, error = run("budget", "set", owner, *OF, "--limit", limit)
        assert status == 0, error
    assert told.startswith("pool demo: 6,000 tokens per month; 0 spent in ")
    assert sorted(Budget.objects.values_list("pool", "limit")) == [("", 1_000), ("demo", 6_000)]
    assert [line.partition(":")[0] for line in run("budget", "list")[1].splitlines()] == ["API key ci", "pool demo"]
    assert run("budget", "delete", "--pool=demo", *OF)[0] == 0
    for wrong in (("delete", "--pool=demo", *OF), ("set", "--key=nobody", *OF, "--limit=1")):
        assert run("budget", *wrong)[0] == 3
    assert Budget.objects.count() == 1


@pytest.mark.parametrize(("option", "allowed"), [("--unit", get_args(Unit)), ("--per", get_args(Per))])
def test_the_command_offers_every_unit_and_period_of_a_budget(run, option, allowed):
    """The command repeats the lists, because it must not import Weir."""
    assert f"{option} {{{','.join(allowed)}}}" in run("budget", "set", "--help")[1]


def test_batches_are_listed_cancelled_and_their_answers_read(run, demo, data_dir, tmp_path):
    key, _ = create_key("ci", KeyTerms(), SYSTEM)
    row = Batch.objects.create(key=key, api_path="/v1/completions", window_s=3600, input_file="f", output_file="file-o")
    store.content("file-o").write_bytes(b'{"custom_id":"a"}\n')
    assert run("batch", "list")[1] == f"{row.name}  validating  0 answered, 0 failed of 0\n"
    assert run("batch", "get", row.name)[1] == '{"custom_id":"a"}\n'
    assert run("batch", "get", row.name, "-o", tmp_path / "out")[0] == 0
    assert (tmp_path / "out").read_bytes() == b'{"custom_id":"a"}\n'
    assert run("batch", "get", row.name, "--errors")[0] == 3
    assert run("batch", "cancel", row.name)[0] == 0
    assert run("batch", "cancel", row.name)[0] == 3

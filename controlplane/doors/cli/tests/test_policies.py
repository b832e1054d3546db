"""A policy kept in a file."""

import json
import re

import pytest

from controlplane.people.audit.services import Actor
from controlplane.traffic.policies import selectors, services

pytestmark = pytest.mark.django_db


def live(name="default"):
    return selectors.live_version(selectors.policy(name))


def test_an_exported_policy_equals_its_file_and_applying_it_changes_nothing(run, default_file):
    path = default_file()
    assert run("policy", "diff", path)[:2] == (0, "default v1: as in the file\n")
    assert run("policy", "apply", path)[:2] == (0, "default: v1 is live with this document; nothing to do\n")
    assert live().number == 1


def test_a_changed_file_is_compared_tried_and_published_once(run, default_file):
    path = default_file(classes__heavy_new_tokens=12_000)
    assert run("policy", "diff", path)[0] == 1
    status, told, _ = run("policy", "apply", path, "--dry-run")
    assert (status, live().number) == (0, 1)
    assert "classes.heavy_new_tokens: 40000 → 12000" in told
    status, told, _ = run("policy", "apply", path, "--reason", "fewer heavy requests")
    assert (status, live().number, live().reason) == (0, 2, "fewer heavy requests")
    assert json.loads(path.read_text())["version"] == 2
    assert "nothing to do" in run("policy", "apply", path)[1]
    assert live().number == 2


def test_a_document_based_on_an_older_version_is_refused_with_the_differences(run, default_file):
    path = default_file(classes__heavy_new_tokens=12_000)
    policy, actor = selectors.policy("default"), Actor("user", "otto")
    services.open_draft(policy, actor)
    draft = services.patch_draft(policy, {"classes.warm_new_tokens": 999}, actor, if_match=None)
    services.publish(policy, actor, "somebody was faster", if_match=draft.etag)
    status, _, error = run("policy", "apply", path)
    assert (status, live().number) == (3, 2)
    assert "made from v1, and v2 by otto (somebody was faster) is live since" in error
    assert "classes.warm_new_tokens" in error


def test_another_persons_draft_is_left_alone(run, default_file):
    path = default_file(classes__heavy_new_tokens=12_000)
    policy = selectors.policy("default")
    services.open_draft(policy, Actor("user", "otto"))
    services.patch_draft(policy, {"classes.warm_new_tokens": 999}, Actor("user", "otto"), if_match=None)
    status, _, error = run("policy", "apply", path)
    assert status == 3
    assert "otto has a draft of default open" in error
    assert selectors.open_draft(policy).document["classes"]["warm_new_tokens"] == 999


def test_an_invalid_document_leaves_no_draft_and_names_the_field(run, default_file):
    path = default_file(classes__heavy_new_tokens=-5)
    status, _, error = run("policy", "apply", path)
    assert status == 3
    assert "classes.heavy_new_tokens: -5" in error
    assert selectors.open_draft(selectors.policy("default")) is None


@pytest.mark.parametrize("way", [[], ["--deliver"]])
def test_a_refusal_leaves_no_new_draft_and_keeps_an_earlier_one(run, default_file, way):
    path, policy = default_file(classes__heavy_new_tokens=12_000), selectors.policy("default")
    status, _, error = run("policy", "apply", path, *way, "--reason", "short")
    assert (status, selectors.open_draft(policy)) == (3, None), error
    services.open_draft(policy, Actor("user", "otto"))
    assert run("policy", "apply", path, *way, "--reason", "short")[0] == 3
    assert selectors.open_draft(policy) is not None


def test_a_document_can_be_proposed_as_a_delivery(run, default_file, demo):
    path = default_file(classes__heavy_new_tokens=12_000)
    status, told, error = run("policy", "apply", path, "--deliver", "--reason", "a canary first")
    assert status == 0, error
    assert re.search(r"delivery \d+ is", told)
    assert live().number == 1


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "not JSON"),
        ("[]", "a policy file is"),
        ('{"policy": "default", "document": {}}', "version: null: the number of the version"),
        (None, "No such file"),
    ],
)
def test_an_invalid_file_is_refused(run, tmp_path, text, why):
    path = tmp_path / "file.json"
    if text is not None:
        path.write_text(text)
    status, _, error = run("policy", "apply", path)
    assert (status, why in error) == (3, True), error

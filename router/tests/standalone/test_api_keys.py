"""The file of API keys of a standalone router: each error is one line with its place, value and allowed values."""

import hashlib
import json

import pytest

from router.contract.redis.api_keys import keyring
from router.standalone.api_keys import read_keys
from router.standalone.text import BadInput

SECRET = "sk-weir-" + "5" * 64
HASH = hashlib.sha256(SECRET.encode()).hexdigest()
OTHER = "0" * 64


def written(folder, content, name="keys.yaml"):
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_a_key_is_identified_by_its_secret_and_has_its_limits(tmp_path):
    path = written(
        tmp_path,
        f"keys:\n- name: ci\n  sha256: {HASH.upper()}\n  requests_per_min: 60\n  expires_at: 2027-01-31T12:00:00Z",
    )
    ring = keyring(read_keys(path).value)
    key = ring.holder(SECRET.encode())
    assert (key.name, key.requests_per_min, key.tokens_per_min) == ("ci", 60, None)
    assert key.expires_at == 1_801_396_800
    assert ring.required_everywhere


def test_all_keys_together_may_have_a_budget(tmp_path):
    value = read_keys(written(tmp_path, "{required: false, keys: [], tokens_per_day: 500}")).value
    assert [(budget.unit, budget.per, budget.limit) for budget in value.pool_budgets["default"]] == [
        ("tokens", "day", 500)
    ]
    with pytest.raises(BadInput, match=r"tokens_per_day: not a limit; .* \(got 0\)"):
        read_keys(written(tmp_path, "{required: false, keys: [], tokens_per_day: 0}"))


@pytest.mark.parametrize("expires_at", ["2027-01-31", "'2027-01-31'", "2027-01-31 01:00:00+01:00"])
def test_an_expiry_without_a_time_zone_is_in_utc(tmp_path, expires_at):
    path = written(tmp_path, f"keys: [{{name: ci, sha256: '{HASH}', expires_at: {expires_at}}}]")
    assert read_keys(path).value.keys[0].expires_at == 1_801_353_600


def test_clients_without_a_key_can_be_admitted_too(tmp_path):
    path = written(tmp_path, {"required": False, "keys": [{"name": "ci", "sha256": HASH}]}, "keys.json")
    assert not keyring(read_keys(path).value).required_everywhere


def key(**fields):
    return {"keys": [{"name": "ci", "sha256": HASH, **fields}]}


def test_a_key_may_have_budgets_in_tokens(tmp_path):
    (made,) = read_keys(written(tmp_path, key(tokens_per_day=500, tokens_per_month=9_000))).value.keys
    assert [(budget.id, budget.unit, budget.per, budget.limit) for budget in made.budgets] == [
        ("ci:day", "tokens", "day", 500),
        ("ci:month", "tokens", "month", 9_000),
    ]
    with pytest.raises(BadInput, match=r"keys\[0\].tokens_per_day"):
        read_keys(written(tmp_path, key(tokens_per_day=0)))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("keys: [", "not YAML: "),
        ("keys: []\nkeys: []", "not YAML: line 2, column 1: the key 'keys' is given twice"),
        ("[]", "keys: not a list; allowed: `keys:` with a list of keys"),
        ({"keys": {}}, "keys: not a list"),
        ({"keys": [], "pools": []}, "pools: unknown key; allowed: keys, required"),
        ({"keys": [], "required": "yes"}, "required: neither true nor false (got 'yes')"),
        ({"keys": ["ci"]}, "keys[0]: not a key; allowed: a map of name, sha256"),
        (key(limit=3), "keys[0].limit: unknown key; allowed: name, sha256, requests_per_min"),
        (key(name=""), "keys[0].name: not a name; allowed: text of 1 to 80 characters (got '')"),
        (key(name=7), "keys[0].name: not a name; allowed: text"),
        (key(sha256=SECRET), "keys[0].sha256: a key itself; allowed: only its hash"),
        (key(sha256="abc"), "keys[0].sha256: not a hash; allowed: 64 hexadecimal digits"),
        (key(sha256=None), "(got None)"),
        (
            key(requests_per_min=0),
            "requests_per_min: not a limit; allowed: a whole number from 1 to 1,000,000,000 (got 0)",
        ),
        (key(tokens_per_min=True), "keys[0].tokens_per_min: not a limit"),
        (key(expires_at="soon"), "keys[0].expires_at: not a time; allowed: like 2027-01-31T12:00:00Z (got 'soon')"),
        (key(expires_at=5), "keys[0].expires_at: not a time"),
        ({"keys": [*key()["keys"], {"name": "ci", "sha256": OTHER}]}, "two keys have the same name (got 'ci')"),
        ({"keys": [*key()["keys"], {"name": "cd", "sha256": HASH}]}, f"two keys have the same sha256 (got '{HASH}')"),
    ],
)
def test_an_invalid_key_file_is_reported(tmp_path, content, says):
    path = written(tmp_path, content)
    with pytest.raises(BadInput) as caught:
        read_keys(path)
    assert str(caught.value).startswith(f"--keys {path}: ")
    assert says in str(caught.value)
    assert SECRET not in str(caught.value)


def test_a_missing_file_is_reported(tmp_path):
    with pytest.raises(BadInput, match="No such file or directory"):
        read_keys(tmp_path / "none.json")


def test_a_key_may_be_trusted_with_the_fields_that_steer_engines(tmp_path):
    assert read_keys(written(tmp_path, key(trusted=True))).trusted == {"ci"}
    assert read_keys(written(tmp_path, key())).trusted == frozenset()
    with pytest.raises(BadInput, match=r"keys\[0\].trusted: neither true nor false"):
        read_keys(written(tmp_path, key(trusted=1)))

"""The settings of sign-in with a provider: each mistake has one line that names the variable."""

import pytest

from controlplane.base.process import oidc_settings as config
from controlplane.base.process.env import BadSetting
from controlplane.people.accounts.oidc.claims import granted

GOOD = {
    "WEIR_OIDC_ISSUER": "https://id.example/realms/weir",
    "WEIR_OIDC_CLIENT_ID": "weir",
    "WEIR_OIDC_ROLE_CLAIM": "realm_access.roles",
    "WEIR_OIDC_ROLES": "admin=weir-admins,operator=ml-*,operator=sre",
}


@pytest.fixture
def given(monkeypatch):
    def given(**changed):
        for name, value in {**GOOD, **changed}.items():
            monkeypatch.setenv(name, value)

    return given


def test_without_an_issuer_there_is_no_provider():
    assert config.read() is None


def test_the_given_values_are_read(given):
    given()
    found = config.read()
    assert found.role_claim == ("realm_access", "roles")
    assert found.roles == (("admin", "weir-admins"), ("operator", "ml-*"), ("operator", "sre"))
    assert (found.scopes, found.session_hours, found.token_days) == ("openid profile email", 12, 30)
    assert found.name == "id.example"


def test_a_secret_may_be_in_a_file(given, tmp_path):
    (tmp_path / "secret").write_text("hunter2\n")
    given(WEIR_OIDC_CLIENT_SECRET_FILE=str(tmp_path / "secret"))
    assert config.read().client_secret == "hunter2"


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("WEIR_OIDC_ISSUER", "http://id.example", "allowed is an https URL"),
        ("WEIR_OIDC_ISSUER", "https://user@id.example", "allowed is an https URL"),
        ("WEIR_OIDC_ISSUER", "https://id.example?x=1", "allowed is an https URL"),
        ("WEIR_OIDC_CLIENT_ID", "", "needed with WEIR_OIDC_ISSUER"),
        ("WEIR_OIDC_ROLE_CLAIM", "", "needed with WEIR_OIDC_ISSUER"),
        ("WEIR_OIDC_ROLE_CLAIM", "a..b", "allowed are names with dots"),
        ("WEIR_OIDC_ROLES", "", "needed with WEIR_OIDC_ISSUER"),
        ("WEIR_OIDC_ROLES", "boss=x", "allowed roles are viewer, operator, admin"),
        ("WEIR_OIDC_SCOPES", "profile", "must name the scope openid"),
        ("WEIR_OIDC_SESSION_HOURS", "0", "allowed are 1 or more hours"),
        ("WEIR_OIDC_TOKEN_DAYS", "x", "allowed are whole"),
    ],
)
def test_a_wrong_setting_is_named(given, name, value, said):
    given(**{name: value})
    with pytest.raises(BadSetting, match=said) as raised:
        config.read()
    assert str(raised.value).startswith(name)


def test_passwords_can_be_disabled_only_if_there_is_another_way_to_sign_in(monkeypatch):
    monkeypatch.setenv("WEIR_LOCAL_SIGN_IN", "0")
    with pytest.raises(BadSetting, match="nobody could sign in"):
        config.read()


def test_a_provider_needs_the_optional_package(given, monkeypatch):
    given()
    monkeypatch.setattr(config, "find_spec", lambda name: None)
    with pytest.raises(BadSetting, match="requirements-oidc"):
        config.read()


@pytest.mark.parametrize(
    ("path", "claims", "role"),
    [
        ("groups", {"groups": ["sre"]}, "operator"),
        ("groups", {"groups": []}, ""),
        ("groups", {"groups": [7, None]}, ""),
        ("groups", {"groups": {"sre": 1}}, None),
        ("groups", {}, None),
        ("a.b", {"a": {"b": "weir-admins"}}, "admin"),
        ("a.b", {"a": ["b"]}, None),
        ('"https://weir/roles"', {"https://weir/roles": ["ml-1"]}, "operator"),
        ('"a.b".c', {"a.b": {"c": "sre-not-whole"}}, ""),
    ],
)
def test_the_role_claim_is_a_path_and_its_values_must_match_completely(given, path, claims, role):
    given(WEIR_OIDC_ROLE_CLAIM=path)
    assert granted(claims, config.read()) == role

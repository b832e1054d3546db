import pytest
from django.test import Client

from controlplane.base.process.oidc_settings import OidcConfig
from controlplane.people.accounts.oidc import views
from controlplane.people.accounts.tests.oidc.provider import CLIENT, SECRET, FakeProvider


@pytest.fixture
def provider(settings):
    """A provider for which Weir is set up: members of weir-admins are administrators, those of ml-* operators."""
    provider = FakeProvider()
    roles = (("admin", "weir-admins"), ("operator", "ml-*"), ("viewer", "everybody"))
    scopes = "openid profile email"
    settings.OIDC = OidcConfig(provider.issuer, CLIENT, SECRET, scopes, ("groups",), roles, 12, 30)
    views.provider_of.cache_clear()
    yield provider
    provider.close()


class Browser(Client):
    """Signs in at the provider as a person does."""

    def sign_in(self, provider, follow="/live", **changed):
        """Return the answer to the redirect back; `changed` replaces its parameters."""
        there = self.get("/oidc/login", {"next": follow})
        assert there.status_code == 302, there.content
        return self.get("/oidc/callback", {**provider.consent(there.url), **changed})


@pytest.fixture
def browser():
    return Browser()

"""Sign-in at an OpenID-certified provider (npm's oidc-provider) with a browser's requests: there, back and out
again."""

import html
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from urllib.parse import urljoin

import httpx
import pytest
from django.contrib.auth.models import Group, User
from django.contrib.sessions.models import Session

from controlplane.base.process.oidc_settings import OidcConfig
from controlplane.people.accounts.oidc import views
from controlplane.people.permissions import ROLES, role_of
from router.tests.ports import free_port

pytestmark = [pytest.mark.deploy, pytest.mark.django_db(transaction=True), pytest.mark.timeout(300)]
CERTIFIED = Path(__file__).with_name("certified")


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A copy of the provider's folder with the packages of its lock file."""
    if not shutil.which("npm"):
        pytest.skip("npm is not installed here: apt-get install npm")
    folder = tmp_path_factory.mktemp("certified") / "provider"
    shutil.copytree(CERTIFIED, folder)
    subprocess.run(["npm", "ci", "--silent", "--ignore-scripts"], cwd=folder, check=True, timeout=200)
    return folder


class Running:
    def __init__(self, folder, issuer):
        self.groups, self.issuer = folder / "groups.json", issuer

    def members(self, **groups):
        self.groups.write_text(json.dumps(groups))


@pytest.fixture
def certified(installed, live_server, settings):
    for role in ROLES:  # a test with transactions begins with empty tables
        Group.objects.get_or_create(name=role)
    port = free_port()
    running = Running(installed, f"http://127.0.0.1:{port}")
    running.members(grace=["ml-research"])
    given = {**os.environ, "PORT": str(port), "WEIR": live_server.url, "GROUPS_FILE": str(running.groups)}
    node = ["node", "--no-warnings", "provider.js"]
    with subprocess.Popen(node, cwd=installed, env=given, stdout=subprocess.PIPE, text=True) as process:
        assert any("listening" in line for line in process.stdout)
        roles = (("admin", "weir-admins"), ("operator", "ml-*"))
        scopes = "openid profile"
        secret = "a secret with & and ="
        settings.OIDC = OidcConfig(running.issuer, "weir", secret, scopes, ("groups",), roles, 12, 30)
        views.provider_of.cache_clear()
        yield running
        process.terminate()


class Person:
    """A browser with one person in front of it."""

    def __init__(self, weir):
        self.weir, self.browser = weir, httpx.Client(follow_redirects=True, timeout=30)

    def sign_in(self, name):
        page = self.browser.get(f"{self.weir}/oidc/login?next=/policies/")
        for _ in range(3):  # sign-in, consent, redirect back
            if "/interaction/" not in str(page.url):
                return page
            page = self.submit(page, login=name, password="any")
        return page

    def submit(self, page, **typed):
        """Send the page's form with its fields and the typed ones."""
        action = re.search(r'<form[^>]* action="([^"]+)"', page.text)[1]
        fields = dict(re.findall(r'<input[^>]*name="([^"]+)"[^>]*value="([^"]*)"', page.text))
        return self.browser.post(urljoin(str(page.url), html.unescape(action)), data={**fields, **typed})

    def sign_out(self):
        """Sign out here, then at the provider, which asks for confirmation."""
        page = self.browser.get(f"{self.weir}/policies/")
        token = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', page.text)[1]
        left = self.browser.post(f"{self.weir}/logout", data={"csrfmiddlewaretoken": token})
        there = self.browser.get(html.unescape(re.search(r'content="0; url=([^"]+)"', left.text)[1]))
        return self.submit(there, logout="yes")

    def is_signed_in(self):
        return "/login" not in str(self.browser.get(f"{self.weir}/policies/").url)


@pytest.fixture
def person(live_server):
    person = Person(live_server.url)
    yield person
    person.browser.close()


def test_a_person_signs_in_with_the_role_of_the_groups_and_signs_out_on_both_sides(certified, live_server, person):
    page = person.sign_in("grace")
    assert str(page.url) == f"{live_server.url}/policies/", page.text[:2000]
    assert role_of(User.objects.get(username="grace")) == "operator"
    back = person.sign_out()
    assert str(back.url).startswith(f"{live_server.url}/login")
    assert not Session.objects.exists()
    certified.members(grace=["weir-admins"])
    assert "/interaction/" in str(person.browser.get(f"{live_server.url}/oidc/login").url)  # signed out there, too
    person.sign_in("grace")
    assert role_of(User.objects.get(username="grace")) == "admin"


def test_a_person_without_a_group_gets_no_access(certified, person):
    certified.members(mallory=["accounting"])
    assert "no_role" in person.sign_in("mallory").text
    assert not User.objects.exists()


def test_a_session_that_ends_at_the_provider_ends_here(certified, person):
    person.sign_in("grace")
    assert person.is_signed_in()
    ends = person.browser.get(f"{certified.issuer}/session/end")
    person.submit(ends, logout="yes")  # the provider calls Weir's back channel
    assert not person.is_signed_in()
    assert not Session.objects.exists()

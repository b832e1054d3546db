import pytest
from django.contrib.auth.models import AnonymousUser, Group, User

from controlplane.people.permissions import (
    ROLE_SCOPES,
    ROLES,
    SCOPES,
    Principal,
    can_administer,
    can_operate,
    can_view,
    has_scope,
    role_of,
    who_can,
)


def test_each_role_includes_the_lower_ones():
    assert ROLE_SCOPES["viewer"] < ROLE_SCOPES["operator"] < ROLE_SCOPES["admin"]
    assert ROLE_SCOPES["admin"] == set(SCOPES)


@pytest.mark.django_db  # explicit, because the fixture is requested by name and the order of tests depends on the mark
@pytest.mark.parametrize(("name", "answers"), [("vera", (1, 0, 0)), ("otto", (1, 1, 0)), ("ada", (1, 1, 1))])
def test_permissions_of_each_role(request, name, answers):
    user = request.getfixturevalue(name)
    assert (can_view(user), can_operate(user), can_administer(user)) == answers


def test_a_stranger_can_do_nothing():
    assert not can_view(AnonymousUser())


def test_the_highest_of_several_roles_counts(vera):
    vera.groups.add(Group.objects.get(name="admin"))
    assert role_of(User.objects.get(pk=vera.pk)) == "admin"


def test_a_deactivated_person_has_no_role(otto):
    otto.is_active = False
    assert role_of(otto) == ""


def test_a_token_can_do_only_what_its_scopes_allow():
    token = Principal("token", "ci (otto)", "operator", frozenset({"policy:read"}), 1)
    assert has_scope(token, "policy:read")
    assert not has_scope(token, "policy:publish")


def test_the_migration_creates_the_roles(db):
    assert set(Group.objects.values_list("name", flat=True)) == set(ROLES)


def test_the_page_names_people_who_can_help(ada, otto, vera):
    assert who_can("operator") == ["ada", "otto"]
    assert who_can("admin") == ["ada"]

"""There is always an administrator, even if two demote each other at the same moment."""

import contextlib
import threading

import pytest
from django.contrib.auth.models import Group, User
from django.db import OperationalError, connection

from controlplane.people.accounts import services
from controlplane.people.audit.services import SYSTEM, Actor
from controlplane.people.permissions import ROLES, role_of

ADA, ALMA = Actor("user", "ada", is_admin=True), Actor("user", "alma", is_admin=True)
TAKE = {
    "the role": lambda user, actor: services.set_role(user, "viewer", actor),
    "the account": lambda user, actor: services.set_active(user, False, actor),
}


def admin(name):
    user = User.objects.create_user(name)
    user.groups.add(Group.objects.get(name="admin"))
    return user


def admins():
    return [user.username for user in User.objects.all() if role_of(user) == "admin"]


@pytest.mark.parametrize("take", TAKE.values(), ids=TAKE)
def test_the_last_administrator_cannot_be_demoted_and_nothing_is_changed(db, take):
    ada = admin("ada")
    with pytest.raises(services.LastAdmin, match="ada is the last administrator"):
        take(ada, ADA)
    assert admins() == ["ada"]


@pytest.mark.parametrize("take", TAKE.values(), ids=TAKE)
def test_a_deactivated_administrator_does_not_count(db, take):
    ada, alma = admin("ada"), admin("alma")
    services.set_active(alma, False, ADA)
    with pytest.raises(services.LastAdmin):
        take(ada, ADA)


def test_a_superuser_of_the_host_counts(db):
    User.objects.create_superuser("root")
    services.set_role(admin("ada"), "viewer", SYSTEM)
    assert admins() == ["root"]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("first", TAKE.values(), ids=TAKE)
@pytest.mark.parametrize("second", TAKE.values(), ids=TAKE)
def test_two_administrators_cannot_demote_each_other(monkeypatch, first, second):
    for name in ROLES:  # created by a migration; an earlier test with real transactions may have emptied the table
        Group.objects.get_or_create(name=name)
    ada, alma = admin("ada"), admin("alma")
    both, record, refused = threading.Barrier(2), services.audit.record, []

    def met(*given):
        """Wait until both are about to commit, if both get that far."""
        with contextlib.suppress(threading.BrokenBarrierError):
            both.wait(timeout=0.2)
        return record(*given)

    def tried(take, user, actor):
        try:
            while _locked(take, user, actor):
                pass
        except services.LastAdmin as error:
            refused.append(str(error))
        finally:
            connection.close()

    monkeypatch.setattr(services.audit, "record", met)
    threads = [threading.Thread(target=tried, args=each) for each in ((first, alma, ADA), (second, ada, ALMA))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(refused) == 1
    assert len(admins()) == 1


def _locked(take, user, actor):
    """SQLite in memory refuses the second writer at once; SQLite on disk and PostgreSQL let it wait."""
    try:
        take(User.objects.get(pk=user.pk), actor)
    except OperationalError as error:
        if "locked" not in str(error):
            raise
        return True
    return False

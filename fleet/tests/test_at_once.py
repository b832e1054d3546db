"""When two people change the fleet at the same moment, neither change is lost silently."""

import contextlib
import threading
from collections.abc import Callable

import pytest
from django.db import OperationalError, connection

from fleet import services
from fleet.control.rollback import rollback_pool
from fleet.models import Pool
from fleet.tests.world import document

OF_TWO = {
    "the document": lambda: services.apply_fleet(document(3), "ada", expected=services.digest()),
    "the scale": lambda: services.scale_pool("p", 5, "ada"),
    "the rollback": lambda: rollback_pool("p", "ada", number=1),
}


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("first", OF_TWO.values(), ids=OF_TWO)
def test_a_document_based_on_an_older_fleet_is_refused_even_if_both_arrive_at_once(
    fake_kind: None, monkeypatch: pytest.MonkeyPatch, first: Callable[[], object]
) -> None:
    services.apply_fleet(document(1), "ada")
    services.apply_fleet(document(1, flavour=1), "ada")
    seen = services.digest()
    first_holds, second_asks = threading.Event(), threading.Event()
    record = services.events.record_pool

    def late(*given: object, **more: object) -> object:
        """Start the second change within the transaction of the first."""
        first_holds.set()
        second_asks.wait(timeout=1)
        return record(*given, **more)

    monkeypatch.setattr(services.events, "record_pool", late)
    thread = threading.Thread(target=_alone, args=(first,))
    thread.start()
    first_holds.wait(timeout=20)
    refused = _alone(lambda: services.apply_fleet(document(2, flavour=2), "otto", expected=seen), second_asks)
    thread.join()
    assert isinstance(refused, services.FleetChanged)
    pool = Pool.objects.get()
    assert (pool.replicas, pool.engine) != (2, {"flavour": 2})


def _alone(change: Callable[[], object], begins: threading.Event | None = None) -> BaseException | None:
    """Change the fleet on this thread's own connection, and retry while SQLite is locked."""
    if begins is not None:
        threading.Timer(0.3, begins.set).start()
    try:
        while True:
            with contextlib.suppress(OperationalError):
                change()
                return None
    except services.FleetError as error:
        return error
    finally:
        connection.close()

from django.db import OperationalError

from controlplane.doors import health
from controlplane.testing import api_caller


def test_a_healthy_system_is_ok(live_redis, db, client):
    answer = client.get("/healthz")
    assert (answer.status_code, answer.json()) == (200, {"status": "ok"})


def test_without_redis_health_is_degraded_and_strangers_do_not_learn_why(redis_away, db, client):
    answer = client.get("/healthz")
    assert (answer.status_code, answer.json()) == (200, {"status": "degraded"})


def test_a_viewer_sees_the_reason(redis_away, vera_client, vera):
    assert vera_client.get("/healthz").json()["degraded"] == ["Redis does not answer: Connection refused"]
    header = {"Authorization": f"Bearer {api_caller(vera).token}"}
    assert "degraded" in vera_client.get("/healthz", headers=header).json()


def test_without_the_database_health_is_503(live_redis, db, client, monkeypatch):
    class Broken:
        def cursor(self):
            raise OperationalError("unable to open database file")

    monkeypatch.setattr(health, "connection", Broken())
    answer = client.get("/healthz")
    assert (answer.status_code, answer.json()) == (503, {"status": "degraded"})

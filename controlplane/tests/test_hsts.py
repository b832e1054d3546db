from django.test import Client


def test_browsers_are_told_to_stay_with_https_once_they_came_over_it(settings, db):
    assert settings.SECURE_HSTS_SECONDS == 2_592_000
    over_https = Client().get("/login", secure=True)
    assert over_https.headers["Strict-Transport-Security"] == "max-age=2592000"
    assert "Strict-Transport-Security" not in Client().get("/login").headers

from django.test import Client


def test_answers_over_https_carry_hsts(settings, db):
    assert settings.SECURE_HSTS_SECONDS == 2_592_000
    over_https = Client().get("/login", secure=True)
    assert over_https.headers["Strict-Transport-Security"] == "max-age=2592000"
    assert "Strict-Transport-Security" not in Client().get("/login").headers

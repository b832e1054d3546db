import pytest


@pytest.fixture(autouse=True)
def quick_hashes(settings):
    """Argon2 is slow on purpose; these tests check who gets in, not how hard it is to reverse a hash."""
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]

import pytest


@pytest.fixture(autouse=True)
def quick_hashes(settings):
    """Argon2 is slow on purpose; what is tested here is who gets in, not how hard a hash is to turn back."""
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]

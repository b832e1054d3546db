"""API tokens, identities at a provider, and one-time sign-in links. Users, groups and sessions are Django's own."""

import hashlib
import secrets
from datetime import datetime
from typing import Any, ClassVar, Self

from django.conf import settings
from django.db import models
from django.utils import timezone

TOKEN_MARK = "weir"  # noqa: S105  (what secret scanners look for, not a secret)


def digest(token: str) -> str:
    """Return a fast hash, which suffices because the secret has 256 random bits and cannot be guessed."""
    return hashlib.sha256(token.encode()).hexdigest()


class Revocable(models.Model):
    """A named secret that may expire and be revoked. It is shown once, when it is issued, because the row stores only
    its hash."""

    mark: ClassVar[str]  # prefix of every secret of the class, masked in logs (router/contract/values/secret_text.py)
    separator: ClassVar[str] = "_"

    name = models.CharField(max_length=80)
    prefix = models.CharField(max_length=12, unique=True)  # shown in lists to distinguish secrets
    sha256 = models.CharField(max_length=64, unique=True)  # hash by which a presented secret is looked up
    created_at = models.DateTimeField(default=timezone.now)
    expires_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        abstract = True
        ordering = ["-created_at", "-pk"]

    def __str__(self) -> str:
        return self.name

    @classmethod
    def issue(cls, **fields: Any) -> tuple[Self, str]:
        """Return the stored row and its secret, which cannot be read again later."""
        prefix = secrets.token_hex(4)
        secret = cls.separator.join((cls.mark, prefix, secrets.token_urlsafe(32)))
        return cls._default_manager.create(prefix=prefix, sha256=digest(secret), **fields), secret

    def is_usable(self, now: datetime) -> bool:
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)

    @property
    def status(self) -> str:
        if self.revoked_at is not None:
            return "revoked"
        return "usable" if self.is_usable(timezone.now()) else "expired"

    def revoke(self) -> bool:
        """Revoke the secret; return False if it has already been revoked."""
        rows = type(self)._default_manager.filter(pk=self.pk, revoked_at=None)
        return bool(rows.update(revoked_at=timezone.now()))


def can_expire_at(at: datetime) -> bool:
    return at.tzinfo is not None and at > timezone.now()


class ApiToken(Revocable):
    """A token acts for its user, within its scopes and never beyond the user's role."""

    mark = TOKEN_MARK

    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="api_tokens")
    scopes = models.JSONField(default=list)
    last_used_at = models.DateTimeField(null=True, blank=True)

    @classmethod
    def issue(cls, **fields: Any) -> tuple[Self, str]:
        return super().issue(**fields | {"scopes": sorted(set(fields["scopes"]))})


class OidcIdentity(models.Model):
    """An account at the identity provider, and the user whom it signs in. It is never looked up by name or e-mail
    address."""

    issuer = models.CharField(max_length=255)
    subject = models.CharField(max_length=255)
    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="oidc_identities")
    created_at = models.DateTimeField(default=timezone.now)
    signed_in_at = models.DateTimeField(default=timezone.now)
    # Time since which the provider has not reported the role
    role_unknown_since = models.DateTimeField(null=True, blank=True)

    class Meta:
        # each sign-in looks up the pair
        constraints = [models.UniqueConstraint(fields=["issuer", "subject"], name="one_user_per_identity")]

    def __str__(self) -> str:
        return f"{self.subject} of {self.issuer}"


class OidcSession(models.Model):
    """A session that began at the provider, which may also end it (back-channel logout)."""

    identity = models.ForeignKey(OidcIdentity, on_delete=models.CASCADE, related_name="sessions")
    session_key = models.CharField(max_length=40, unique=True)  # hashed, as in Django's table
    sid = models.CharField(max_length=255, blank=True)  # the provider's id of the session

    class Meta:
        indexes = [models.Index(fields=["sid"])]  # a logout token names a session by sid

    def __str__(self) -> str:
        return f"session of {self.identity}"


class SignInLink(models.Model):
    """A link that signs a user in once, created on the host (`manage.py sign_in_link`)."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+")
    sha256 = models.CharField(max_length=64, unique=True)
    expires_at = models.DateTimeField()
    used_at = models.DateTimeField(null=True, blank=True)

    def __str__(self) -> str:
        return f"link for {self.user}"

"""Stores Django's sessions under a hash of their key, so that a reader of the database cannot take over a session."""

import hashlib
from typing import Any

from django.contrib.sessions.backends import db
from django.utils import timezone

LENGTH = 40  # length of the column; 160 bits of the hash


def hashed(session_key: str | None) -> str | None:
    """Return a fast hash, which suffices because a key has 160 random bits and cannot be guessed."""
    return None if session_key is None else hashlib.sha256(session_key.encode()).hexdigest()[:LENGTH]


class SessionStore(db.SessionStore):
    """A session store in which the cookie holds the key and the row its hash. Django's async methods are not used,
    because Channels reads sessions in a thread."""

    def _get_session_from_db(self) -> Any:
        rows = self.model.objects.filter(session_key=hashed(self.session_key), expire_date__gt=timezone.now())
        row = rows.first()
        if row is None:
            self._session_key = None
        return row

    def exists(self, session_key: str) -> bool:
        return super().exists(hashed(session_key) or "")

    def create_model_instance(self, data: dict[str, Any]) -> Any:
        row = super().create_model_instance(data)
        row.session_key = str(hashed(row.session_key))
        return row

    def delete(self, session_key: str | None = None) -> None:
        key = session_key or self.session_key
        if key is not None:
            super().delete(hashed(key))

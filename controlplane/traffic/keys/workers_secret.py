"""The secret with which Celery workers send lines of batches on behalf of API keys: every process can derive it, and
routers know its hash."""

import hashlib
import hmac

from django.conf import settings

from router.contract.redis.api_keys import MARK


def secret() -> str:
    made = hmac.new(settings.SECRET_KEY.encode(), b"lines of batches", hashlib.sha256).hexdigest()
    return f"{MARK.decode()}batch-{made}"

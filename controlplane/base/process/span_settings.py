"""The settings of spans (router/spans/settings.py), read once at the start."""

import os

from controlplane.base.process.env import BadSetting
from router.spans import settings
from router.spans.settings import SpanSettings

SERVICE = "weir-controlplane"


def read() -> SpanSettings | None:
    try:
        return settings.read(os.environ, SERVICE)
    except ValueError as error:
        raise BadSetting(str(error)) from None

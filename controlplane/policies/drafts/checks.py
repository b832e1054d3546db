"""What is looked at before anything is stored: documents, reasons, names."""

import re
from typing import Any

from controlplane.policies.errors import PolicyInvalid
from router.contract.problem import Problem
from router.policy.schema import document as documents

REASON_MIN = 10  # characters
REASON_MAX = 500
NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,49}")
RESERVED = {"schema", "new"}  # words in the addresses of pages and API


def check_reason(reason: str) -> str:
    reason = reason.replace("\x00", "").strip()  # PostgreSQL holds no NUL
    if not REASON_MIN <= len(reason) <= REASON_MAX:
        message = f"say why in {REASON_MIN} to {REASON_MAX} characters; this has {len(reason)}"
        raise PolicyInvalid("the reason is missing or too short", (Problem("reason", reason, message),))
    return reason


def check_document(document: object) -> dict[str, Any]:
    """The document with every default filled in; Refused with a path for each thing that is wrong."""
    try:
        return documents.dump(documents.parse(document))
    except documents.InvalidDocument as error:
        raise _refused(error) from None


def default_document(strategy: str) -> dict[str, Any]:
    try:
        return documents.default(strategy)
    except documents.InvalidDocument as error:
        raise _refused(error) from None


def _refused(error: documents.InvalidDocument) -> PolicyInvalid:
    return PolicyInvalid("the policy document is not valid", tuple(error.errors))


def check_name(name: str) -> str:
    if not NAME.fullmatch(name) or name in RESERVED:
        message = "a name has 1 to 50 characters: small letters, digits and hyphens, a letter or digit first"
        raise PolicyInvalid("the name is not usable", (Problem("name", name, message),))
    return name

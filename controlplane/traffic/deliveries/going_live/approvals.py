"""The people who may approve a delivery, and the content of an approval. Pure."""

import hashlib
from collections.abc import Iterable


def digest(document_sha256: str, plan_sha256: str, base_number: int, base_sha256: str) -> str:
    """Return the digest that an approval covers: the document, the way it goes live, and the version that it
    replaces."""
    return hashlib.sha256(f"{document_sha256} {plan_sha256} {base_number} {base_sha256}".encode()).hexdigest()


def refusal(person: str, proposer: str, drafters: Iterable[str], approvers: Iterable[str] = ()) -> str:
    """Return why this person cannot approve; empty if they can."""
    if person == proposer:
        return f"{person} proposed the delivery: somebody else must approve it"
    if person in drafters:
        return f"{person} saved the draft: somebody else must approve it"
    if person in approvers:
        return f"{person} has approved it already"
    return ""


def complete(approved: Iterable[tuple[str, str]], wanted: str, needed: int) -> bool:
    """Return whether enough different people have approved exactly this digest. `approved` has pairs of person and
    digest."""
    return len({person for person, sha256 in approved if sha256 == wanted}) >= needed

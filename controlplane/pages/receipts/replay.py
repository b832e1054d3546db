"""Compares a recorded decision with its replay, by the version that made it or by any other."""

from dataclasses import dataclass

from controlplane.traffic.policies import selectors
from controlplane.traffic.policies.errors import NoSuchPolicy
from router.contract.pools import is_ephemeral
from router.contract.redis.receipt import Receipt
from router.contract.values.json_value import JsonObject
from router.policy import replay
from router.policy.replay import ReplayedDecision
from router.policy.schema import document as documents
from router.policy.strategies import title_of
from router.policy.types import Candidate

OFFERED = 50  # versions of a policy offered on the page; the API accepts older ones, too


@dataclass(frozen=True, slots=True)
class LabelledPolicy:
    """A policy document and its label."""

    policy: str  # empty for a file, and for the built-in default
    version: int  # 0 for a file, and for the built-in default
    document: JsonObject
    label: str
    is_file: bool = False


@dataclass(frozen=True, slots=True)
class ReplayRow:
    """One candidate in both decisions."""

    id: str
    recorded: Candidate
    recomputed: Candidate
    chosen_then: bool
    chosen_now: bool
    outcome_then: str
    outcome_now: str


@dataclass(frozen=True, slots=True)
class ReplayComparison:
    rules: LabelledPolicy
    recorded: ReplayedDecision
    recomputed: ReplayedDecision
    own: bool  # True if the rules are those of the recorded decision
    changed: tuple[str, ...]  # names of the fields that differ

    @property
    def drift(self) -> bool:
        """Return whether the same rules now decide differently, because the code or the receipt has changed."""
        return self.own and bool(self.changed)

    def facts(self) -> list[tuple[str, str, str, bool]]:
        """Return (title, recorded, recomputed, whether they differ), without reasons and candidates."""
        then, now = self.recorded, self.recomputed
        pairs = [
            ("Instance", then.instance or "none", now.instance or "none"),
            ("Prefill on", then.prefill or "the same instance", now.prefill or "the same instance"),
            ("Class", then.request_class, now.request_class),
            ("Flow", then.flow, now.flow),
            ("Strategy", title_of(then.strategy), title_of(now.strategy)),
            ("Rule", then.rule, now.rule),
            ("Cached there", f"{then.cached_tokens:,}", f"{now.cached_tokens:,}"),
            ("New there", f"{then.new_tokens:,}", f"{now.new_tokens:,}"),
        ]
        return [(title, before, after, before != after) for title, before, after in pairs]

    def rows(self) -> list[ReplayRow]:
        """Return the rows: the chosen ones first, otherwise in the order of the fleet."""
        then, now = self.recorded, self.recomputed
        scored_then, scored_now = (any(one.score is not None for one in each.candidates) for each in (then, now))
        made = [
            ReplayRow(
                before.id,
                before,
                after,
                before.id == then.instance,
                after.id == now.instance,
                outcome_of(before, then.instance, scored=scored_then),
                outcome_of(after, now.instance, scored=scored_now),
            )
            for before, after in zip(then.candidates, now.candidates, strict=True)
        ]
        return sorted(made, key=lambda row: not (row.chosen_then or row.chosen_now))


def outcome_of(candidate: Candidate, chosen: str, *, scored: bool) -> str:
    """Describe what happened to a candidate. With `scored`, some candidates were compared, so one without a score was
    passed over.
    """
    if candidate.id == chosen:
        return "chosen"
    return candidate.refused or ("passed over" if is_passed_over(candidate, scored=scored) else "considered")


def is_passed_over(candidate: Candidate, *, scored: bool) -> bool:
    """Return whether a candidate was passed over: it was not compared although others were, and nothing refused it."""
    return scored and candidate.score is None and not candidate.refused


def compare(receipt: Receipt, rules: LabelledPolicy) -> ReplayComparison:
    """Compare two decisions. Raise NotReplayable if the receipt lacks inputs, InvalidInput if the rules are not a
    policy."""
    again = replay.outcome(replay.situation(receipt).decide(documents.parse(rules.document)))
    then = replay.recorded(receipt)
    return ReplayComparison(rules, then, again, _made_it(receipt, rules), tuple(then.differences(again)))


def _made_it(receipt: Receipt, rules: LabelledPolicy) -> bool:
    if is_ephemeral(receipt.pool or ""):
        return False
    return not rules.is_file and (rules.policy, rules.version) == (receipt.policy or "", receipt.version)


def own_rules(receipt: Receipt) -> LabelledPolicy:
    """Return the version that made the decision. Raise NoSuchPolicy if it is unknown."""
    name, version = receipt.policy or "", receipt.version
    if is_ephemeral(receipt.pool or ""):
        raise NoSuchPolicy("an experiment's arm decided by a document that is no policy: name a policy to compare with")
    if not version:
        return LabelledPolicy("", 0, documents.default(), "the built-in default")
    return published(name, version)


def published(name: str, version: int | None = None) -> LabelledPolicy:
    """Return a version of a policy, by default the live one. Raise NoSuchPolicy if there is none."""
    policy = selectors.policy(name)
    found = selectors.live_version(policy) if version is None else selectors.version(policy, version)
    return LabelledPolicy(name, found.number, found.document, f"{name} {found.label}")


def asked_rules(receipt: Receipt, policy: str = "", version: int | None = None) -> LabelledPolicy:
    """Return the requested rules. `policy` defaults to the receipt's; `version` defaults to the deciding one, or to the
    live version of another policy."""
    if policy:
        return published(policy, version)
    return own_rules(receipt) if version is None else published(receipt.policy or "", version)


def versions() -> list[tuple[str, list[tuple[str, str]]]]:
    """Return the choices of the page: (policy, [(value, label)]), newest versions first."""
    found = []
    for policy in selectors.policies():
        newest = selectors.history(policy).select_related("policy")[:OFFERED]
        found.append((policy.name, [(f"{policy.name}:{one.number}", one.label) for one in newest]))
    return found

"""Tags for the fields of a plan's form, and for deliveries that wait for a person."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django import template

from controlplane.pages.delivery_pages import plan_form, reading, trial
from controlplane.pages.delivery_pages.display import sentences
from controlplane.pages.delivery_pages.verbs import waiting_for
from controlplane.people.audit.services import actor_of
from controlplane.traffic.deliveries import selectors, services
from controlplane.traffic.deliveries.plan.types import CLASSES
from controlplane.traffic.deliveries.states import State
from controlplane.traffic.deliveries.timing import durations
from controlplane.traffic.policies.models import Policy, PolicyVersion

register = template.Library()


@dataclass(frozen=True, slots=True)
class CandidateOutcome:
    """The outcome of a candidate."""

    delivery: int
    word: str
    shape: str


@dataclass(frozen=True, slots=True)
class PlanField:
    name: str
    label: str
    value: str | list[str]
    error: str
    unit: str = ""
    hint: str = ""

    @property
    def id(self) -> str:
        return self.name.replace(".", "-")


@register.inclusion_tag("deliveries/_plan_field.html", takes_context=True)
def plan_field(context: Any, name: str, label: str, unit: str = "", hint: str = "") -> dict[str, PlanField]:
    value, error = context["values"].get(name, ""), context["errors"].get(name, "")
    return {"field": PlanField(name, label, value, error, unit, hint)}


@register.inclusion_tag("deliveries/_plan_classes.html", takes_context=True)
def plan_classes(context: Any, name: str, label: str) -> dict[str, object]:
    return {**plan_field(context, name, label), "choices": CLASSES}


@register.simple_tag
def open_delivery_of(policy: Policy) -> reading.DeliverySummary | None:
    """Return the policy's open delivery, for its pages."""
    held = selectors.open_delivery(policy)
    return None if held is None else reading.summary(held)


@register.simple_tag(takes_context=True)
def direct_refusal(context: Any, policy: Policy) -> str:
    """Return why this person cannot publish without a delivery; empty if they can."""
    change = services.Change(services.Way.PUBLISH, policy, actor_of(context["request"]))
    return "; ".join(map(services.said, services.refusals(change)))


@register.simple_tag
def outcomes_of(policy: Policy) -> dict[int, CandidateOutcome]:
    """Return the outcomes of candidates, by the number of their version."""
    return {
        number: CandidateOutcome(pk, *sentences.WORDS[State(state)])
        for number, pk, state in policy.deliveries.values_list("candidate__number", "pk", "state")
    }


@register.filter
def of_number(outcomes: Mapping[int, CandidateOutcome], version: PolicyVersion) -> CandidateOutcome | None:
    return outcomes.get(version.number)


@register.simple_tag(takes_context=True)
def waiting_count(context: Any) -> int:
    """Count the deliveries that wait for this person, for the navigation."""
    user = context.get("user")
    return len(waiting_for(user)) if getattr(user, "is_authenticated", False) else 0


@register.simple_tag
def first_trial() -> bool:
    """Return whether Live offers a trial delivery: on a demo fleet that has had no delivery."""
    return not selectors.deliveries().exists() and trial_offered()


@register.simple_tag
def trial_offered() -> bool:
    """Return whether *Deliveries* offers a trial."""
    return trial.offered() is not None


@register.filter
def duration(seconds: float) -> str:
    """Format a duration in the form that fields accept, for example 10 min."""
    return durations.words(seconds)


@register.filter
def percent_of(share: float) -> str:
    """Return a share in percent: 5 for 0.05."""
    return plan_form.percent(share)

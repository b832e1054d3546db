"""The question of the playground as a form."""

import json
import secrets
from collections.abc import Mapping
from typing import Any

from django import forms

from controlplane.pages.playground.asking import ChatQuestion
from controlplane.traffic.aliases import selectors
from fleet.models import Pool
from fleet.spec.fleet_spec import SERVE

LONGEST_PROMPT, LONGEST_HISTORY, MOST_TURNS = 50_000, 500_000, 40  # characters, characters, messages
MOST_TOKENS, FEW_TOKENS = 4096, 256
POOL = "pool:"  # prefix of a choice of a pool
ROLES = ("user", "assistant")
Choices = list[tuple[str, list[tuple[str, str]]]]


def pools() -> dict[str, str]:
    """Return name → model of the pools that serve."""
    rows = Pool.objects.filter(ephemeral_owner="", removed=False, mode=SERVE).exclude(model="").order_by("name")
    return dict(rows.values_list("name", "model"))


def askable(models: Mapping[str, str]) -> Choices:
    """Return the names and models that clients can request, and the pools."""
    names = sorted(selectors.live().aliases)
    groups = [
        ("Names", [(name, name) for name in names]),
        ("Models", [(model, model) for model in sorted({*models.values()} - {*names})]),
        ("Pools", [(f"{POOL}{name}", name) for name in models]),
    ]
    return [group for group in groups if group[1]]


class QuestionForm(forms.Form):
    model = forms.ChoiceField(label="Ask")
    max_tokens = forms.IntegerField(
        label="Tokens at most", min_value=1, max_value=MOST_TOKENS, help_text=f"Of the answer, 1 to {MOST_TOKENS:,}."
    )
    prompt = forms.CharField(
        label="Question", max_length=LONGEST_PROMPT, widget=forms.Textarea(attrs={"rows": 4, "autocomplete": "off"})
    )
    history = forms.CharField(
        label="Conversation", required=False, max_length=LONGEST_HISTORY, widget=forms.HiddenInput
    )
    session = forms.RegexField(r"^[0-9a-f]{16}$", label="Session", widget=forms.HiddenInput)

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.pools = pools()
        self.fields["model"].choices = askable(self.pools)  # type: ignore[attr-defined]  # it is a ChoiceField

    def clean_history(self) -> list[dict[str, str]]:
        try:
            turns = json.loads(self.cleaned_data["history"] or "[]")
        except (ValueError, RecursionError):
            turns = None
        if not isinstance(turns, list) or len(turns) > MOST_TURNS or not all(map(_is_turn, turns)):
            raise forms.ValidationError(f"at most {MOST_TURNS} messages of you and the model")
        return turns

    def question(self) -> ChatQuestion:
        given = self.cleaned_data
        asked = {"role": "user", "content": given["prompt"]}
        asked_for = given["model"]
        pool = asked_for.removeprefix(POOL) if asked_for.startswith(POOL) else ""
        return ChatQuestion(
            model=self.pools[pool] if pool else asked_for,
            pool=pool,
            messages=[*given["history"], asked],
            max_tokens=given["max_tokens"],
            session=f"playground-{given['session']}",
        )

    def failures(self) -> str:
        """Write the errors as one sentence, with the fields' labels."""
        found = [(self.fields[name].label or name, errors) for name, errors in self.errors.items()]
        return " ".join(f"{label}: {' '.join(map(str, errors))}" for label, errors in found)


def fresh(model: str = "") -> QuestionForm:
    return QuestionForm(initial={"model": model, "max_tokens": FEW_TOKENS, "session": secrets.token_hex(8)})


def _is_turn(turn: object) -> bool:
    if not isinstance(turn, Mapping) or {*turn} != {"role", "content"}:
        return False
    return turn["role"] in ROLES and isinstance(turn["content"], str)

"""Forms of channels."""

from typing import Any

from django import forms

from controlplane.people.notices.events import EVENTS, EVERY, choices
from controlplane.people.notices.models import ChannelKind
from controlplane.people.notices.services import NAME_MAX, ChannelEdit, ChannelTerms
from router.contract.values.problem import InvalidInput


def event_choices() -> list[tuple[str, str]]:
    """Return the events with their meaning."""
    return [(name, f"{name}: {_meaning(name)}") for name in choices()]


def _meaning(name: str) -> str:
    if name == EVERY:
        return "all events, including future ones"
    return EVENTS.get(name, f"all {name.partition('.')[0]} events")


class ChannelForm(forms.Form):
    name = forms.CharField(max_length=NAME_MAX, label="Name", help_text="Who reads it, for example “on call”.")
    url = forms.CharField(
        label="URL",
        widget=forms.PasswordInput(attrs={"autocomplete": "off"}),
        help_text="Not shown again beyond its host. Webhook: https://…; Apprise: SERVICE://…",
    )
    words = forms.BooleanField(
        required=False,
        initial=True,
        label="With what people wrote",
        help_text="Reasons, notes and names of people. Without it a notice has its event, names of things and numbers.",
    )
    events = forms.MultipleChoiceField(widget=forms.CheckboxSelectMultiple, label="Events")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["events"].choices = event_choices()  # type: ignore[attr-defined]

    @property
    def names_single_events(self) -> bool:
        return any(not name.endswith(EVERY) for name in self["events"].value() or ())

    def refuse(self, error: InvalidInput) -> None:
        """Show a refusal by the service beside its field."""
        path = error.problems[0].path.partition(".")[0]
        self.add_error(path if path in self.fields else None, f"{str(error)[:1].upper()}{str(error)[1:]}.")


class NewChannelForm(ChannelForm):
    kind = forms.ChoiceField(
        choices=[(ChannelKind.WEBHOOK, "Webhook, signed"), (ChannelKind.APPRISE, "Apprise")],
        label="Kind",
        help_text="Apprise reaches mail, Slack and others; it is an optional package.",
    )
    field_order = ("name", "kind", "url", "words", "events")

    def terms(self) -> ChannelTerms:
        data = self.cleaned_data
        return ChannelTerms(name=data["name"], url=data["url"], events=data["events"], words=data["words"])


class ChangeChannelForm(ChannelForm):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["url"].required = False
        self.fields["url"].help_text = "Empty: the URL stays as it is."

    def change(self) -> ChannelEdit:
        data = self.cleaned_data
        return ChannelEdit(name=data["name"], events=data["events"], url=data["url"] or None, words=data["words"])

"""A parameter of a policy document: a field with the texts that operators see."""

from dataclasses import dataclass

from router.contract.values.fields import Field


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter(Field):
    """A parameter's only definition. `help` is one line on the effect of a higher value; `up` and `down` are texts for
    diffs."""

    step: float | None = None  # change per press of an arrow key
    metric: str = ""  # key of the live metric shown beside the parameter, if any
    up: str = "higher"  # a diff's text for a raised value
    down: str = "lower"
    strategies: tuple[str, ...] = ()  # strategies that read it; empty: all

    @property
    def path(self) -> str:
        """ "classes.heavy_new_tokens"."""
        return self.name


def weight(path: str, default: float, title: str, help: str, metric: str) -> Parameter:
    return Parameter(
        name=path,
        title=title,
        unit="ratio",
        default=default,
        range=(0.0, 100.0),
        step=0.1,
        help=help,
        metric=metric,
        up="counts more",
        down="counts less",
    )

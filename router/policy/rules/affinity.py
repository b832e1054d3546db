"""Where a session lives, and when it has to move."""

from router.policy.rules.overload import overloaded
from router.policy.types import InstanceState
from router.policy.value import value
from router.policy.view import View


@value
class Binding:
    """What became of the session's binding: kept (`instance`), broken by load (`left`), or neither."""

    instance: InstanceState | None = None
    left: InstanceState | None = None
    reasons: tuple[str, ...] = ()


def binding(view: View) -> Binding:
    bound_to = view.request.bound_to
    if bound_to is None:
        return Binding()
    place = view.instances.place(bound_to)
    if place is None:
        return Binding(reasons=(f"the session is bound to {bound_to}, which cannot take it",))
    instance = view.instances[place]
    why = overloaded(view, instance)
    if why:
        return Binding(left=instance, reasons=(f"the session is bound to {bound_to} and leaves it: {why}",))
    return Binding(instance=instance, reasons=(f"the session is bound to {bound_to}",))

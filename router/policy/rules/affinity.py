"""The instance of a session, and the conditions under which the session moves to another."""

from router.policy.rules.overload import overloaded
from router.policy.types import InstanceState
from router.policy.value import Value
from router.policy.view import View


class Binding(Value, frozen=True):
    """The session's binding: kept (`instance`), left because of load (`left`), or neither."""

    instance: InstanceState | None = None
    left: InstanceState | None = None
    reasons: tuple[str, ...] = ()


def binding(view: View) -> Binding:
    bound_to = view.request.bound_to
    if bound_to is None:
        return Binding()
    position = view.instances.position(bound_to)
    if position is None:
        return Binding(reasons=(f"the session is bound to {bound_to}, which cannot take it",))
    instance = view.instances[position]
    why = overloaded(view, instance)
    if why:
        return Binding(left=instance, reasons=(f"the session is bound to {bound_to} and leaves it: {why}",))
    return Binding(instance=instance, reasons=(f"the session is bound to {bound_to}",))

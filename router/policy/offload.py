"""Where a prompt is computed when that is not where it is decoded."""

from dataclasses import replace

from router.policy.filters import kv_headroom
from router.policy.types import Instance
from router.policy.view import Pick, View, least


def offloaded(view: View, pick: Pick) -> Pick:
    """The same pick with the prompt computed elsewhere, or with the reason why it is not."""
    instance, why = prefiller(view, pick.instance)
    return replace(pick, prefill=instance, reasons=(*pick.reasons, why))


def prefiller(view: View, decoder: Instance) -> tuple[Instance | None, str]:
    """The instance with the least work_i of those that can hand the KV over to the decoder; and the reason in words.

    None when there is no other of the same connector: then the decoder computes the prompt itself.
    """
    if not decoder.connector:
        return None, f"prefill stays on {decoder.id}: KV blocks cannot reach it"
    others = view.of(_connected(view, decoder))
    if not others.instances:
        return (
            None,
            f"prefill stays on {decoder.id}: no other instance that is able is connected by {decoder.connector}",
        )
    place = least(others, others.work)
    chosen = others.instances[place]
    return chosen, f"prefill on {chosen.id}: least work, {others.work[place]:,.0f} tokens, to {decoder.connector}"


def _connected(view: View, decoder: Instance) -> list[Instance]:
    limit = view.policy["admission.max_inflight_per_instance"]
    able = [
        instance
        for instance in view.fleet
        if instance.connector == decoder.connector
        and instance.id != decoder.id
        and instance.role != "decode"
        and not instance.refused
        and instance.running < limit
    ]
    return [instance for instance in able if not kv_headroom(instance, view.policy)] or able


def serving(view: View) -> View:
    """Only those that also compute prompts, while there are any."""
    able = [instance for instance in view.instances if instance.role != "decode"]
    return view.of(able) if 0 < len(able) < len(view.instances) else view

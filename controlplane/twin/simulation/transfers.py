"""KV transfers from the instance that computed a prompt to its decoder, as in fleet/simengine/kv/peers.py."""

from collections.abc import Callable
from typing import Any

from controlplane.twin.simulation.call import Handover
from controlplane.twin.simulation.sim_endpoint import SimEndpoint

Post = Callable[[float, Callable[[Any], None], Any], None]


class SimTransfers:
    def __init__(self, post: Post, changed: Callable[[SimEndpoint], None]) -> None:
        """`post(when, call, given)`: adds an event; `changed`: the endpoint's engine has new work."""
        self._post = post
        self._changed = changed

    def computed(self, handover: Handover, now: float) -> None:
        """Hold the blocks until the decoder has pulled them, or does not need them."""
        work = handover.work
        handover.sent_s, handover.is_held = now, True
        self._post(now + handover.transfers.hold_s, self.let_go, handover)
        work.pull_tokens = work.prompt_tokens
        handover.receiver.engine.add_request(work, now)
        self._changed(handover.receiver)

    def pull(self, handover: Handover, now: float) -> None:
        """The decoder has capacity for the blocks."""
        if not handover.is_held:  # their hold time is over
            self._come(handover, 0, now)
            return
        sender, transfers, work = handover.sender, handover.transfers, handover.work
        sender.moving += 1
        handover.is_held = False
        handover.size = round((work.prompt_tokens - work.computed) * transfers.bytes_per_token)
        there_s = now + transfers.seconds(handover.size, sender.moving, busy=sender.engine.running > 0)
        self._post(there_s, self._pulled, (handover, there_s))

    def let_go(self, handover: Handover) -> None:
        """Free the blocks: not needed, or held for long enough."""
        if handover.is_held:
            handover.is_held = False
            self._free(handover)

    def _pulled(self, moved: tuple[Handover, float]) -> None:
        handover, now = moved
        handover.sender.moving -= 1
        self._free(handover)
        self._come(handover, handover.work.prompt_tokens, now)

    def _come(self, handover: Handover, tokens: int, now: float) -> None:
        handover.receiver.engine.pulled(handover.work, tokens, now)
        self._changed(handover.receiver)

    def _free(self, handover: Handover) -> None:
        handover.sender.engine.release_held(handover.prefill.id)
        self._changed(handover.sender)

"""KV on its way from the instance that computed a prompt to the one that decodes, as the sim kind moves it
(fleet/simengine/kv/peers.py)."""

from collections.abc import Callable
from typing import Any

from controlplane.twin.simulation.call import Handover
from controlplane.twin.simulation.sim_endpoint import SimEndpoint

Post = Callable[[float, Callable[[Any], None], Any], None]


class SimTransfers:
    def __init__(self, post: Post, stirred: Callable[[SimEndpoint], None]) -> None:
        """`post(when, call, given)`: an event; `stirred`: something was done to the seat's engine."""
        self._post = post
        self._stirred = stirred

    def computed(self, handover: Handover, now: float) -> None:
        """The blocks are held from now on until the decoder has them, or does not want them."""
        work = handover.work
        handover.sent_s, handover.is_held = now, True
        self._post(now + handover.transfers.hold_s, self.let_go, handover)
        work.pull_tokens = work.prompt_tokens
        handover.receiver.engine.add_request(work, now)
        self._stirred(handover.receiver)

    def pull(self, handover: Handover, now: float) -> None:
        """The decoder has room for them."""
        if not handover.is_held:  # nobody waited for that long
            self._come(handover, 0, now)
            return
        sender, transfers, work = handover.sender, handover.transfers, handover.work
        sender.moving += 1
        handover.is_held = False
        handover.size = round((work.prompt_tokens - work.computed) * transfers.bytes_per_token)
        there_s = now + transfers.seconds(handover.size, sender.moving, busy=sender.engine.running > 0)
        self._post(there_s, self._pulled, (handover, there_s))

    def let_go(self, handover: Handover) -> None:
        """They are not wanted, or have been held for long enough."""
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
        self._stirred(handover.receiver)

    def _free(self, handover: Handover) -> None:
        handover.sender.engine.release_held(handover.prefill.id)
        self._stirred(handover.sender)

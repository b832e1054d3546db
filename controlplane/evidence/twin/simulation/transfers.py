"""Transfers KV from the instance that computed a prompt to its decoder, like fleet/simengine/kv/peers.py."""

from collections.abc import Callable
from typing import Any

from controlplane.evidence.twin.simulation.call import Handover, LentWork, SimCall
from controlplane.evidence.twin.simulation.sim_endpoint import SimEndpoint
from fleet.engine.neuron_batches import next_poll_s
from fleet.engine.request import EngineRequest
from fleet.engine.tiers.shared import SharedStore
from router.pool.load.lent import LEAST

Post = Callable[[float, Callable[[Any], None], Any], None]
HandoverAt = tuple[Handover, float]  # (handover, time)


class SimTransfers:
    def __init__(self, post: Post, changed: Callable[[SimEndpoint], None]) -> None:
        """Connect to the simulation. `post(when, call, given)` adds an event; `changed` is called when an endpoint's
        engine has new work."""
        self._post = post
        self._changed = changed
        self._pairs: set[tuple[SimEndpoint, SimEndpoint]] = set()  # pairs that have met
        self._lent: dict[str, LentWork] = {}  # by session

    def ask(self, handover: Handover, now: float) -> None:
        """Let the decoder, which has the request, poll the sender until the prompt is computed."""
        handover.asked_s = now
        work = handover.work
        work.awaits_prefill, work.pull_tokens = True, work.prompt_tokens
        handover.receiver.engine.add_request(work, now)

    def computed(self, handover: Handover, now: float) -> None:
        """Hold the blocks until the decoder has pulled them or no longer needs them; a store already has them."""
        work, transfers = handover.work, handover.transfers
        handover.sent_s, handover.is_held = now, handover.store is None
        if handover.store is not None:
            handover.receiver.engine.add_request(work, now)
            self._changed(handover.receiver)
            return
        free_s = now + transfers.hold_s
        self._post(free_s, self._expire, (handover, free_s))
        if transfers.together:
            found_s = next_poll_s(handover.asked_s, now, transfers.poll_s)
            self._post(found_s, self._found, (handover, found_s))
            return
        work.pull_tokens = work.prompt_tokens
        handover.receiver.engine.add_request(work, now)
        self._changed(handover.receiver)

    def _found(self, asked: HandoverAt) -> None:
        """Inform the decoder that the prompt has been computed."""
        handover, now = asked
        handover.receiver.engine.prefilled(handover.work, now)
        self._changed(handover.receiver)

    def pull(self, handover: Handover, now: float) -> None:
        """Pull the blocks, now that the decoder has capacity for them."""
        if not handover.is_held:  # their hold time has expired
            self._come(handover, 0, now)
            return
        sender, transfers, work = handover.sender, handover.transfers, handover.work
        sender.moving += 1
        work.owner.transfers += 1
        handover.is_held = False
        handover.size = round((work.prompt_tokens - work.computed) * transfers.bytes_per_token)
        there_s = now + transfers.seconds(handover.size, sender.moving, busy=sender.engine.running > 0)
        if (sender, handover.receiver) not in self._pairs:
            self._pairs.add((sender, handover.receiver))
            there_s += transfers.connect_s
        self._post(there_s, self._pulled, (handover, there_s))

    def let_go(self, handover: Handover, now: float) -> None:
        """Free the blocks, which are no longer needed or whose hold time has expired."""
        if handover.is_held:
            handover.is_held = False
            self._free(handover, now)

    def _expire(self, held: HandoverAt) -> None:
        self.let_go(*held)

    def _pulled(self, moved: HandoverAt) -> None:
        handover, now = moved
        handover.sender.moving -= 1
        self._free(handover, now)
        self._come(handover, handover.work.prompt_tokens, now)

    def load(self, store: SharedStore, endpoint: SimEndpoint, work: EngineRequest, now: float) -> None:
        """Load the part of the prompt that this instance lacks from the shared store."""
        size = endpoint.engine.limits.block_size
        here = work.computed // size
        tokens = store.held(work.chain, here, work.prompt_tokens // size) * size
        there_s = now + store.begin(tokens)
        call: SimCall = work.owner
        call.ready_s, call.pulled_s = work.ready_s, (now, there_s)
        call.transfers += tokens > 0
        if call.handover is not None and work is call.handover.work:
            call.handover.size = store.bytes(tokens)
        self._post(there_s, self._loaded, (store, endpoint, work, here * size + tokens, there_s))

    def _loaded(self, loaded: tuple[SharedStore, SimEndpoint, EngineRequest, int, float]) -> None:
        store, endpoint, work, tokens, now = loaded
        store.end()
        endpoint.engine.pulled(work, tokens, now)
        self._changed(endpoint)

    # Blocks that decoders lend (router/request/lending.py)

    def lend(self, session: str | None, decoder: SimEndpoint, work: EngineRequest, lend_s: float, now: float) -> None:
        """Keep the blocks for the given time. The router offers those of sessions, compared by the tokens that the
        engine reports.
        """
        lent = LentWork(decoder, work)
        if session and decoder.model.kv_events:
            self._lent[session] = lent
        self._post(now + lend_s, self._lent_for_long, (session or "", lent, now + lend_s))

    def _lent_for_long(self, held: tuple[str, LentWork, float]) -> None:
        session, lent, now = held
        if self._lent.get(session) is lent:
            del self._lent[session]
        self._free_lent(lent, now)

    def lent(self, call: SimCall) -> tuple[SimEndpoint, int] | None:
        """Return who lends blocks to the request's session, and the number of its tokens in these blocks. A prompt that
        begins with the previous turn's prompt continues with that turn's answer.
        """
        lent = self._lent.get(call.session or "")
        if lent is None:
            return None
        size, work = call.request.block_tokens, lent.work
        before = work.chain[: work.prompt_tokens // size]
        if call.chain[: len(before)] != before:
            return None
        tokens = min(call.request.input_tokens, work.computed) // size * size
        return (lent.decoder, tokens) if tokens >= LEAST else None

    def take(self, session: str, handover: Handover, tokens: int, now: float) -> None:
        """Let the prefill instance take these tokens; if there are none, it computes them, and the decoder releases the
        blocks."""
        lent = self._lent.pop(session)
        if not tokens:
            self._free_lent(lent, now)
            return
        handover.lent, handover.lent_tokens = lent, tokens
        handover.prefill.pull_tokens = tokens

    def pull_lent(self, handover: Handover, now: float) -> None:
        lent, prefill, there_s = handover.lent, handover.prefill, now
        if lent is not None and lent.decoder.engine.held(lent.work.id) is not None:
            decoder, transfers = lent.decoder, handover.transfers
            decoder.moving += 1
            prefill.owner.transfers += 1
            size = round((handover.lent_tokens - prefill.computed) * transfers.bytes_per_token)
            there_s += transfers.seconds(size, decoder.moving, busy=decoder.engine.running > 0)
            self._post(there_s, self._lent_came, (handover, there_s))
        else:  # the hold time of the blocks has expired
            handover.sender.engine.pulled(prefill, 0, now)
            self._changed(handover.sender)

    def _lent_came(self, moved: HandoverAt) -> None:
        handover, now = moved
        if handover.lent is not None:
            handover.lent.decoder.moving -= 1
        self.end_lent(handover, now)
        handover.sender.engine.pulled(handover.prefill, handover.lent_tokens, now)
        self._changed(handover.sender)

    def end_lent(self, handover: Handover, now: float) -> None:
        """Free the blocks that the prefill instance has taken or did not need."""
        lent, handover.lent = handover.lent, None
        if lent is not None:
            self._free_lent(lent, now)

    def _free_lent(self, lent: LentWork, now: float) -> None:
        if lent.decoder.engine.release_held(lent.work.id, now):
            self._changed(lent.decoder)

    def _come(self, handover: Handover, tokens: int, now: float) -> None:
        handover.receiver.engine.pulled(handover.work, tokens, now)
        self._changed(handover.receiver)

    def _free(self, handover: Handover, now: float) -> None:
        handover.sender.engine.release_held(handover.prefill.id, now)
        self._changed(handover.sender)

"""One request's share of an instance's load."""

from collections.abc import Callable, Mapping
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

from router.pool.load.gpu_clock import PREFILL_TOKENS, GpuSpent, prefill_weight
from router.prefix.media import media_in
from router.upstream.breaker import NO_PROBE

if TYPE_CHECKING:
    from router.pool.endpoint import Endpoint

NO_DOCUMENT: Final[Mapping[str, Any]] = {}


class Lease:
    """One request's share of an instance's load and of its breaker, from sending to its end."""

    __slots__ = (
        "_began",
        "_decoding",
        "_document",
        "_endpoint",
        "_given_back",
        "_probe",
        "_since",
        "_spent",
        "_trial",
        "_unseen",
        "_weight",
        "alone",
        "is_media",
        "repeats",
        "tenant",
        "tokens",
    )

    def __init__(
        self,
        endpoint: "Endpoint",
        tokens: int,
        given_back: Callable[[], None],
        spent: GpuSpent | None = None,
        tenant: str = "",
        document: Mapping[str, Any] = NO_DOCUMENT,
        leaves_trial: bool = False,
    ) -> None:
        """`tenant` owns the request, `document` is its body. With `leaves_trial`, a trial is left to other tenants if
        the tenant has another request without a token here, which may be the cause."""
        self._endpoint: Endpoint | None = endpoint
        self.tokens = tokens
        self._given_back = given_back
        self._decoding = False
        self._probe = endpoint.breaker.begin() if endpoint.breaker.opened_at is not None else NO_PROBE
        self._trial = bool(endpoint.progress.stalled) and endpoint.progress.begin()
        self._unseen = False  # True if the answer does not pass through this router, or does not come from the model
        self.tenant = tenant
        self.repeats = False  # True if another request of its owner without a token is here
        if leaves_trial and self._trial:
            self._leave_trial(endpoint)
        self._document = document
        self.is_media: bool | None = None  # True if an image or sound is requested; None: the prompt has to be searched
        endpoint.prefilling.add(self)
        endpoint.requests += 1
        endpoint.prefill_tokens += tokens
        self._spent = spent
        self._weight = prefill_weight(tokens) if tokens > PREFILL_TOKENS else 1.0
        self._began = perf_counter()
        self._since = endpoint.gpu_clock.join(self._weight, self._began)
        self.alone = endpoint.requests == 1  # True if it was this router's only request there until its first token
        endpoint.touch()

    def __enter__(self) -> "Lease":
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def _leave_trial(self, endpoint: "Endpoint") -> None:
        self.repeats = any(one.tenant == self.tenant for one in (*endpoint.prefilling, *endpoint.unseen))
        if self.repeats:
            self._trial = False
            endpoint.progress.leave_trial()

    def charge(self, tokens: int) -> None:
        """Add new tokens, because the prompt is computed here after all."""
        endpoint = self._endpoint
        if endpoint is not None and not self._decoding:
            self.tokens += tokens
            endpoint.prefill_tokens += tokens
            self._weigh(endpoint, prefill_weight(self.tokens))
            endpoint.touch()

    def expect_no_token(self) -> None:
        """Expect no token here: the answer does not pass through this process, or the model computes no tokens."""
        if self._endpoint is not None:
            self._unseen = True
            self._endpoint.unheld += 1
            self._endpoint.unseen.add(self)

    def has_media(self) -> bool:
        """Return whether an image, sound or video is requested, or part of the prompt; its time does not follow from
        the prompt's length."""
        if self.is_media is None:
            self.is_media = media_in(self._document)[0]
        return self.is_media

    @property
    def has_content(self) -> bool:
        """Return whether the first content has arrived."""
        return self._decoding

    def goes_on(self) -> None:
        """Note that content has arrived; bytes before the first content may come from the API server alone."""
        if self._endpoint is not None and self._decoding and not self._unseen:
            self._endpoint.progress.came()

    def refused(self) -> None:
        """Note that the engine answered with an error."""
        if self._endpoint is not None and not self._unseen:
            self._endpoint.progress.refused()

    def prefilled(self) -> None:
        """Note that the prompt has probably been computed, although the answer was not seen."""
        self.first_content(is_seen=False)

    def first_content(self, *, is_seen: bool = True) -> None:
        """Note the first token, which ends the computation of the prompt."""
        endpoint = self._endpoint
        if endpoint is not None and not self._decoding:
            if is_seen and not self._unseen:
                endpoint.progress.came()
            self._decoding = True
            endpoint.prefilling.discard(self)
            self.alone = self.alone and endpoint.requests == 1
            endpoint.prefill_tokens -= self.tokens
            endpoint.decodes += 1
            if self._weight != 1.0:
                self._weigh(endpoint, 1.0)
            endpoint.decodes_changed()

    def _weigh(self, endpoint: "Endpoint", weight: float) -> None:
        self._since = endpoint.gpu_clock.change(self._weight, self._since, perf_counter(), self._spent, weight)
        self._weight = weight

    def end(self) -> None:
        """End the lease; further calls change nothing."""
        endpoint, self._endpoint = self._endpoint, None
        if endpoint is None:
            return
        if self._probe != NO_PROBE:
            endpoint.breaker.end(self._probe)
        if self._trial:
            endpoint.progress.end()
        now = perf_counter()
        endpoint.requests -= 1
        if self._unseen:
            endpoint.unheld -= 1
            endpoint.unseen.discard(self)
        elif self._decoding:
            endpoint.progress.served()
        else:
            endpoint.progress.ended_without(now - self._began)
        endpoint.gpu_clock.leave(self._weight, self._since, now, self._spent)
        if self._decoding:
            endpoint.decodes -= 1
            endpoint.decodes_changed()
        else:
            endpoint.prefilling.discard(self)
            endpoint.prefill_tokens -= self.tokens
            endpoint.touch()
        self._given_back()

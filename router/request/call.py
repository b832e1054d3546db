"""One request on its way through the router: the request, what was predicted and decided, and the outcome.

Fields are grouped by the module that writes them.
"""

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from router.contract.redis.api_keys import PublishedKey
from router.contract.redis.receipt import BLOCK_CHUNKS, ShadowDecision
from router.contract.redis.stored_response import StoredResponse
from router.policy.types import Decision, ParsedPolicy
from router.pool.admission import Admission
from router.pool.kv_event_state import LookedUp, UnderWay
from router.pool.pool import Pool
from router.pool.rollout import Assignment
from router.prefix.belief import Index, Reason
from router.prefix.exact.stretches import Tokens
from router.request.bands import NOT_ASKED, AskedBand
from router.request.chosen import Chosen
from router.request.outcome import Outcome
from router.request.request import NOT_READ, ProxiedRequest
from router.request.spending import Spending
from router.request.tracing import Tracing

NO_POOL = Pool("")  # placeholder for a request refused before its pool was known


@dataclass(slots=True)
class Prediction:
    """A prompt's tokens, and where its prefix is cached, as far as known before an engine has answered."""

    prompt_tokens: int = 0  # L
    kind: str = ""  # kind of the request (router/prefix/request_kind.py)
    reads_cache: bool = True
    # (tokens in a block, hashes), if engines publish KV events
    block_hashes: tuple[tuple[int, Sequence[int]], ...] = ()
    exactly: Mapping[str, Tokens] = field(default_factory=dict)  # exact index's tokens by instance
    asked_at: float = 0.0  # s, monotonic: time of that look-up
    looked_up: LookedUp | None = None  # answer of an index process
    under_way: UnderWay | None = None  # entry at the instance that computes the prompt
    # Cached tokens on the chosen instance
    exact_tokens: int | None = None  # None if the exact index was not asked
    tiers: Tokens | None = None  # exact index's tokens by tier, if in force and some are below the device
    shortened: int = 0  # tokens deducted from what its blocks allow
    store_tokens: int = 0  # tokens from the pool's shared store
    approximate_tokens: int = 0
    index: Index = "none"  # the index in force
    reason: Reason = ""  # why no exact index is in force
    why: str = ""  # the reason in words
    untokenized: str = ""  # why the prompt cannot be tokenised as its engine does
    engine_renders: bool = False  # True: its engine can be asked for the tokens (serving/rendering.py)


@dataclass(slots=True)
class Call:
    # serving/proxy.py, on arrival
    id: str
    api_path: str
    at: float  # s, Unix
    started: float  # s, clock of all other times
    tenant: str = ""  # unit of fairness in the queue: API key, else client address (limits/)
    own_id: str = ""  # drawn by the router; `id` may be the client's
    deadline: float | None = None
    asked_band: AskedBand = NOT_ASKED
    band: int = 0  # granted priority band
    # serving/prepare.py
    pool: Pool = NO_POOL
    request: ProxiedRequest = NOT_READ  # until the request has ended
    session: str | None = None  # client's name, else derived from the prompt (serving/sessions.py)
    session_by: str = ""  # what named the session, or why nothing did
    adapter: str = ""  # adapter of the pool's model
    alias: Chosen | None = None  # target chosen by the document Models
    # picker/picking.py
    # Instances beyond its gateway, or without the response that it continues; None: none
    outside: Mapping[str, str] | None = None
    sidecars: bool = False  # True: beside each decoder one carries an offload out, for a gateway
    # serving/stored.py
    owner: StoredResponse | None = None  # owner of that response
    # limits/api_key_auth.py
    key: PublishedKey | None = None
    most: int | None = None  # tokens that it may need, if the key has limits or budgets
    charged: float | None = None  # tokens charged to the key's limit
    reserved: list[tuple[Spending, int]] = field(default_factory=list)  # reserved from the budgets of key and pool
    limits: bytes = b""  # header lines with the remaining limits
    # serving/sessions.py
    session_key: str | None = None  # hash of pool and session, for policies and receipts
    pause_s: float | None = None  # pause since the session's previous request
    # serving/delivery.py
    assigned: Assignment | None = None  # arm of the pool's delivery
    candidate: ParsedPolicy | None = None  # deciding candidate; None: the live version decides
    # telemetry/shadow.py
    shadow: ShadowDecision | None = None
    # telemetry/tracer.py
    tracing: Tracing | None = None  # None: no spans
    # serving/proxy.py
    admission: Admission | None = None  # admission to the pool
    decision: Decision | None = None
    version: int = 0  # deciding version of the policy
    policy: str = ""
    prediction: Prediction = field(default_factory=Prediction)
    outcome: Outcome = field(default_factory=Outcome)
    # `end`
    blocks: bytes = b""  # hashes that end a block of recorded traffic, eight bytes each
    token_ids: bool = False  # the prompt came as token ids
    # telemetry/recorder.py
    number: int = 0  # sequence number of ended requests

    def __post_init__(self) -> None:
        self.own_id = self.own_id or self.id

    @property
    def engine_id(self) -> str:
        """Return the request's id at the engines: the same for both parts of an offload, different for each pair."""
        outcome = self.outcome
        is_first = len(outcome.attempts) < 2 and (outcome.offload is None or not outcome.offload.moves)
        return self.own_id if is_first else f"{self.own_id}-{self._pair}"

    @property
    def pair_id(self) -> str:
        """Return the id that pairs the parts of an offload; it contains nothing of the client's."""
        return f"{self.own_id.rpartition('-')[2]}-{self._pair}"

    @property
    def _pair(self) -> str:
        """Return the number of the attempt, and of its further prefill instance if there is one: the decoder may still
        have what it was asked for with the one before."""
        number, offload = len(self.outcome.attempts), self.outcome.offload
        return f"{number}.{offload.moves}" if offload is not None and offload.moves else str(number)

    @property
    def instance(self) -> str:
        return self.decision.instance if self.decision is not None else ""

    @property
    def rules(self) -> ParsedPolicy:
        """Return the policy that the request follows over all attempts."""
        return self.candidate or self.pool.policy

    def start_over(self) -> None:
        """Reset what belongs to the pool that could not serve, before another pool does."""
        self.session_key = self.pause_s = self.assigned = self.candidate = self.shadow = self.decision = None
        self.version, self.policy, self.prediction, self.outcome.offload = 0, "", Prediction(), None

    def end(self, now: float) -> None:
        """Compute the times and free large fields: the receipt is written later."""
        request, outcome = self.request, self.outcome
        self.blocks = array("Q", request.chunks[BLOCK_CHUNKS - 1 :: BLOCK_CHUNKS]).tobytes()
        self.token_ids = request.prompt.token_ids is not None
        if not outcome.begun:
            outcome.streamed = request.prompt.stream
        outcome.end(self.started, now)
        self.request = NOT_READ
        self.prediction.block_hashes, self.prediction.exactly, self.prediction.looked_up = (), {}, None
        self.admission = None

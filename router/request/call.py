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

NO_POOL = Pool("")  # stands for the pool of a request that was refused before its pool was known


@dataclass(slots=True)
class Prediction:
    """What the router knows of a prompt before an engine has answered: its tokens, and where its prefix is cached."""

    prompt_tokens: int = 0  # L
    kind: str = ""  # kind of the request (router/prefix/request_kind.py)
    reads_cache: bool = True
    # (tokens in a block, hashes) where engines publish KV events
    block_hashes: tuple[tuple[int, Sequence[int]], ...] = ()
    exactly: Mapping[str, Tokens] = field(default_factory=dict)  # by instance, by the exact index
    looked_up: LookedUp | None = None  # by an index process
    under_way: UnderWay | None = None  # on the instance that computes it
    # Cached tokens on the instance that was chosen
    exact_tokens: int | None = None  # None when the exact index was not asked
    tiers: Tokens | None = None  # the exact index's answer, when it is in force and some tokens are below the device
    shortened: int = 0  # tokens by which they were taken to be fewer than its blocks allow
    store_tokens: int = 0  # tokens from a store that the pool shares
    approximate_tokens: int = 0
    index: Index = "none"  # the index in force
    reason: Reason = ""  # why no exact index is in force
    why: str = ""  # the reason in words
    untokenized: str = ""  # why the prompt cannot be tokenised as its engine does


@dataclass(slots=True)
class Call:
    # serving/proxy.py, on arrival
    id: str
    api_path: str
    at: float  # s, Unix
    started: float  # s, of the clock of all other times
    tenant: str = ""  # shares the queue fairly with others: the client's address, or its API key (limits/)
    own_id: str = ""  # drawn by the router, where `id` may be the client's
    deadline: float | None = None
    asked_band: AskedBand = NOT_ASKED
    band: int = 0  # band of priority, as granted
    # serving/prepare.py
    pool: Pool = NO_POOL
    request: ProxiedRequest = NOT_READ  # until the request has ended
    session: str | None = None  # as the client names it, else by its prompt (serving/sessions.py)
    session_by: str = ""  # what names the session, or why nothing does
    adapter: str = ""  # adapter of the pool's model
    alias: Chosen | None = None  # where the document Models sends it
    # picker/picking.py
    # Instances that its gateway does not reach, or that do not store the response which it continues; None: none
    outside: Mapping[str, str] | None = None
    # serving/stored.py
    owner: StoredResponse | None = None  # owner of that response
    # limits/api_key_auth.py
    key: PublishedKey | None = None
    most: int | None = None  # tokens that it may need, where the key has limits or budgets
    charged: float | None = None  # tokens that the key's limit was charged
    reserved: list[tuple[Spending, int]] = field(default_factory=list)  # from the budgets of its key and its pool
    limits: bytes = b""  # header lines with what is left
    # serving/sessions.py
    session_key: str | None = None  # hash of pool and session, for policies and receipts
    pause_s: float | None = None  # since the session's previous request
    # serving/delivery.py
    assigned: Assignment | None = None  # to an arm of the pool's delivery
    candidate: ParsedPolicy | None = None  # candidate that decides; None: the live version does
    # telemetry/shadow.py
    shadow: ShadowDecision | None = None
    # telemetry/tracer.py
    tracing: Tracing | None = None  # None: no spans
    # serving/proxy.py
    admission: Admission | None = None  # to the pool
    decision: Decision | None = None
    version: int = 0  # version of the policy that decided
    policy: str = ""
    prediction: Prediction = field(default_factory=Prediction)
    outcome: Outcome = field(default_factory=Outcome)
    # `end`
    blocks: bytes = b""  # hashes that end a block of recorded traffic, eight bytes each
    token_ids: bool = False  # the prompt came as token ids
    # telemetry/recorder.py
    number: int = 0  # counts the requests of this router in the order in which they ended

    def __post_init__(self) -> None:
        self.own_id = self.own_id or self.id

    @property
    def engine_id(self) -> str:
        """The request's id at the engines: both parts of an offload have one, no two attempts have the same."""
        number = len(self.outcome.attempts)
        return self.own_id if number < 2 else f"{self.own_id}-{number}"

    @property
    def pair_id(self) -> str:
        """What pairs the parts of an offload: nothing in it is the client's."""
        return f"{self.own_id.rpartition('-')[2]}-{len(self.outcome.attempts)}"

    @property
    def instance(self) -> str:
        return self.decision.instance if self.decision is not None else ""

    @property
    def rules(self) -> ParsedPolicy:
        """The policy that the request follows over all its attempts."""
        return self.candidate or self.pool.policy

    def start_over(self) -> None:
        """Forget what belongs to the pool that could not serve it: another one will."""
        self.session_key = self.pause_s = self.assigned = self.candidate = self.shadow = self.decision = None
        self.version, self.policy, self.prediction, self.outcome.offload = 0, "", Prediction(), None

    def end(self, now: float) -> None:
        """Compute the times and let go of what is large: the receipt is written later."""
        request, outcome = self.request, self.outcome
        self.blocks = array("Q", request.chunks[BLOCK_CHUNKS - 1 :: BLOCK_CHUNKS]).tobytes()
        self.token_ids = request.prompt.token_ids is not None
        if not outcome.begun:
            outcome.streamed = request.prompt.stream
        outcome.end(self.started, now)
        self.request = NOT_READ
        self.prediction.block_hashes, self.prediction.exactly, self.prediction.looked_up = (), {}, None
        self.admission = None

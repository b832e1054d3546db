"""One request on its way through the router: the request, what was predicted and decided, and the outcome.

Fields are grouped by the module that writes them.
"""

from array import array
from collections.abc import Mapping, Sequence

from router.contract.redis.api_keys import PublishedKey
from router.contract.redis.published import StoredResponse
from router.contract.redis.receipt import BLOCK_CHUNKS, ShadowDecision
from router.policy.types import Decision, ParsedPolicy
from router.pool.admission import Admission
from router.pool.kv_event_state import LookedUp, UnderWay
from router.pool.pool import Pool
from router.pool.rollout import Assignment
from router.prefix.belief import Index, Reason
from router.prefix.exact.groups import PartsBySize
from router.prefix.exact.stretches import Tokens
from router.request.bands import NOT_ASKED
from router.request.chosen import Chosen
from router.request.outcome import Outcome
from router.request.request import NOT_READ, ProxiedRequest
from router.request.spending import Spending
from router.request.tracing import Tracing

NO_POOL = Pool("")  # placeholder for a request refused before its pool was known


class Prediction:
    """A prompt's tokens, and the known locations of its cached prefix before an engine has answered."""

    __slots__ = (
        *("approximate_tokens", "asked_at", "block_hashes", "engine_renders", "exact_tokens", "exactly"),
        *("index", "kind", "looked_up", "parts", "prompt_tokens", "reads_cache", "reason", "shortened", "store_tokens"),
        *("tiers", "under_way", "untokenized", "why"),
    )

    def __init__(self) -> None:
        self.prompt_tokens = 0  # L
        self.kind = ""  # kind of the request (router/prefix/request_kind.py)
        self.reads_cache = True
        # (tokens in a block, hashes) if engines publish KV events
        self.block_hashes: tuple[tuple[int, Sequence[int]], ...] = ()
        self.parts: PartsBySize = {}  # hashes of its blocks' parts, for windows with smaller blocks
        self.exactly: Mapping[str, Tokens] = {}  # tokens by instance according to the exact index
        self.asked_at = 0.0  # s, monotonic; when that index was asked
        self.looked_up: LookedUp | None = None  # answer of an index process
        self.under_way: UnderWay | None = None  # record of the request at the instance that computes the prompt
        # Cached tokens on the chosen instance
        self.exact_tokens: int | None = None  # None if the exact index was not asked
        # Tokens by tier from the exact index, if it is in use and some are below the device
        self.tiers: Tokens | None = None
        self.shortened = 0  # tokens deducted from the instance's blocks
        self.store_tokens = 0  # tokens from the pool's shared store
        self.approximate_tokens = 0
        self.index: Index = "none"  # the index in use
        self.reason: Reason = ""  # why the exact index is not in use
        self.why = ""  # the reason, as text
        self.untokenized = ""  # why the prompt cannot be tokenised as its engine does
        self.engine_renders = False  # True if the engine can be asked for the tokens (serving/prompt/rendering.py)


class Call:
    __slots__ = (
        *("adapter", "admission", "alias", "api_path", "asked_band", "assigned", "at", "band", "blocks", "candidate"),
        *("charged", "deadline", "decision", "id", "key", "limits", "most", "number", "outcome", "outside", "own_id"),
        *("owner", "pause_s", "policy", "pool", "prediction", "request", "reserved", "session", "session_by"),
        *("session_key", "shadow", "sidecars", "started", "tenant", "token_ids", "tracing", "version"),
    )

    deadline: float | None
    session: str | None  # the client's name, or a name derived from the prompt (serving/prompt/sessions.py)
    alias: Chosen | None  # target chosen by the document Models
    # Instances that the gateway cannot reach, or that do not store the response to be continued; None: no restriction
    outside: Mapping[str, str] | None
    owner: StoredResponse | None  # owner of that response
    key: PublishedKey | None
    most: int | None  # the most tokens that it may need, if the key has limits or budgets
    charged: float | None  # tokens charged to the key's limit
    session_key: str | None  # hash of pool and session, for policies and receipts
    pause_s: float | None  # pause since the session's previous request
    assigned: Assignment | None  # arm of the pool's delivery
    candidate: ParsedPolicy | None  # candidate that decides the request; None: the live version decides
    shadow: ShadowDecision | None
    tracing: Tracing | None  # None: no spans
    admission: Admission | None  # admission to the pool
    decision: Decision | None

    def __init__(
        self,
        id: str,
        api_path: str,
        at: float,
        started: float,
        tenant: str = "",
        own_id: str = "",
        pool: Pool = NO_POOL,
        request: ProxiedRequest = NOT_READ,
    ) -> None:
        # serving/proxy.py, on arrival
        self.id = id
        self.api_path = api_path
        self.at = at  # s, Unix
        self.started = started  # s, the clock of all other times
        self.tenant = tenant  # unit of fairness in the queue: API key, else client address (limits/)
        self.own_id = own_id or id  # drawn by the router; `id` may be the client's
        self.deadline = self.session = self.alias = self.outside = self.owner = self.key = self.most = None
        self.charged = self.session_key = self.pause_s = self.assigned = self.candidate = self.shadow = None
        self.tracing = self.admission = self.decision = None
        self.asked_band = NOT_ASKED
        self.band = 0  # granted priority band
        # serving/prompt/prepare.py
        self.pool = pool
        self.request = request  # the request, until it has ended
        self.session_by = ""  # source of the session's name, or why it has none
        self.adapter = ""  # adapter of the pool's model
        self.sidecars = False  # True: a sidecar at each decoder carries out the offload for a gateway
        # Set by serving/stored.py and limits/api_key_auth.py
        self.reserved: list[tuple[Spending, int]] = []  # reserved from the budgets of key and pool
        self.limits = b""  # header lines with the remaining limits
        # serving/proxy.py
        self.version, self.policy = 0, ""  # the deciding version of the policy, and the policy's name
        self.prediction = Prediction()
        self.outcome = Outcome()
        # `end`, telemetry/recorder.py
        self.blocks = b""  # hashes that end a block of recorded traffic, eight bytes each
        self.token_ids = False  # the prompt consists of token ids
        self.number = 0  # sequence number of ended requests

    @property
    def engine_id(self) -> str:
        """Return the request's id at the engines: the same for both parts of an offload, and different for each
        pair."""
        outcome = self.outcome
        is_first = len(outcome.attempts) < 2 and (outcome.offload is None or not outcome.offload.moves)
        return self.own_id if is_first else f"{self.own_id}-{self._pair}"

    @property
    def pair_id(self) -> str:
        """Return the id that pairs the parts of an offload; it contains nothing from the client's id."""
        return f"{self.own_id.rpartition('-')[2]}-{self._pair}"

    @property
    def _pair(self) -> str:
        """Return the number of the attempt, and of its prefill instance after the first: the decoder may still hold
        what it requested from the previous instance.
        """
        number, offload = len(self.outcome.attempts), self.outcome.offload
        return f"{number}.{offload.moves}" if offload is not None and offload.moves else str(number)

    @property
    def instance(self) -> str:
        return self.decision.instance if self.decision is not None else ""

    @property
    def rules(self) -> ParsedPolicy:
        """Return the policy of the request, for all attempts."""
        return self.candidate or self.pool.policy

    def start_over(self) -> None:
        """Reset fields of the pool that could not serve, before another pool takes over."""
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

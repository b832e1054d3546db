"""Weir's treatment of API paths: one table for the router (with Redis or standalone), the endpoint picker and batches.
Pure.
A path outside the table is not served. The table also lists the other paths of engine servers, so that a client that
requests one learns why it is not available.
"""

import re
from dataclasses import dataclass
from enum import Enum


class Handling(Enum):
    ROUTED = "an instance is decided on"
    OWN = "answered here"
    WEB = "passed on to the web process"
    STORED = "passed on to the instance that stores the response"
    REFUSED = "not served"


class BehindGateway(Enum):
    """The endpoint picker's treatment of a path that the router itself would answer."""

    SAME = "the same"
    ANY = "any instance of the pool"
    REFUSED = "not served"


@dataclass(frozen=True, slots=True)
class ApiPath:
    """`{name}` in a path stands for one segment, `{name...}` for the rest."""

    path: str
    handling: Handling
    methods: tuple[str, ...] = ("POST",)
    limits: tuple[str, ...] = ()  # fields that limit the tokens of a generated answer
    computed: bool = True  # False: any instance answers without the model, so times mean nothing
    media: bool = False  # audio and images: no prompt is cached, so the choice depends on load alone
    takes_files: bool = False  # bodies with a file, as multipart/form-data
    batched: bool = False  # allowed in batches
    behind_gateway: BehindGateway = BehindGateway.SAME
    why: str = ""  # why the path is refused

    @property
    def classless(self) -> bool:
        """Return whether requests to this path have no class, so that no times are counted for them."""
        return self.media or not self.computed


_PAGE = ("GET", "HEAD")
_STEERS = "it steers one engine, which Weir does itself: see the pages Fleet and Models"
_INSIDE = "it is about one engine and its neighbours: ask that engine itself"
_PAGES = "pages about an engine's API are its own: Weir's are in docs/router.md"


def _routed(
    *paths: str, computed: bool = True, media: bool = False, takes_files: bool = False, batched: bool = False
) -> list[ApiPath]:
    return [
        ApiPath(path, Handling.ROUTED, computed=computed, media=media, takes_files=takes_files, batched=batched)
        for path in paths
    ]


def _generated(path: str, *limits: str, batched: bool = False) -> ApiPath:
    return ApiPath(path, Handling.ROUTED, limits=limits, batched=batched)


def _own(*paths: str, behind_gateway: BehindGateway = BehindGateway.SAME) -> list[ApiPath]:
    return [ApiPath(path, Handling.OWN, _PAGE, behind_gateway=behind_gateway) for path in paths]


def _refused(why: str, *paths: str) -> list[ApiPath]:
    return [ApiPath(path, Handling.REFUSED, (), why=why) for path in paths]


def _instead(path: str, *paths: str) -> list[ApiPath]:
    return _refused(f"use {path} instead", *paths)


API_PATHS: tuple[ApiPath, ...] = (
    _generated("/v1/chat/completions", "max_tokens", "max_completion_tokens", batched=True),
    _generated("/v1/completions", "max_tokens", batched=True),
    _generated("/v1/responses", "max_output_tokens", batched=True),
    _generated("/v1/messages", "max_tokens"),
    *_routed("/v1/embeddings", batched=True),
    *(ApiPath(path, Handling.ROUTED, ("POST", "PUT")) for path in ("/classify", "/v1/rerank")),  # PUT: only SGLang's
    *_routed("/pooling", "/v1/classify", "/v1/decisions", "/rerank", "/v2/rerank", "/score", "/v1/score"),
    *_routed("/tokenize", "/detokenize", "/v1/messages/count_tokens", computed=False),
    *_routed("/v1/audio/transcriptions", "/v1/audio/translations", media=True, takes_files=True),
    *_routed("/v1/images/edits", "/v1/images/variations", media=True, takes_files=True),
    *_routed("/v1/audio/speech", "/v1/images/generations", media=True),
    *_own("/v1/models", "/v1/models/{model...}", "/version"),
    *_own("/health", behind_gateway=BehindGateway.ANY),
    ApiPath("/ping", Handling.OWN, (*_PAGE, "POST"), behind_gateway=BehindGateway.ANY),  # vLLM's for SageMaker
    *_own("/healthz", "/metrics", "/receipts", "/receipts/{id}", behind_gateway=BehindGateway.REFUSED),
    *(
        ApiPath(path, handling, methods, behind_gateway=BehindGateway.REFUSED)
        for handling, path, methods in (
            (Handling.WEB, "/v1/files", ("GET", "POST")),
            (Handling.WEB, "/v1/files/{id}", ("GET", "DELETE")),
            (Handling.WEB, "/v1/files/{id}/content", ("GET",)),
            (Handling.WEB, "/v1/batches", ("GET", "POST")),
            (Handling.WEB, "/v1/batches/{id}", ("GET",)),
            (Handling.WEB, "/v1/batches/{id}/cancel", ("POST",)),
            (Handling.STORED, "/v1/responses/{id}", ("GET", "DELETE")),
            (Handling.STORED, "/v1/responses/{id}/cancel", ("POST",)),
            (Handling.STORED, "/v1/responses/{id}/input_items", ("GET",)),
        )
    ),
    # Other APIs for the services above
    *_instead("/v1/chat/completions", "/invocations", "/vertex_generate", "/api/chat", "/cohere/v2/chat"),
    *_instead("/v1/chat/completions", "/generate", "/inference/v1/generate", "/api/generate", "/v1/systemone"),
    *_instead("/v1/decisions", "/generative_scoring"),
    *_instead("/v1/batches", "/v1/chat/completions/batch"),
    *_instead("/v1/embeddings", "/v2/embed", "/encode"),
    *_instead("/tokenize", "/v1/tokenize"),
    *_instead("/detokenize", "/v1/detokenize"),
    *_instead("/v1/models", "/get_model_info", "/model_info", "/api/show", "/api/tags", "/tokenizer_info"),
    *_instead("/healthz", "/", "/health_generate", "/ready", "/readyz"),
    *_instead("/metrics", "/load", "/v1/loads"),
    *_refused("a WebSocket cannot be sent to another instance: use /v1/audio/transcriptions", "/v1/realtime"),
    *_refused(
        "it is one half of a request that Weir sends whole",
        *("/v1/chat/completions/render", "/v1/chat/completions/derender", "/v1/completions/render"),
        *("/v1/completions/derender", "/v1/responses/render", "/v1/messages/render", "/cohere/v2/chat/render"),
        *("/parse_function_call", "/separate_reasoning"),
    ),
    # Paths that an operator calls on one engine
    *_refused(
        _STEERS,
        *("/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/load_lora_adapter", "/unload_lora_adapter"),
        *("/load_lora_adapter_from_tensors", "/sleep", "/wake_up", "/is_sleeping", "/pause", "/resume", "/is_paused"),
        *("/pause_generation", "/continue_generation", "/scale_elastic_ep", "/is_scaling_elastic_ep"),
        *("/pd_role_switch", "/abort_request", "/abort_requests", "/inference/v1/abort_requests", "/slow_down"),
        *("/reset_prefix_cache", "/reset_mm_cache", "/reset_encoder_cache", "/flush_cache", "/freeze_gc"),
        *("/release_kv_cache_memory", "/release_memory_occupation", "/resume_memory_occupation"),
        *("/init_weight_transfer_engine", "/shutdown_weight_transfer_engine", "/start_weight_update"),
        *("/start_draft_weight_update", "/update_weights", "/finish_weight_update", "/update_weight_version"),
        *("/begin_weight_update", "/end_weight_update", "/update_weights_from_disk", "/update_weights_from_ipc"),
        *("/update_weights_from_distributed", "/update_weights_from_tensor", "/init_weights_update_group"),
        *("/destroy_weights_update_group", "/init_weights_send_group_for_remote_instance"),
        *("/send_weights_to_remote_instance", "/get_weights_by_name", "/weight_checker", "/weights_checker"),
        *("/hicache/storage-backend", "/hicache/storage-backend/clear", "/set_internal_state", "/set_trace_level"),
        *("/configure_logging", "/add_external_corpus", "/remove_external_corpus", "/list_external_corpora"),
        *("/open_session", "/close_session", "/fault_tolerance/apply", "/start_profile", "/stop_profile"),
        *("/start_expert_distribution_record", "/stop_expert_distribution_record", "/collective_rpc"),
        *("/dump_expert_distribution_record", "/dumper/{method}"),
    ),
    *_refused(
        _INSIDE,
        *("/server_info", "/get_server_info", "/kv_event_sources", "/get_world_size", "/weight_info"),
        *("/fault_tolerance/status", "/get_hicache_l3_cache_layout", "/remote_instance_transfer_engine_info"),
        *("/get_remote_instance_transfer_engine_info", "/get_transfer_engine_info", "/register_transfer_engine_info"),
    ),
    *_refused(_PAGES, "/docs", "/docs/oauth2-redirect", "/redoc", "/openapi.json"),
)

_EXACT = {row.path: row for row in API_PATHS if "{" not in row.path}


def _pattern(path: str) -> "re.Pattern[str]":
    parts = re.split(r"(\{\w+(?:\.\.\.)?\})", path)
    return re.compile("".join(_part(part) for part in parts))


def _part(part: str) -> str:
    if not part.startswith("{"):
        return re.escape(part)
    return ".+" if part.endswith("...}") else "[^/]+"


_PATTERNS = [(_pattern(row.path), row) for row in API_PATHS if "{" in row.path]


def find(path: str) -> ApiPath | None:
    """Return the row of a request's path; None if it is not served."""
    return _EXACT.get(path) or next((row for pattern, row in _PATTERNS if pattern.fullmatch(path)), None)


def _those(rows: list[ApiPath]) -> tuple[str, ...]:
    return tuple(row.path for row in rows)


_ROUTED = [row for row in API_PATHS if row.handling is Handling.ROUTED]
ROUTED = frozenset((method, row.path) for row in _ROUTED for method in row.methods)
LIMITS = {row.path: row.limits for row in _ROUTED if row.limits}
UNCOMPUTED = _those([row for row in _ROUTED if not row.computed])
WITH_FILES = _those([row for row in _ROUTED if row.takes_files])
MEDIA = _those([row for row in _ROUTED if row.media])
IMAGES = frozenset(path for path in MEDIA if path.startswith("/v1/images/"))
CLASSLESS = frozenset(row.path for row in _ROUTED if row.classless)
BATCHED = _those([row for row in _ROUTED if row.batched])
SERVED = _those([row for row in API_PATHS if row.handling is not Handling.REFUSED])

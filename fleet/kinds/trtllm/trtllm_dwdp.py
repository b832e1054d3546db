"""DWDP groups of the `trtllm` kind: their layout, and the reasons why a group cannot be built."""

from typing import TYPE_CHECKING

from fleet.engine.dwdp.layout import ExpertLayout, LayoutError, layout
from fleet.kinds.kind import Launch
from fleet.kinds.serving import BOTH, DECODE, PREFILL, own_role, role_of
from fleet.systems.dwdp.known_models import experts_of
from router.contract.values.json_value import JsonObject

if TYPE_CHECKING:
    from fleet.kinds.trtllm.trtllm import TrtllmSpec

TOTAL = "dwdp_total_experts"
_OPTIONS = {"ranks": "dwdp_size", "local": "dwdp_experts", "prefetch": "dwdp_prefetch"}


def shares_experts(spec: "TrtllmSpec", launch: Launch) -> bool:
    """Return whether GPUs prefetch experts: those of its group in a context server, its own in another server."""
    return spec.dwdp_size > 1 and own_role(spec, launch) != DECODE


def group(spec: "TrtllmSpec", ordinal: int) -> tuple[int, ...]:
    """Return the ordinals of a group. Each server copies experts from all others, so a missing server stops all."""
    if spec.dwdp_size == 1 or role_of(spec.role, spec.prefill_instances, ordinal) != PREFILL:
        return ()
    first = ordinal - ordinal % spec.dwdp_size
    return tuple(range(first, first + spec.dwdp_size))


def layout_of(spec: "TrtllmSpec", model: str) -> ExpertLayout | None:
    """Return the layout of experts; None if the model's number of experts is unknown. Raise LayoutError."""
    total = spec.dwdp_total_experts or experts_of(spec.model or model)
    return layout(total, spec.dwdp_size, spec.dwdp_experts, spec.dwdp_prefetch) if total else None


def _built(spec: "TrtllmSpec", model: str) -> ExpertLayout | None:
    """Return the layout; None for options that are now refused, but that a stored pool may still have."""
    try:
        return layout_of(spec, model)
    except LayoutError:
        return None


def config(spec: "TrtllmSpec", launch: Launch) -> JsonObject:
    """Return TensorRT-LLM's `dwdp_config`."""
    group = _built(spec, launch.model)
    return {
        "dwdp_size": spec.dwdp_size,
        "num_groups": spec.dwdp_groups,
        "num_experts_per_worker": group.local if group else spec.dwdp_experts,
        "num_prefetch_experts": group.prefetch if group else spec.dwdp_prefetch,
        "contention_opt": spec.dwdp_contention_opt,
    }


def refuse(spec: "TrtllmSpec") -> dict[str, str]:
    if spec.dwdp_size == 1:
        return {}
    if spec.role == DECODE and not spec.prefill_instances:
        return {"dwdp_size": "is for context servers, or servers that do both: set another role"}
    if spec.chunked_prefill:
        return {"dwdp_size": "does not work with chunked_prefill"}
    if spec.role == BOTH and not spec.prefill_instances:
        return _refuse_whole(spec)
    option = (
        "tensor_parallel" if spec.role == PREFILL and not spec.prefill_tensor_parallel else "prefill_tensor_parallel"
    )
    if (getattr(spec, option) or 1) > 1:
        return {option: "must be 1 with DWDP: each GPU is a context server"}
    servers = spec.dwdp_size * spec.dwdp_groups
    if spec.prefill_instances and spec.prefill_instances != servers:
        return {"prefill_instances": f"must be dwdp_size x dwdp_groups = {servers}: every context server is in a group"}
    return {}


def _refuse_whole(spec: "TrtllmSpec") -> dict[str, str]:
    """Return the conflicting options of servers that prefill and decode, where the ranks of a server form the group
    (TensorRT-LLM 1.4)."""
    if not spec.attention_dp:
        return {"dwdp_size": "needs attention_dp without context servers: each GPU serves its own requests"}
    ranks = spec.dwdp_size * spec.dwdp_groups
    if spec.tensor_parallel != ranks:
        return {"tensor_parallel": f"must be dwdp_size x dwdp_groups = {ranks} without context servers"}
    return {}


def refuse_for(spec: "TrtllmSpec", model: str) -> dict[str, str]:
    """Return the options that conflict with the number of experts in the pool's model; empty if the model is not known
    yet."""
    if spec.dwdp_size == 1:
        return {}
    try:
        group = layout_of(spec, model)
    except LayoutError as error:
        return {_OPTIONS[error.field]: str(error)}
    if group is None and (model or spec.model):
        return {TOTAL: f"must be set: the experts of a layer of {spec.model or model} are not known"}
    return {}


def facts(spec: "TrtllmSpec", launch: Launch) -> tuple[tuple[str, str], ...]:
    """Return (label, text) about one context server, for display."""
    experts = _built(spec, launch.model) if group(spec, launch.ordinal) else None
    if experts is None:
        return ()
    number, rank = divmod(launch.ordinal, experts.ranks)
    copied = ", ".join(f"{_text(part)} from rank {peer}" for peer, part in sorted(experts.fetched(rank).items()))
    return (
        ("DWDP", f"rank {rank} of {experts.ranks} in group {number}"),
        ("Experts held", f"{_text(experts.held(rank))} of {experts.experts} in a layer"),
        ("Experts copied", copied),
    )


def _text(experts: range) -> str:
    return f"{experts[0]}–{experts[-1]}"

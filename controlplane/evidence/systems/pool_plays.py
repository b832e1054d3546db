"""Comparisons that follow from the inputs on the pages of Tutti and Neuron, on a pool of simulated engines."""

from collections.abc import Iterator, Sequence
from typing import Any

from controlplane.evidence.experiments.matrix.presets import disaggregated, tiers
from controlplane.evidence.systems.system import Play, Playable, PoolFacts
from controlplane.evidence.traces import prompts_8k, questions
from fleet.engine.tiers.devices import DRAM, DRIVES, LAYER_PASS_S, SSD_TUTTI
from fleet.engine.tiers.loading import ATTENTION
from fleet.kinds.options.option import options_of
from fleet.systems.tiers.benchmarks import load_of
from router.contract.values.json_value import Json, JsonObject

LOADS = (0.05, 20.0)  # factors accepted by an experiment
TIERS_S, NEURON_S = 2_400, 300  # duration of the trace, s
# Values of Tutti's page for which engines have no option
OF_THE_PAGE = (
    *("attention", "floor_s", "free_gb", "api_s", "tokenize_us", "mode", "write_gb_s", "setup_s"),
    *("layer_setup_ms", "object_us", "staging_share", "io_percent", "contention", "read_share", "decode_share"),
    "backlog_share",
)
HBM = "hbm"  # the page's tier without a medium below HBM
NEEDS = "It takes a pool of the kind sim, as examples/fleet-demo.yaml has, and arrivals that an experiment can play."


def _body(name: str, question: str, pool: PoolFacts, trace: str, load: float, arms: list[Json]) -> JsonObject:
    return {
        "name": name,
        "question": question,
        "pool": pool.name,
        "trace": trace,
        "mode": "twin",
        "load_factor": round(load, 3),
        "arms": arms,
    }


def _sizes(inputs: Any) -> JsonObject:
    """Return the options of all tiers."""
    sizes: JsonObject = {"dram_gb": inputs.dram_gb, "ssd_gb": inputs.ssd_gb}
    sizes |= {"dram_gb_per_s": inputs.dram_read_gb_s, "dram_layer_ms": inputs.dram_layer_ms}
    if inputs.floor_s:
        sizes["tier_law"] = "published"
    return {"block_size": inputs.object_tokens, **sizes}


def _of_tier(inputs: Any) -> JsonObject:
    """Return the options of the page's tier alone: the given rate of its medium, and the given commands."""
    own: JsonObject = {}
    if inputs.read_gb_s and inputs.tier == DRAM.name:
        own["dram_gb_per_s"] = inputs.read_gb_s
    elif inputs.read_gb_s and inputs.tier != HBM:
        own["ssd_read_gb_s"] = inputs.read_gb_s / DRIVES
    if inputs.metadata == "prp" and inputs.tier == SSD_TUTTI.name:
        own["ssd_metadata"] = inputs.metadata
    return own


def _kept(inputs: Any) -> Iterator[str]:
    """Yield the values that engines do not accept; the defaults, or those of `tier_law`, apply instead."""
    law = {"attention": ATTENTION, "floor_s": LAYER_PASS_S} if inputs.floor_s else {"attention": 1.0}
    own = [one for one in options_of(type(inputs)) if one.name in OF_THE_PAGE]
    titles = [one.title for one in own if getattr(inputs, one.name) != law.get(one.name, one.default)]
    if titles:
        yield f"Engines keep their own: {', '.join(titles)}."


def tier_plays(inputs: Any, pools: Sequence[PoolFacts]) -> Iterator[Play]:
    """Yield five tiers: under the page's load on a separate engine, and in a whole pool in which documents are read
    again."""
    sizes = _sizes(inputs)
    loads = "if_faster" if inputs.picks_faster else "always"
    alone: JsonObject = {"gpu": inputs.gpu, "model_profile": inputs.model, "tp": int(inputs.tp), "tier_load": loads}
    if inputs.hbm_tokens:
        alone["kv_blocks"] = inputs.hbm_tokens // inputs.object_tokens
    load = load_of(inputs)
    question = " ".join(("What does each tier below HBM change?", *_kept(inputs)))
    for pool in pools:
        if pool.kind != "sim":
            continue
        for trace, of in questions.LOADS.items():
            if of == load and LOADS[0] <= inputs.rate / questions.PER_S <= LOADS[1]:
                title = f"{trace} at {inputs.rate:g} requests/s on one engine, five tiers"
                arms = tiers({"replicas": 1}, {**alone, **sizes}, inputs.tier, _of_tier(inputs))
                body = _body(title, question, pool, trace, inputs.rate / questions.PER_S, arms)
                yield Play(title, pool.name, body)
        title = "Documents that are read again, twice their rate, five tiers"
        arms = tiers({}, sizes, inputs.tier, _of_tier(inputs))
        body = _body(title, question, pool, "documents-reread", 2.0, arms) | {"duration_s": TIERS_S}
        yield Play(title, pool.name, body)


def neuron_plays(inputs: Any, pools: Sequence[PoolFacts]) -> Iterator[Play]:
    """Yield one pair, the given workers, and as many engines that do both, in two ways; GPU and model are the
    pool's."""
    load = inputs.rate / prompts_8k.PER_S
    sides: JsonObject = {
        "kv_gb_per_s": inputs.transfer_gb_per_s,
        "kv_busy_gb_per_s": inputs.transfer_gb_per_s,
        "kv_setup_ms": inputs.setup_ms,
        "prefill_max_num_seqs": inputs.prefill_batch,
    }
    arms = disaggregated(inputs.prefills, inputs.decodes, sides, {"max_num_seqs": inputs.decode_batch})
    if inputs.prefills == inputs.decodes == 1:
        del arms[1]  # equal to the first
    workers = f"{inputs.prefills}P{inputs.decodes}D"
    title = f"Prompts of 8K at {inputs.rate:g} requests/s: {workers}, and as many engines that do both"
    question = "What do prefill and decode workers give and take against engines that do both?"
    for pool in pools:
        if pool.kind == "sim" and LOADS[0] <= load <= LOADS[1]:
            body = _body(title, question, pool, "prompts-8k", load, arms) | {"duration_s": NEURON_S}
            yield Play(title, pool.name, body)


TIERS_PLAYABLE = Playable("Play the five tiers in the twin", tier_plays, NEEDS)
NEURON_PLAYABLE = Playable("Play the workers in the twin", neuron_plays, NEEDS)

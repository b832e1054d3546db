"""Neuron's disaggregated inference: prefill workers beside decode workers, and the gain for answers."""

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean

from controlplane.evidence.systems import neuron_play as play
from controlplane.evidence.systems.neuron_play import TRAFFIC, Reading, readings
from controlplane.evidence.systems.pool_plays import NEURON_PLAYABLE
from controlplane.evidence.systems.system import Answer, Axis, Chart, Fact, Figure, Group, Link, Series, System, Table
from controlplane.evidence.twin.simulation.types import SimulatedUse, TwinOutcome
from fleet.counted import percent
from fleet.engine.engine_model import TransferLink
from fleet.engine.profiles import MODELS as SIZES
from fleet.engine.scheduler import VLLM
from fleet.kinds.options.option import option
from fleet.systems import neuron as model
from fleet.systems.neuron import Balance, Workload

GUIDE = "Neuron: Disaggregated Inference [BETA]"
MS = 1e3
SCALED_RATE = 3.2  # requests per second of the guide's example: four fifths of what 1P2D serves

SPLITS = (8, 16, 32, 64)  # tensor parallel sizes of decoders that together use as many devices as the last one


@dataclass(frozen=True)
class NeuronInputs:
    prefills: int = option(1, "Prefill workers", "x of xPyD.", range=(1, 16))
    decodes: int = option(1, "Decode workers", "y of xPyD.", range=(1, 16))
    prompt_tokens: int = option(
        2_500, "Prompt", "Of every request; no prefix is cached.", unit="tokens", range=(16, 32_768)
    )
    output_tokens: int = option(155, "Answer", "Of every request.", unit="tokens", range=(2, 4_096))
    rate: float = option(1.8, "Requests", "Offered, at random intervals.", unit="1/s", range=(0.01, 1_000))
    decode_batch: int = option(8, "Batch of a decode worker", "B: running and transferring requests.", range=(1, 64))
    prefill_batch: int = option(
        8, "Batch of a prefill worker", "One is computed; the others await their transfer.", range=(1, 64)
    )
    itl_limit_ms: float = option(50.0, "ITL limit", "For the largest batch within it.", unit="ms", range=(0.1, 10_000))
    device: str = option("trn1", "Device", "Peaks of one chip or GPU.", choices=model.DEVICES)
    model: str = option("Llama-3.1-8B", "Model", "Sizes, and efficiencies fitted on H100.", choices=model.MODELS)
    prefill_parallel: int = option(
        1, "Devices of a prefill worker", "Tensor parallel; each side has its own.", range=(1, 64)
    )
    decode_parallel: int = option(
        1, "Devices of a decode worker", "Tensor parallel; each side has its own.", range=(1, 64)
    )
    transfer_gb_per_s: float = option(
        6.25,
        "Transfer rate",
        "EFA, of one sender; its transfers share it. trn1.32xlarge: 100 GB/s over 16 chips.",
        unit="GB/s",
        range=(0.01, 1_000),
    )
    setup_ms: float = option(5.0, "Setup of a transfer", "However small; assumed.", unit="ms", range=(0, 1_000))
    poll_ms: float = option(1.0, "Poll", "Between two lookup_all of a decoder; assumed.", unit="ms", range=(0, 1_000))


def play_inputs(inputs: NeuronInputs) -> play.Setup:
    return play.Setup(
        prefill_law=model.device_law(inputs.device, inputs.model, inputs.prefill_parallel),
        decode_law=model.device_law(inputs.device, inputs.model, inputs.decode_parallel),
        work=Workload(inputs.prompt_tokens, inputs.output_tokens),
        prefill_batch=inputs.prefill_batch,
        decode_batch=inputs.decode_batch,
        bytes_per_token=SIZES[inputs.model].kv_bytes_per_token,
        link=TransferLink(
            setup_s=inputs.setup_ms / MS,
            idle_bytes_per_s=inputs.transfer_gb_per_s * 1e9,
            busy_bytes_per_s=inputs.transfer_gb_per_s * 1e9,
        ),
        poll_s=inputs.poll_ms / MS,
    )


def compute(inputs: NeuronInputs) -> Answer:
    setup = play_inputs(inputs)
    balance, best = _balances(inputs, setup)
    prefill_s = model.prefill_s(setup.prefill_law, setup.work)
    transfer_s = setup.link.seconds(round(inputs.prompt_tokens * setup.bytes_per_token), 1, busy=False)
    runs = _Runs(inputs, setup)
    stall = model.prefill_stall(setup.decode_law, inputs.decode_batch, setup.work)
    slot_wait_s = runs.slot_wait_s(transfer_s)
    facts = (
        Fact("Prefill side", balance.prefills * balance.prefill_rate, "prompts/s", f"T_pf {prefill_s * MS:,.4g} ms"),
        Fact("Decode side", balance.decodes * balance.decode_rate, "answers/s", f"step {runs.step_s * MS:,.3g} ms"),
        Fact("Balance", f"{best.prefills}P{best.decodes}D", "", "x : y = μ_d : μ_p, in small numbers"),
        Fact("First token, p90", runs.first_ms(runs.apart), "ms", "played at the offered rate"),
        Fact("Second token, p90", runs.second_ms(runs.apart), "ms", "after poll, slot, transfer and one step"),
        Fact("Prefill blocked by full decoders", runs.blocked_s, "s", f"of {runs.apart.virtual_s:,.0f} s played"),
        Fact("Interruptions per answer, continuous batching", runs.interruptions, "", f"B − 1 = {stall.interruptions}"),
        Fact("Interruptions per answer, disaggregated", runs.interruptions_apart, "", "played"),
        Fact("Transfers per answer, disaggregated", runs.transfers, "", "at any batch"),
        Fact(f"Largest batch within {inputs.itl_limit_ms:g} ms", runs.largest(True), "", "disaggregated"),
        Fact("The same, continuous batching", runs.largest(False), "", "ITL = step + (B − 1)·T_pf/answer"),
        Fact(
            "Requests that a prefill worker's slots hold",
            model.held_rate(inputs.prefill_batch, transfer_s, slot_wait_s),
            "1/s",
            "λ·(T_x + slot wait) ≤ B_p − 1",
        ),
    )
    charts = (_balance_chart(inputs, balance), _itl_chart(setup), _slots_chart(runs.apart))
    return Answer(
        _verdict(balance, best),
        facts,
        charts,
        (_token_table(runs), _doubled_table(runs), _scaling_table(readings(setup, inputs.rate)), _copies_table(inputs)),
        _cautions(inputs, balance),
    )


def _balances(inputs: NeuronInputs, setup: play.Setup) -> tuple[Balance, Balance]:
    """Return the split as given, and the balanced one."""
    prefill = model.prefill_rate(setup.prefill_law, setup.work)
    decode = model.decode_rate(setup.decode_law, inputs.decode_batch, setup.work)
    return Balance(prefill, decode, inputs.prefills, inputs.decodes), model.balanced(prefill, decode)


def _verdict(balance: Balance, best: Balance) -> str:
    here = f"{balance.prefills}P{balance.decodes}D serves {balance.rate:,.3g} requests a second at most"
    if balance.idle_share < 0.05:
        return f"{here}, and both sides are in balance."
    other = "decode" if balance.slower == "prefill" else "prefill"
    return (
        f"{here}: {balance.slower} is the slower side and {percent(balance.idle_share)} of {other} stays idle; "
        f"{best.prefills}P{best.decodes}D would be in balance, at {best.rate:,.3g}."
    )


class _Runs:
    """Simulates the given workers, and as many devices with continuous batching, at the offered rate."""

    def __init__(self, inputs: NeuronInputs, setup: play.Setup) -> None:
        devices = inputs.prefills * inputs.prefill_parallel + inputs.decodes * inputs.decode_parallel
        self._inputs, self._setup = inputs, setup
        self.instances = max(devices // inputs.decode_parallel, 1)
        self.apart, self.together, self.chunked = self._play(setup)
        self.step_s = model.step_s(setup.decode_law, inputs.decode_batch, setup.work)
        batch = inputs.decode_batch
        self.interruptions = play.interruptions(play.closed_run(setup, play.both(setup, 1), batch))
        apart = play.closed_run(setup, play.pairs(setup, 1, 1), batch)
        self.interruptions_apart, self.transfers = play.interruptions(apart), play.transfers(apart)
        self.blocked_s = sum(use.blocked_s for use in play.of_role(self.apart, "prefill"))

    def _play(self, setup: play.Setup) -> tuple[TwinOutcome, TwinOutcome, TwinOutcome]:
        inputs, count = self._inputs, self.instances
        apart = play.pairs(setup, inputs.prefills, inputs.decodes)
        fleets = apart, play.both(setup, count), play.both(setup, count, VLLM)
        first, second, third = (play.open_run(setup, fleet, inputs.rate) for fleet in fleets)
        return first, second, third

    def doubled(self) -> tuple[TwinOutcome, TwinOutcome, TwinOutcome]:
        return self._play(self._setup.doubled())

    def largest(self, disaggregated: bool) -> int:
        law, most = self._setup.decode_law, 1024
        limit_s = self._inputs.itl_limit_ms / MS
        return model.largest_batch(limit_s, law, self._setup.work, most, disaggregated=disaggregated)

    def slot_wait_s(self, transfer_s: float) -> float:
        """Return the mean time from the end of the prefill to the second token, without poll, transfer and step."""
        gaps = [one.second_s - one.ttft_s for one in play.steady(self.apart) if one.second_s and one.ttft_s]
        return max(fmean(gaps) - transfer_s - self.step_s, 0.0)

    @staticmethod
    def first_ms(outcome: TwinOutcome) -> float:
        return play.p90([one.ttft_s * MS for one in play.steady(outcome) if one.ttft_s is not None])

    @staticmethod
    def second_ms(outcome: TwinOutcome) -> float:
        return play.p90([one.second_s * MS for one in play.steady(outcome) if one.second_s is not None])

    @staticmethod
    def itl_ms(outcome: TwinOutcome) -> float:
        return play.p90([play.itl_s(one) * MS for one in play.steady(outcome)])


def _balance_chart(inputs: NeuronInputs, balance: Balance) -> Chart:
    each = inputs.prefill_parallel + inputs.decode_parallel
    given = inputs.prefills * inputs.prefill_parallel + inputs.decodes * inputs.decode_parallel
    devices = max(given, 4 * each)  # fewer devices allow hardly any other split
    splits = list(balance.splits(devices, inputs.prefill_parallel, inputs.decode_parallel))
    best = max(splits, key=lambda one: one.rate)
    x = tuple(one.prefills for one in splits)
    return Chart(
        f"Requests a second of {devices} devices",
        Axis("Prefill workers"),
        Axis("Rate", "1/s"),
        (
            Series("prefill side, x·μ_p", x, tuple(one.prefills * one.prefill_rate for one in splits)),
            Series("decode side, y·μ_d", x, tuple(one.decodes * one.decode_rate for one in splits)),
            Series("served", x, tuple(one.rate for one in splits)),
            Series(f"best: {best.prefills}P{best.decodes}D", (best.prefills, best.prefills), (0.0, best.rate), True),
        ),
        note="Decode workers take the devices that prefill workers leave.",
    )


def _itl_chart(setup: play.Setup) -> Chart:
    batches = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64)
    stalls = [model.prefill_stall(setup.decode_law, batch, setup.work) for batch in batches]
    steps = tuple(model.step_s(setup.decode_law, batch, setup.work) * MS for batch in batches)
    return Chart(
        "Time between tokens by batch",
        Axis("Batch"),
        Axis("ITL", "ms", log=True),
        (
            Series("continuous batching, longest", batches, tuple(one.longest_s * MS for one in stalls)),
            Series("continuous batching, mean", batches, tuple(one.itl_s * MS for one in stalls)),
            Series("disaggregated, mean and longest", batches, steps),
        ),
        note="Disaggregated, the second token is later by the transfer.",
    )


def _slots_chart(outcome: TwinOutcome) -> Chart:
    senders, receivers = play.of_role(outcome, "prefill"), play.of_role(outcome, "decode")
    seconds = range(len(receivers[0].running))
    shown = tuple(seconds[:: max(len(seconds) // 60, 1)])

    def line(name: str, uses: list[SimulatedUse], field: str) -> Series:
        return Series(name, shown, tuple(float(sum(getattr(use, field)[at] for use in uses)) for at in shown))

    return Chart(
        "Requests by state, played",
        Axis("Time", "s"),
        Axis("Requests"),
        (
            line("prefill: waiting", senders, "waiting"),
            line("prefill: running", senders, "running"),
            line("prefill: transferring", senders, "transferring"),
            line("decode: waiting or transferring", receivers, "waiting"),
            line("decode: running", receivers, "running"),
        ),
        note="A request is counted on both sides until its transfer ends.",
    )


def _token_table(runs: _Runs) -> Table:
    count = f"{runs.instances} × "
    names = f"{count}continuous batching", f"{count}chunked prefill", "disaggregated"
    rows = [
        (name, runs.first_ms(run), runs.second_ms(run), runs.itl_ms(run), play.answers_per_s(run))
        for name, run in zip(names, (runs.together, runs.chunked, runs.apart), strict=True)
    ]
    columns = ("", "First token, p90, ms", "Second token, p90, ms", "ITL, p90, ms", "Answers/s")
    note = (
        "Workers are chosen in turn, as by Neuron's proxy (round_robin_pd). That proxy does not remove a dead worker, "
        "and what it sends there hangs; Weir leaves it out. Continuous batching takes prompts first and whole; chunked "
        f"prefill computes up to {play.CHUNK:,} tokens of them beside the answers of a step."
    )
    return Table("Played at the offered rate, on equal devices", columns, tuple(rows), note)


def _doubled_table(runs: _Runs) -> Table:
    longer = runs.doubled()
    rows = []
    for name, before, after in zip(
        ("disaggregated", "continuous batching", "chunked prefill"),
        (runs.apart, runs.together, runs.chunked),
        longer,
        strict=True,
    ):
        rows.append((name, runs.first_ms(before), runs.first_ms(after), runs.itl_ms(before), runs.itl_ms(after)))
    columns = ("", "First token", "with prompts doubled", "ITL", "with prompts doubled")
    note = (
        "p90 in ms. Continuous batching passes longer prompts on to every answer; disaggregated, they queue before "
        "the prefill."
    )
    return Table("Prompts of twice the length", columns, tuple(rows), note)


def _scaling_table(played: Iterable[Reading]) -> Table:
    rows = tuple(
        (
            reading.traffic,
            f"{reading.prefills}P{reading.decodes}D",
            100 * reading.prefill_busy,
            100 * reading.decode_busy,
            reading.point.answers_per_s,
            reading.ttft_ms,
            "{}P{}D".format(*reading.advised) if reading.advised else "stays",
        )
        for reading in played
    )
    columns = ("Traffic", "Workers", "Prefill busy, %", "Decode busy, %", "Answers/s", "First token, p90, ms", "Then")
    note = (
        "From 1P1D on, by the rules of the autoscaler: a side grows while it is full and the other is not, and gives a "
        "worker back that its load does not need. A decoder is as full as its slots or its KV. With prefill_max the "
        "autoscaler of a pool does this for engines."
    )
    return Table("Scaled while traffic changes, played", columns, rows, note)


def _copies_table(inputs: NeuronInputs) -> Table:
    rows = []
    for parallel in SPLITS:
        workers, copies = SPLITS[-1] // parallel, model.kv_copies(inputs.model, parallel)
        held = workers * model.kv_tokens(inputs.device, inputs.model, parallel) / 1e3
        rows.append((f"DP {workers} × TP {parallel}", copies, held))
    note = (
        "Beyond the model's KV heads, tensor parallel repeats KV; data parallel repeats the weights. "
        f"90 % of the memory of {SPLITS[-1]} devices {inputs.device}; activations are left out."
    )
    columns = ("Decoders", "Copies of KV in a worker", "KV held by all, thousand tokens")
    return Table(f"{SPLITS[-1]} devices as decoders", columns, tuple(rows), note)


def _cautions(inputs: NeuronInputs, balance: Balance) -> tuple[str, ...]:
    found = {
        f"{inputs.device}: peaks as published and efficiencies of H100; no step was measured on it": inputs.device
        in model.CHIPS,
        f"{inputs.rate:g} requests a second are more than {balance.rate:,.3g}: queues grow for as long as they come": (
            inputs.rate > balance.rate
        ),
        "the poll and the setup of a transfer are assumed: the guide names no times": True,
    }
    return tuple(text for text, holds in found.items() if holds)


def figures() -> tuple[Figure, ...]:
    guide = play.guide()
    eight = play.interruptions(play.closed_run(guide, play.both(guide, 1), 8))
    apart = play.closed_run(guide, play.pairs(guide, 1, 1), 8)
    one, two = (play.answers_per_s(play.open_run(guide, play.pairs(guide, 1, y), 8.0, 240)) for y in (1, 2))
    scaled = [(one.traffic, one.prefills) for one in readings(guide, SCALED_RATE)]
    before, after = (max(workers for traffic, workers in scaled if traffic == kind) for kind in TRAFFIC[:2])
    rates = "4 prefills and 2 answers a second are inputs, here and there"
    return (
        Figure("Interruptions per answer, batch of 8, continuous batching", 7, eight, "", "predicted", GUIDE, "played"),
        Figure(
            "Interruptions per answer, disaggregated",
            None,
            play.interruptions(apart),
            "",
            "predicted",
            GUIDE,
            "no number",
        ),
        Figure("Transfers per answer, disaggregated", 1, play.transfers(apart), "", "predicted", GUIDE, "played"),
        Figure(
            "Prefill workers when prompts double, by the autoscaler's rules",
            2,
            after / before,
            "times",
            "predicted",
            GUIDE,
            f"played at {SCALED_RATE:g} requests a second",
        ),
        Figure("Answers of 1P1D", 2, one, "1/s", "arithmetic", GUIDE, rates),
        Figure("Answers of 1P2D", None, two, "1/s", "arithmetic", GUIDE, f"no number: “balanced”; {rates}"),
    )


NEURON = System(
    "neuron",
    "Neuron disaggregated inference",
    "Prefill workers compute one prompt at a time; decode workers pull the KV while they decode. How many prefill and "
    "decode workers, and what is saved?",
    NeuronInputs,
    {
        "1P1D, the guide's rates": {},
        "1P2D": {"decodes": 2, "rate": 3.6},
        "3P1D, long prompts": {"prefills": 3, "prompt_tokens": 8_000, "output_tokens": 100, "rate": 2.0},
        "2P2D, trn2 of four chips": {
            "prefills": 2, "decodes": 2, "device": "trn2", "prefill_parallel": 4, "decode_parallel": 4,
            "decode_batch": 32, "rate": 20.0, "transfer_gb_per_s": 100.0,
        },
        "One chip to prefill, four to decode": {
            "device": "trn2", "decode_parallel": 4, "decode_batch": 32, "rate": 8.0,
        },
    },
    compute,
    figures,
    groups=(
        Group("Devices and model", ("device", "model", "prefill_parallel", "decode_parallel")),
        Group("Transfers", ("transfer_gb_per_s", "setup_ms", "poll_ms")),
    ),
    links=(Link("Experiments in the twin", "/experiments/"),),
    playable=NEURON_PLAYABLE,
)  # fmt: skip

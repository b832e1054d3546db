"""Creates profiles: checks the question, reads the tables in a child process, and records the user in the audit log."""

import threading
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
from typing_extensions import TypedDict

from controlplane.people.audit.services import Actor, record
from fleet.engine.profiles import GPUS, UnknownProfile, profile_by
from fleet.engine.tables import EXPECTED, Tables, catalogue
from fleet.profiling.fit import Layout
from fleet.profiling.make import NotMade, from_tables
from fleet.services import NotPossible
from router.contract.values.problem import invalid

MODEL = r"^[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*$"
Quantization = Literal["", "bf16", "fp8", "fp8_block", "nvfp4", "int4"]
KvDtype = Literal["", "bf16", "fp8"]
_FORMATS = {"bf16": "bfloat16", "int4": "int4_wo"}  # names in the library; other formats have the same name there
BUSY = "another profile is being made: try again in some seconds"

_one = threading.Lock()  # one child process at a time, because each takes 600 MB


class Expected(TypedDict):
    """The expected error against warm engines, by the model's family. 0.11 means 11 %."""

    tpot: float
    e2e: float
    ttft_mean: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedProfile:
    model: str
    gpu: str
    tp: int = 1
    dp: int = 1
    ep: int = 1
    quantization: str = ""
    kv_dtype: str = ""
    config: dict[str, Any] | None = None


def make(asked: AskedProfile, actor: Actor) -> Tables:
    """Create a profile, which takes some seconds. Raise InvalidInput for impossible or unknown values, NotPossible
    without the library or while another profile is being created."""
    layout = _layout(asked)
    if not _one.acquire(blocking=False):
        raise NotPossible(BUSY)
    try:
        made = from_tables(layout)
    except NotMade as error:
        raise NotPossible(str(error)) from None
    except LookupError as error:
        raise invalid("model", asked.model, str(error)) from None
    finally:
        _one.release()
    try:
        profile_by(made)
    except UnknownProfile as error:
        raise invalid("tp", asked.tp, str(error)) from None
    kept = {"gpu": made.gpu, "layout": made.layout, "formats": made.formats, "source": made.source}
    record(actor, "profile.make", made.model, after=kept)
    return made


def _layout(asked: AskedProfile) -> Layout:
    if asked.gpu not in GPUS:
        raise invalid("gpu", asked.gpu, "unknown", ", ".join(GPUS))
    if asked.ep not in (1, asked.tp * asked.dp):
        dealt = asked.tp * asked.dp
        raise invalid("ep", asked.ep, "must be 1 or tp x dp, as vLLM deals experts among all of them", f"1, {dealt}")
    mode = _FORMATS.get(asked.quantization, asked.quantization)
    suffix = f"-{asked.quantization.upper()}" if asked.quantization else ""
    return Layout(
        model=asked.model,
        gpu=asked.gpu,
        tp=asked.tp,
        dp=asked.dp,
        ep=asked.ep,
        gemm=mode,
        moe=mode,
        kv=_FORMATS.get(asked.kv_dtype, asked.kv_dtype),
        name=asked.model.rpartition("/")[2] + suffix,
        config=asked.config,
    )


def found(gpu: str, model: str) -> list[Tables]:
    """Return profiles of the catalogue for the GPU whose name, or whose model's name, contains the text."""
    wanted = model.lower()
    return [
        one
        for one in catalogue().values()
        if gpu in ("", one.gpu) and (wanted in one.model.lower() or wanted in one.name.lower())
    ]


def text(tables: Tables) -> str:
    """Return the text for the option `profile`."""
    return msgspec.json.encode(tables).decode()


def shown(tables: Tables) -> dict[str, Any]:
    """Return the facts of a profile, without the points."""
    tpot, e2e, ttft = EXPECTED[tables.family]
    names = ("name", "model", "gpu", "tp", "dp", "ep", "family", "formats", "source", "measured")
    return {
        **{name: getattr(tables, name) for name in (*names, "grid_error", "grid_worst")},
        "expected": Expected(tpot=tpot, e2e=e2e, ttft_mean=ttft),
        "notes": list(tables.notes),
    }

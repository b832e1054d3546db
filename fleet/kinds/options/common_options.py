"""Options shared by several kinds."""

import dataclasses
from typing import Any

from fleet.kinds.options.option import option
from router.contract.installation import VERSION
from router.contract.net import engine_tls
from router.contract.net.engine_key import ALLOWED, is_reference
from router.contract.redis.published import MOST_RANKS
from router.contract.values.fields import Field
from router.contract.values.secret_text import HIDDEN

IMAGE = "image"
WEIR_IMAGE = f"weir:{VERSION}"


def image_option() -> Any:
    return option(None, "Image", "Container image on a Kubernetes node; left out: the node's choice.", kind="text")


def model_option() -> Any:
    return option(None, "Weights", "Folder or hub name of the weights; left out: the pool's model.", kind="text")


def program_option(default: str) -> Any:
    return option(default, "Program", "Name or path; ./… is relative to Weir's installation folder.")


def python_option(environment: str) -> Any:
    return option("python3", "Python", f"Interpreter of {environment}; ./… is relative to Weir's installation folder.")


def arguments_option() -> Any:
    return option((), "Extra arguments", "Appended to the command line unchanged, one word per entry.")


def environment_option() -> Any:
    return option(None, "Environment", "Environment variables of the process; they override Weir's.", kind="map")


def engine_key_option(help: str) -> Any:
    """Declare the option for the engine key. A refused value is never shown, because it may be the key itself."""
    made = Field(
        name="",
        default=None,
        title="Engine key",
        kind="text",
        help=help,
        fits=is_reference,
        words=ALLOWED,
        instead=HIDDEN,
    )
    return dataclasses.field(default=None, metadata={"field": made})


def tls_option() -> Any:
    """Declare the option for TLS files. A refused value is never shown, because it may be a key itself."""
    made = Field(
        name="",
        title="TLS",
        default=None,
        kind="map",
        help="For https:// engines: {authorities: file:/PATH or env:NAME, certificate: …, key: …, name: …}, each "
        "optional; authorities: system for those of the host.",
        fits=engine_tls.is_allowed,
        words=engine_tls.ALLOWED,
        instead=HIDDEN,
    )
    return dataclasses.field(default_factory=dict, metadata={"field": made})


STARTED_WITH_KEY = (
    "Where the key is that the engine asks for, env:NAME or file:/PATH on its node; it is started with it."
)


def data_parallel_size_option(help: str) -> Any:
    return option(1, "Data parallel", help, unit="ranks", range=(1, MOST_RANKS))


def data_parallel_size_local_option() -> Any:
    return option(
        None,
        "Data parallel, local",
        "Ranks of one instance, if several share a group of data_parallel_size (hybrid load balancing); left out: all.",
        unit="ranks",
        range=(1, MOST_RANKS),
    )


def enable_lora_option() -> Any:
    return option(False, "LoRA adapters", "Load and unload adapters while it runs, as the document Models says.")


def max_loras_option() -> Any:
    return option(1, "Adapters in a batch", "Different adapters in one step; with enable_lora.", range=(1, 512))


def max_cpu_loras_option() -> Any:
    return option(
        None,
        "Adapters in memory",
        "Adapters that an instance holds, at least max_loras; left out: max_loras.",
        range=(1, 512),
    )


def adapter_slots(spec: Any) -> int:
    return (spec.max_cpu_loras or spec.max_loras) if spec.enable_lora else 0


def refuse_loras(spec: Any) -> dict[str, str]:
    if spec.max_cpu_loras is not None and spec.max_cpu_loras < spec.max_loras:
        return {"max_cpu_loras": f"must be at least max_loras, {spec.max_loras}"}
    return {}


def prefill_instances_option(title: str = "Prefill instances", help: str = "") -> Any:
    return option(
        0,
        title,
        help or "This many instances, the first of the pool, prefill and the others decode; 0: the pool's role.",
        range=(0, 512),
    )

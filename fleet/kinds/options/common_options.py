"""Options shared by several kinds."""

import dataclasses
from typing import Any

from fleet.kinds.options.option import option
from router.contract.fields import Field
from router.contract.installation import VERSION
from router.contract.net import engine_tls
from router.contract.net.engine_key import ALLOWED, is_reference
from router.contract.redis.published import MOST_RANKS
from router.contract.secret_text import HIDDEN

IMAGE = "image"
WEIR_IMAGE = f"weir:{VERSION}"


def image_option() -> Any:
    return option(
        None, title="Image", kind="text", help="Container image on a Kubernetes node; left out: the node's choice."
    )


def model_option() -> Any:
    return option(
        None, title="Weights", kind="text", help="Folder or hub name of the weights; left out: the pool's model."
    )


def program_option(default: str) -> Any:
    return option(default, title="Program", help="Name or path; ./… is relative to Weir's installation folder.")


def python_option(environment: str) -> Any:
    return option(
        "python3", title="Python", help=f"Interpreter of {environment}; ./… is relative to Weir's installation folder."
    )


def arguments_option() -> Any:
    return option((), title="Extra arguments", help="Appended to the command line unchanged, one word per entry.")


def environment_option() -> Any:
    return option(
        None, title="Environment", kind="map", help="Environment variables of the process; they override Weir's."
    )


def engine_key_option(help: str) -> Any:
    """Declare the option of the engine key. A refused value is not shown: it may be the key itself."""
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
    """Declare the option of the TLS files. A refused value is not shown: it may be a key itself."""
    made = Field(
        name="",
        title="TLS",
        default=None,
        kind="map",
        help="Of https:// engines: {authorities: file:/PATH or env:NAME, certificate: …, key: …, name: …}, each "
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
    return option(1, title="Data parallel", unit="ranks", minimum=1, maximum=MOST_RANKS, help=help)


def data_parallel_size_local_option() -> Any:
    return option(
        None,
        title="Data parallel, local",
        unit="ranks",
        minimum=1,
        maximum=MOST_RANKS,
        help="Of one instance, if several share a group of data_parallel_size (hybrid load balancing); left out: all.",
    )


def enable_lora_option() -> Any:
    return option(
        False, title="LoRA adapters", help="Load and unload adapters while it runs, as the document Models says."
    )


def max_loras_option() -> Any:
    return option(
        1, title="Adapters in a batch", minimum=1, maximum=512, help="Different adapters in one step; with enable_lora."
    )


def max_cpu_loras_option() -> Any:
    return option(
        None,
        title="Adapters in memory",
        minimum=1,
        maximum=512,
        help="Adapters that an instance holds, at least max_loras; left out: max_loras.",
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
        title=title,
        minimum=0,
        maximum=512,
        help=help or "This many instances, the first of the pool, prefill and the others decode; 0: the pool's role.",
    )

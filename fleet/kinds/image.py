"""The option that every kind has which can run in a container."""

from typing import Any

from fleet.kinds.option import option

IMAGE = "image"
WEIR_IMAGE = "weir:0.1.0"


def image_option() -> Any:
    return option(
        None, title="Image", kind="text", help="Of its container, on a Kubernetes node; left out: the node's choice."
    )

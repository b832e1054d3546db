"""An engine as a source of a pool lists it (fleet/discovery). Pure."""

from msgspec import Struct

from router.contract.redis.published import InstanceRole


class ListedEngine(Struct, frozen=True, omit_defaults=True):
    key: str  # the same as long as it is the same engine: a Pod's uid and port, else its URL
    url: str
    name: str = ""  # for people: of its Pod, or its address
    held: str = ""  # why it must get no requests yet; empty: its source says nothing against it
    node: str = ""  # machine of its Pod
    labels: dict[str, str] = {}
    role: InstanceRole | None = None  # by its labels; None: they say nothing
    starts: int = 0  # starts of its container

"""An engine in the list of a pool's source (fleet/discovery). Pure."""

from msgspec import Struct

from router.contract.redis.published import InstanceRole


class ListedEngine(Struct, frozen=True, omit_defaults=True):
    key: str  # constant for the same engine: a Pod's uid and port, otherwise its URL
    url: str
    name: str = ""  # display name: the name of its Pod, or its address
    held: str = ""  # why it must not get requests yet; empty if its source has no objection
    node: str = ""  # machine of its Pod
    labels: dict[str, str] = {}
    role: InstanceRole | None = None  # role from its labels; None if they state none
    starts: int = 0  # number of starts of its container

"""Names of data-parallel ranks: `chat-0#2` is rank 2 of the instance chat-0. Pure."""

HEADER = b"x-data-parallel-rank"  # header of a request: the rank that computes it
LABEL = b"engine"  # label of a metric: the rank that it belongs to
SEPARATOR = "#"


def named(instance: str, rank: int) -> str:
    return f"{instance}{SEPARATOR}{rank}"


def split(name: str) -> tuple[str, str]:
    """The instance and the rank of an endpoint; the rank is empty where it stands for a whole instance."""
    instance, _, rank = name.partition(SEPARATOR)
    return instance, rank


def instance_of(name: str) -> str:
    return name.partition(SEPARATOR)[0]

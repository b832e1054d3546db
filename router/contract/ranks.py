"""Names of data-parallel ranks: `chat-0#2` is rank 2 of the instance chat-0. Pure."""

HEADER = b"x-data-parallel-rank"  # request header that names the rank to use
LABELS = (b"engine", b"dp_rank")  # metric labels of vLLM and SGLang that name the rank
SEPARATOR = "#"


def named(instance: str, rank: int) -> str:
    return f"{instance}{SEPARATOR}{rank}"


def split(name: str) -> tuple[str, str]:
    """Split an endpoint into instance and rank; the rank is empty for a whole instance."""
    instance, _, rank = name.partition(SEPARATOR)
    return instance, rank


def instance_of(name: str) -> str:
    return name.partition(SEPARATOR)[0]

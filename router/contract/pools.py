"""Names of ephemeral pools, which experiments make: routers take them by header only and do not list them."""

EPHEMERAL_PREFIX = "exp-"


def is_ephemeral(pool: str) -> bool:
    return pool.startswith(EPHEMERAL_PREFIX)


def of_experiment(experiment: int) -> str:
    """The prefix of the pools of one experiment."""
    return f"{EPHEMERAL_PREFIX}{experiment}-"


def of_run(experiment: int, run: int) -> str:
    return f"{of_experiment(experiment)}{run}"

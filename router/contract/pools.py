"""Names of the ephemeral pools of experiments, which routers accept only in a header and do not list."""

EPHEMERAL_PREFIX = "exp-"


def is_ephemeral(pool: str) -> bool:
    return pool.startswith(EPHEMERAL_PREFIX)


def of_experiment(experiment: int) -> str:
    """Return the prefix of an experiment's pools."""
    return f"{EPHEMERAL_PREFIX}{experiment}-"


def of_run(experiment: int, run: int) -> str:
    return f"{of_experiment(experiment)}{run}"

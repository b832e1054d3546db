def rolling_limit(replicas: int) -> int:
    """How many instances may be out of routing at once for a change of configuration."""
    return max(1, replicas // 4)

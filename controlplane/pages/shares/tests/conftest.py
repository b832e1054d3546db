"""The default policy and a pool of it."""

from controlplane.traffic.policies.tests.conftest import policy, pool

__all__ = ["policy", "pool"]

"""The default policy and a pool that uses it."""

from controlplane.traffic.policies.tests.conftest import policy, pool

__all__ = ["policy", "pool"]

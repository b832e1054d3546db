from controlplane.traffic.policies.tests.conftest import policy, pool  # noqa: F401  (fixtures)

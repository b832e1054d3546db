from controlplane.traffic.deliveries.tests.conftest import delivery, policy, pool  # noqa: F401  (fixtures)

import pytest

from controlplane.traffic.deliveries.judge.statistics.student import cdf, quantile

# scipy.stats.t.ppf
KNOWN = [(0.975, 1, 12.7062), (0.975, 2, 4.3027), (0.975, 5, 2.5706), (0.99, 6, 3.1427), (0.999, 3, 10.2145),
         (0.9989, 5, 5.7685), (0.99999, 11, 7.0974)]  # fmt: skip


@pytest.mark.parametrize(("share", "freedom", "t"), KNOWN)
def test_quantiles_are_those_of_scipy(share: float, freedom: int, t: float) -> None:
    assert quantile(share, freedom) == pytest.approx(t, abs=5e-5)


@pytest.mark.parametrize("freedom", [1, 2, 7, 30])
def test_the_distribution_is_symmetric(freedom: int) -> None:
    assert cdf(0.0, freedom) == pytest.approx(0.5)
    assert cdf(-1.3, freedom) == pytest.approx(1 - cdf(1.3, freedom))

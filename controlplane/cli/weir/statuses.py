"""Exit statuses."""

PASS, FAIL, INCONCLUSIVE, ERROR = 0, 1, 2, 3

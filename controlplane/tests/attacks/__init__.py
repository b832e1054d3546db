"""Attacks on the product, kept as tests: `make test-attacks`."""

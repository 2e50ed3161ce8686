"""Benchmarks beside peers. Raw samples are committed under `benchmarks/results/`."""

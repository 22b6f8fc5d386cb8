"""Measurements: `make bench` (ours) and `make bench-peers`. Ratios of interleaved runs; never an assertion."""

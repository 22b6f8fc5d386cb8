"""Measurements: `python -m tests.benchmarks`. Ratios of interleaved runs in one process; never an assertion."""

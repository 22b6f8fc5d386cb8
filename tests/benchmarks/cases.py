"""The workloads of `make bench-peers`, and the same at tiny sizes."""

from __future__ import annotations

from dataclasses import replace

from tests.benchmarks.rounds import Case

PLOTTED = "50 turns, 1 tool", "1,000 turns, 1 tool"
"""Names of the cases that the plot shows."""

CASES = (
    Case(PLOTTED[0], "turns", 9, 50),
    Case(PLOTTED[1], "turns", 5, 1_000, patience=15),
    Case("50 turns, 5 tools", "turns", 5, 50, 5, patience=5),
    Case("50 runs of one request", "turns", 5, 50, 0, patience=5),
    Case("5 ms model, no tools", "turns", 5, 50, 0, 0.005, patience=4),
    Case("5 ms model, 1 tool", "turns", 5, 50, 1, 0.005, patience=4),
    Case("5 ms model, 5 tools", "turns", 5, 50, 5, 0.005, patience=4),
    Case("200 ms model, no tools", "turns", 3, 8, 0, 0.2, patience=3),
    Case("200 ms model, 1 tool", "turns", 3, 8, 1, 0.2, patience=3),
    Case("200 ms model, 5 tools", "turns", 3, 8, 5, 0.2, patience=3),
    Case("100 runs of 10 turns, 1 tool", "turns", 3, 10, 1, 0.0, runs=100, patience=5),
    Case("100 runs of 10 turns, 1 tool, 5 ms model", "turns", 3, 10, 1, 0.005, runs=100, patience=5),
    Case("10,000 runs wait for a 1 s model", "crowd", 2, 1, 1, 1.0, runs=10_000, patience=10),
    Case("journalled, 1 run of 30 turns", "journalled", 5, 30, patience=5),
    Case("journalled, 20 runs of 30 turns", "journalled", 3, 30, runs=20, patience=8),
    Case("journalled, 32 runs of 30 turns", "journalled", 3, 30, runs=32, patience=8),
    Case("journalled, 100 runs of 30 turns", "journalled", 3, 30, runs=100, patience=8),
    Case("resume of 100 turns", "resume", 5, 100),
    Case("resume of 500 turns", "resume", 5, 500),
    Case("resume of 1,000 turns", "resume", 5, 1_000),
    Case("import and size", "footprint", 7),
)

_TINY = {"turns": 3, "crowd": 1, "journalled": 2, "resume": 3, "footprint": 0}

QUICK = tuple(
    replace(
        case,
        name=f"{case.name} (tiny)",
        rounds=2 if case is CASES[0] else 1,
        turns=min(case.turns, _TINY[case.kind]),
        runs=min(case.runs, 5),
        latency=min(case.latency, 0.002),
    )
    for case in CASES
)
"""Every workload, in seconds: it shows that all are measured, and its figures say nothing."""

BUSY = Case("journalled, 1 run of 30 turns, all cores busy", "journalled", 5, 30, patience=10, busy=True)
"""An append that crosses threads waits for a core twice: other processes use all of them."""

JOURNALLED = (*(case for case in CASES if case.kind in ("journalled", "resume")), BUSY)

"""Print every figure of the README's performance section, and write them to a JSON file when asked."""

from __future__ import annotations

import argparse
import json
import platform
import sys
from dataclasses import asdict
from pathlib import Path

from tests.benchmarks.measure import Case, Figures, run_case

CASES = (
    Case("50 turns, 1 tool", 50, 1, 0.0, 31),
    Case("1,000 turns, 1 tool", 1_000, 1, 0.0, 9),
    Case("50 turns, 5 tools", 50, 5, 0.0, 21),
    Case("no tools", 50, 0, 0.0, 21),
    Case("no tools, 5 ms model", 50, 0, 0.005, 5),
    Case("50 turns, 1 tool, 5 ms model", 50, 1, 0.005, 5),
    Case("50 turns, 5 tools, 5 ms model", 50, 5, 0.005, 5),
)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="write the figures to this file as well")
    parser.add_argument("--only", default="", help="only cases whose name contains this")
    options = parser.parse_args()
    print(f"Python {platform.python_version()}, {platform.system()} {platform.machine()}")
    print("µs a turn: hand-written loop, the machine bare, and with JSON log and all metrics; ratios to hand")
    print(
        f"{'case':31} {'hand':>7} {'bare':>7} {'full':>7} {'bare/h':>7} {'full/h':>7} {'spread':>13} {'p95 full/h':>11}"
    )
    figures = []
    for case in CASES:
        if options.only in case.name:
            figures.append(run_case(case))
            print(_row(figures[-1]))
            sys.stdout.flush()
    by_name = {one.case.name: one for one in figures}
    if {"50 turns, 1 tool", "1,000 turns, 1 tool"} <= set(by_name):
        growth = by_name["1,000 turns, 1 tool"].full_us / by_name["50 turns, 1 tool"].full_us
        print(f"a turn of 1,000 costs {growth:.2f} x a turn of 50")
    if options.json:
        options.json.write_text(json.dumps([asdict(one) for one in figures], indent=2) + "\n")


def _row(one: Figures) -> str:
    low, high = one.spread
    return (
        f"{one.case.name:31} {one.hand_us:7.1f} {one.bare_us:7.1f} {one.full_us:7.1f} {one.bare_ratio:7.2f} "
        f"{one.full_ratio:7.2f} {low:6.2f}-{high:<6.2f} {one.p95_ratio:11.3f}"
    )


if __name__ == "__main__":
    main()

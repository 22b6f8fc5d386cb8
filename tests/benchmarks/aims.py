"""Which aims are reached: `python -m tests.benchmarks.aims RESULTS.json`. Figures of ours with log and metrics on."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.benchmarks.cases import PLOTTED
from tests.benchmarks.peers.roster import HAND, OURS


@dataclass(frozen=True, slots=True)
class Aim:
    """A number that is to be at most, or at least, another."""

    name: str
    figure: Callable[[Told], float]
    bound: float
    at_least: bool = False

    def told(self, told: Told) -> str:
        """Return the line of a report."""
        try:
            value = self.figure(told)
        except KeyError:
            return f"{'not measured':>12}  {self.name}"
        reached = value >= self.bound if self.at_least else value <= self.bound
        sign = "at least" if self.at_least else "at most"
        return f"{'reached' if reached else 'not reached':>12}  {self.name}: {value:,.4g} (aim: {sign} {self.bound:g})"


class Told:
    """Medians of a file of results. Raises KeyError for a figure that was not measured."""

    def __init__(self, results: Mapping[str, Any]) -> None:
        self._workloads = {one["name"]: one["contestants"] for one in results["workloads"]}

    def __call__(self, case: str, figure: str, who: str = OURS) -> float:
        """Return a median; of a tiny case too."""
        name = next((one for one in self._workloads if one.startswith(case)), case)
        median: float = self._workloads[name][who][figure][0]
        return median


AIMS = (
    Aim("a turn, by the hand-written loop's", lambda told: told(PLOTTED[0], "cpu_us_per_turn_to_hand"), 8),
    Aim(
        "LangGraph's turn, by ours",
        lambda told: told(PLOTTED[0], "cpu_us_per_turn_to_ours", "langgraph"),
        8,
        at_least=True,
    ),
    Aim(
        "Burr's turn, by ours",
        lambda told: told(PLOTTED[0], "cpu_us_per_turn_to_ours", "burr"),
        2,
        at_least=True,
    ),
    Aim(
        "a turn of 1,000, by a turn of 50",
        lambda told: told(PLOTTED[1], "cpu_us_per_turn") / told(PLOTTED[0], "cpu_us_per_turn"),
        1.0,
    ),
    *(
        Aim(
            f"p95 of an iteration, {case}, by the hand-written loop's",
            lambda told, case=case: told(case, "p95_ms_to_hand"),  # type: ignore[misc]
            1.04,
        )
        for case in ("5 ms model, no tools", "5 ms model, 1 tool", "5 ms model, 5 tools")
    ),
    Aim(
        "KiB of a waiting run beyond the hand-written loop's, which is its messages and its task",
        lambda told: told("10,000 runs", "kib_per_run") - told("10,000 runs", "kib_per_run", HAND),
        14,
    ),
    Aim(
        "turns for each second of a core, 10,000 runs at once",
        lambda told: told("10,000 runs", "turns_per_cpu_s"),
        5_000,
        at_least=True,
    ),
    Aim(
        "journalled turns a second, 100 runs at once",
        lambda told: told("journalled, 100 runs", "turns_per_s"),
        3_500,
        at_least=True,
    ),
    Aim(
        "journalled turns a second by LangGraph's, 20 runs at once",
        lambda told: (
            told("journalled, 20 runs", "turns_per_s")
            / told("journalled, 20 runs", "turns_per_s", "langgraph")
        ),
        15,
        at_least=True,
    ),
    Aim("ms to resume 1,000 turns", lambda told: told("resume of 1,000", "resume_ms"), 30),
    Aim("ms of `import orchestrator`", lambda told: told("import and size", "package_ms"), 100),
)


def lines(results: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each aim."""
    told = Told(results)
    return (aim.told(told) for aim in AIMS)


if __name__ == "__main__":
    print(*lines(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))), sep="\n")

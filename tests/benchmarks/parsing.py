"""Time for each character of a reply that code mode reads, at three lengths: constant where the parser is linear."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from orchestrator.machines.rlm.reply import read

NAME = "parser of code mode"
LENGTHS = (10_000, 100_000, 1_000_000)
ROUNDS = 5
_PIECE = (
    "I'll look at the chapters (all 12) one by one; that's slower :) but it doesn't miss any.\n\n"
    "```repl\nfor part in context.split('\\n\\n'):\n    print(len(part), part[:80])\n```\n"
)
REPLIES: dict[str, Callable[[int], str]] = {
    "prose, blocks and an answer": lambda n: _PIECE * (n // len(_PIECE)) + "FINAL(It's 42)",
    "one long answer": lambda n: "FINAL(" + 'It\'s (nearly) "done" :) `x` ' * (n // 28) + ")",
    "parentheses that never close": lambda n: "FINAL(" + "(" * n,
    "fences that only open": lambda n: "```a\n" * (n // 5),
    "answers that never close": lambda n: "FINAL(\n" * (n // 7),
}


@dataclass(frozen=True)
class Figure:
    """Nanoseconds a character for each length, the best of the rounds."""

    name: str
    ns: tuple[float, ...]

    @property
    def growth(self) -> float:
        """The longest beside the shortest; 1 is linear, and 100 would be quadratic."""
        return self.ns[-1] / self.ns[0]


def measure() -> list[Figure]:
    """Return the figures of all replies."""
    return [Figure(name, tuple(_ns(make(length)) for length in LENGTHS)) for name, make in REPLIES.items()]


def rows(figures: list[Figure]) -> Iterator[str]:
    """Yield the lines of a table."""
    yield f"{NAME}: ns of processor time a character, best of {ROUNDS}"
    yield f"{'reply':31} " + " ".join(f"{length:>11,}" for length in LENGTHS) + f" {'last/first':>11}"
    for one in figures:
        yield f"{one.name:31} " + " ".join(f"{ns:11.1f}" for ns in one.ns) + f" {one.growth:11.2f}"


def _ns(text: str) -> float:
    best = float("inf")
    for _ in range(ROUNDS):
        began = time.process_time()
        read(text)
        best = min(best, time.process_time() - began)
    return best / len(text) * 1e9

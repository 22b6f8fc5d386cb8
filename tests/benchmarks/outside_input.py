"""Input from outside at doubling lengths: processor time doubles with the length where the work is linear."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from orchestrator.llm.json_schema import checker
from orchestrator.providers.reading import EventDecoder

NAME = "input from outside"
ROUNDS = 3
_MIB = 2**20
_PIECE = 1_400


@dataclass(frozen=True)
class Figure:
    """Milliseconds of processor time at each length, the best of the rounds."""

    name: str
    unit: str
    lengths: tuple[int, ...]
    ms: tuple[float, ...]

    @property
    def growth(self) -> float:
        """Time a unit at the longest beside that at the shortest; 1 is linear."""
        return self.ms[-1] / self.ms[0] / (self.lengths[-1] / self.lengths[0])


def measure() -> list[Figure]:
    """Return the figures."""
    check = checker({"type": "string", "pattern": "^(a+)+$"})
    return [
        _figure("event stream, one line", "MiB", (1, 2, 4, 8), lambda n: b"x" * (n * _MIB), _decode),
        _figure(
            "pattern ^(a+)+$, no match",
            "characters",
            (10_000, 20_000, 40_000),
            lambda n: "a" * n + "b",
            check,
        ),
    ]


def rows(figures: list[Figure]) -> Iterator[str]:
    """Yield the lines of a table."""
    yield f"{NAME}: ms of processor time, best of {ROUNDS}; growth of the time a unit, 1 is linear"
    for one in figures:
        each = " ".join(f"{length:,}: {ms:.2f}" for length, ms in zip(one.lengths, one.ms, strict=True))
        yield f"{one.name:26} {one.unit:10} {each}  growth {one.growth:.2f}"


def _decode(line: bytes) -> None:
    stream, decoder = b"data: " + line + b"\n\n", EventDecoder()
    events = 0
    for at in range(0, len(stream), _PIECE):
        events += sum(1 for _ in decoder.feed(stream[at : at + _PIECE]))
    if events != 1:
        raise AssertionError(f"{events} events")


def _figure(
    name: str,
    unit: str,
    lengths: tuple[int, ...],
    make: Callable[[int], bytes | str],
    work: Callable[..., object],
) -> Figure:
    return Figure(name, unit, lengths, tuple(_ms(make(length), work) for length in lengths))


def _ms(value: bytes | str, work: Callable[..., object]) -> float:
    best = float("inf")
    for _ in range(ROUNDS):
        began = time.process_time()
        work(value)
        best = min(best, time.process_time() - began)
    return best * 1e3

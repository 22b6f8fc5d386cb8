"""The labelled corpus of the progress guard: recorded conversations, and how generated traces are written.

Every trace has a label (the kind of stall a careful reader sees at limit 3, or None) and a reason.
Labels were written before the guard was run on the traces and are not changed to fit it: where the
guard is known to be wrong the label stays and the reason says what it cannot see.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, repeat
from pathlib import Path
from typing import NamedTuple

from orchestrator_guards import ObservedCall, Policy, StallKind

REAL = Path(__file__).parents[1] / "data" / "progress" / "real.jsonl"

Calls = tuple[ObservedCall, ...]
Step = Calls | str
"""One turn: its calls, or its text."""


class Trace(NamedTuple):
    name: str
    label: StallKind | None
    reason: str
    steps: Sequence[Step]


def call(
    tool: str, arguments: object, result: str = "ok", *, failed: bool = False, policy: Policy = "strict"
) -> ObservedCall:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return ObservedCall(tool, text, result, failed, policy)


def one(
    tool: str, arguments: object, result: str = "ok", *, failed: bool = False, policy: Policy = "strict"
) -> Calls:
    return (call(tool, arguments, result, failed=failed, policy=policy),)


def bad(tool: str, arguments: object, result: str) -> Calls:
    return one(tool, arguments, result, failed=True)


def each(times: int, make: Callable[[int], Step]) -> list[Step]:
    return [make(i) for i in range(times)]


def pairs(times: int, make: Callable[[int], Iterable[Step]]) -> list[Step]:
    return list(chain.from_iterable(make(i) for i in range(times)))


def rounds(times: int, *steps: Step) -> list[Step]:
    return list(chain.from_iterable(repeat(steps, times)))


def recorded() -> list[Trace]:
    """Runs as they were recorded; nobody stalls in them by limit 3."""
    with REAL.open(encoding="utf-8") as lines:
        return [_recorded(json.loads(line)) for line in lines]


def _recorded(row: dict[str, object]) -> Trace:
    turns = row["turns"]
    assert isinstance(turns, list)
    steps: list[Step] = []
    for turn in turns:
        calls = turn.get("calls")
        steps.append(turn["text"] if calls is None else tuple(ObservedCall(*seen) for seen in calls))
    run = "" if row["run"] is None else f" run {row['run']}"
    return Trace(f"{row['id']}{run}", None, str(row["reason"]), steps)


def derived() -> list[Trace]:
    """Recorded conversations that we let go wrong: real turns, repeated by us."""
    return list(chain.from_iterable(_derived(trace) for trace in recorded()[::3]))


def _derived(trace: Trace) -> Iterator[Trace]:
    turns = [step for step in trace.steps if isinstance(step, tuple)]
    if len(turns) < 2 or turns[-1] == turns[-2]:
        return
    before, last = turns[:-1], turns[-1]
    name = trace.name[:48]
    to_and_fro = [*before[:-1], *rounds(4, before[-1], last)]
    jittered = [tuple(seen._replace(result=f"{seen.result} #{i}") for seen in last) for i in range(8)]
    yield Trace(f"{name} stuck", StallKind.REPEAT_RESULT, "the last turn four times", [*before, *[last] * 4])
    yield Trace(f"{name} once more", None, "the last turn twice: one repeat", [*before, last, last])
    yield Trace(f"{name} to and fro", StallKind.ALTERNATION, "the last two turns four times", to_and_fro)
    yield Trace(
        f"{name} jitter", StallKind.REPEAT, "the last turn eight times, results differ", before + jittered
    )

"""Two recorded runs side by side: where their transitions diverge, and what each used. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, NamedTuple

from orchestrator.kernel.journal import Record, RunHead
from orchestrator.llm.message import Usage
from orchestrator.machines.llm_loop.model import LoopState
from orchestrator.runtime.runs.result import recorded_result
from orchestrator.runtime.runs.story import Story


class RecordedTransition(NamedTuple):
    """A transition of a run."""

    event: str
    source: str
    dest: str


@dataclass(frozen=True, slots=True)
class ComparedRun:
    """One of the two runs."""

    run_id: str
    graph: str
    agent: str
    status: str
    outcome: str
    """"" for a run that has not ended."""
    reason: str
    turns: int
    """Answers of the model."""
    seconds: float
    """Active seconds."""
    usage: Usage
    """As the limits count it."""
    states: Mapping[str, float]
    """State -> seconds."""
    tools: Mapping[str, int]
    """Tool -> calls."""
    output: Any
    transitions: Sequence[RecordedTransition]


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first transition that differs."""

    number: int
    """Counted from 1, among the compared transitions."""
    first: RecordedTransition | None
    """None if the first run has no more transition."""
    second: RecordedTransition | None


@dataclass(frozen=True, slots=True)
class RunPair:
    """Two runs side by side."""

    first: ComparedRun
    second: ComparedRun
    forked_after: int | None
    """The turn of the first run after which the second one was forked; None if it was not."""
    equal: int
    """Equal transitions before the divergence. Those of the first run before a fork are not compared."""
    divergence: Divergence | None


def compare_runs(
    first: tuple[RunHead, Sequence[Record]], second: tuple[RunHead, Sequence[Record]]
) -> RunPair:
    """Compare two runs. Each is given by its head and its records."""
    one, other = _compared(*first), _compared(*second)
    forked = _forked_after(first[0].run_id, second[1])
    ours, theirs = list(one.transitions), list(other.transitions)
    if forked is not None:
        ours, theirs = ours[_start_of_turn(ours, forked) :], theirs[1:]
    for number, (a, b) in enumerate(zip_longest(ours, theirs), 1):
        if a != b:
            return RunPair(one, other, forked, number - 1, Divergence(number, a, b))
    return RunPair(one, other, forked, len(ours), None)


def _compared(head: RunHead, records: Sequence[Record]) -> ComparedRun:
    story = Story.of(head.run_id, records)
    ended = story.ended or {}
    return ComparedRun(
        run_id=head.run_id,
        graph=head.graph,
        agent=head.agent,
        status=head.status,
        outcome=str(ended.get("outcome", "")),
        reason=head.reason,
        turns=story.turn,
        seconds=story.elapsed,
        usage=story.total,
        states={state: stats.total for state, stats in story.states().items()},
        tools=Counter(call.tool for call in story.calls.values()),
        output=recorded_result(story, records).output if ended else None,
        transitions=[
            RecordedTransition(str(body["event"]), str(body["source"]), str(body["dest"]))
            for kind, body in ((record.kind, record.body) for record in records)
            if kind == "transition"
        ],
    )


def _forked_after(first: str, records: Sequence[Record]) -> int | None:
    """Return the turn of the first run after which the other one was forked; None if it was not."""
    launch = (records[0].body.get("launch") or {}) if records else {}
    forked = launch.get("forked_from") or {}
    return int(forked.get("turn", 0)) if forked.get("run_id") == first else None


def _start_of_turn(transitions: Sequence[RecordedTransition], turn: int) -> int:
    """Return the number of transitions before the request of the turn after this one."""
    asked = [number for number, one in enumerate(transitions, 1) if one.dest == LoopState.AWAIT_LLM]
    return asked[turn] if turn < len(asked) else len(transitions)

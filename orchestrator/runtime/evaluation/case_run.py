"""The run of a case as its records describe it: what checks and judges look at."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from orchestrator.kernel.journal import Record
from orchestrator.runtime.evaluation.case import WAITING, EvaluationCase
from orchestrator.runtime.llm_loop.result import Result
from orchestrator.runtime.runs.result import recorded_result
from orchestrator.runtime.runs.story import Story

ACTOR = "evaluation"
"""Who answers the questions of a case, and who cancels a run that waits for a person."""


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """A call whose tool ran."""

    tool: str
    arguments: Any
    """The arguments that the tool got; None if the records do not have them."""


@dataclass(frozen=True, slots=True)
class CaseRun:
    """The ended run of a case, for checks and judges.

    Example:
        def polite(run: CaseRun) -> bool:
            return "please" in run.output
    """

    case: EvaluationCase
    result: Result
    """As `Runs.result` returns it: the output is JSON."""
    calls: tuple[RecordedCall, ...]
    """The calls whose tool ran, in order."""
    states: tuple[str, ...]
    """The states of the run in order, from the initial one."""
    asked: tuple[str, ...]
    """Tools about whose calls a person was asked."""
    requests: int
    """Answers of the model, without those of child runs."""
    seconds: float
    """Time of the run, without waiting for people."""
    waited: str
    """The question that the case has no answer to, for which the run was cancelled; empty if there is none."""

    @classmethod
    def of(cls, case: EvaluationCase, run_id: str, records: Sequence[Record]) -> Self:
        """Read the records of an ended run."""
        story = Story.of(run_id, records)
        return cls(
            case=case,
            result=recorded_result(story, records),
            calls=tuple(_calls(story)),
            states=tuple(_states(story, records)),
            asked=tuple(str(record.body.get("tool", "")) for record in records if record.kind == "asked"),
            requests=story.requests,
            seconds=story.elapsed,
            waited=next((str(body.get("why")) for kind, body in story.decisions if _is_ours(kind, body)), ""),
        )

    @property
    def output(self) -> Any:
        """The final answer: text or JSON; None without one."""
        return self.result.output

    @property
    def outcome(self) -> str:
        """The outcome of the run, or `waiting`."""
        return WAITING if self.waited else self.result.outcome.value


def _is_ours(kind: str, body: Mapping[str, Any]) -> bool:
    return bool(kind == "control" and body.get("by") == ACTOR and body.get("kind") == "cancel")


def _calls(story: Story) -> list[RecordedCall]:
    said = {
        int(entry.answer.get("iteration") or 0): entry.message.get("tool_calls") or ()
        for entry in story.conversation
        if entry.answer is not None
    }
    found = []
    for entry in story.ledger.entries.values():
        if not entry.effect:  # refused before it had an intent
            continue
        calls = said.get(entry.turn, ())
        text = entry.arguments
        if text is None and entry.position < len(calls):
            text = (calls[entry.position].get("function") or {}).get("arguments")
        found.append(RecordedCall(entry.tool, json_values(text)))
    return found


def json_values(value: Any) -> Any:
    """Return a text that is JSON parsed, and any other value as it is."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        return value


def _states(story: Story, records: Sequence[Record]) -> list[str]:
    path = [record.body for record in records if record.kind == "transition"]
    states = [str(path[0]["source"]), *(str(body["dest"]) for body in path)] if path else [story.state]
    return [one for number, one in enumerate(states) if number == 0 or one != states[number - 1]]

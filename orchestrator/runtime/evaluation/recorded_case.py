"""Turn a recorded run into a case of an evaluation set, without its secrets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.errors import ConfigError
from orchestrator.kernel.journal import Record
from orchestrator.runtime.evaluation.case import EvaluationCase
from orchestrator.runtime.evaluation.case_run import CaseRun, RecordedCall, json_values
from orchestrator.runtime.run_replay.archive import archive_of, journal_of
from orchestrator.runtime.runs.story import Story

_SYSTEM = frozenset(("system", "developer"))


async def recorded_case(run_id: str, records: Sequence[Record]) -> dict[str, Any]:
    """Return the case of an ended run, as the members of an EvaluationCase.

    It expects the outcome of the run, its structured output, the calls of its tools and the questions to people. A
    text is the `reference` of the case, because no model repeats one. The answers of people become those of the case.
    Texts that look like secrets are replaced, and metadata is left out. Review it: a run that went wrong makes a case
    that expects that.

    Raises:
        ConfigError: The run has not ended, or it is no run of an agent.
    """
    if records[-1].kind != "ended":
        raise ConfigError(
            f"run {run_id!r} has not ended, so its outcome cannot be expected: wait for its end"
        )
    clean = await (await journal_of(archive_of(run_id, records))).load(run_id)
    story = Story.of(run_id, clean)
    prompt = _prompt(story)
    if not prompt:
        raise ConfigError(f"run {run_id!r} has no messages: only runs of an agent can become cases")
    run = CaseRun.of(EvaluationCase(name=run_id, input="-"), run_id, clean)
    answers = _answers(story)
    outcome, output = run.outcome, run.output
    expect: dict[str, Any] = {"outcome": outcome}
    if output is not None and not isinstance(output, str):
        expect["output"] = {"equals": output}
    tools: dict[str, Any] = {"called": _called(run.calls), "asked": list(dict.fromkeys(run.asked))}
    if tools := {name: value for name, value in tools.items() if value}:
        expect["tools"] = tools
    reference = {"reference": output} if isinstance(output, str) else {}
    return {
        "name": run_id,
        **prompt,
        **({"answers": answers} if answers else {}),
        **reference,
        "expect": expect,
    }


def _prompt(story: Story) -> dict[str, Any]:
    """Return the input of the run: the messages before the first answer, without the agent's own instructions."""
    said: list[dict[str, Any]] = []
    for entry in story.conversation:
        if entry.answer is not None:
            break
        if entry.message.get("role") not in _SYSTEM:
            said.append(dict(entry.message))
    if len(said) == 1 and said[0].get("role") == "user" and isinstance(said[0].get("content"), str):
        return {"input": said[0]["content"]}
    return {"messages": said} if said else {}


def _answers(story: Story) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for entry in story.ledger.entries.values():
        if entry.answer is not None:
            found[entry.tool] = _answer(entry.answer)
    return found


def _answer(body: Mapping[str, Any]) -> Any:
    match body.get("decision"):
        case "reject":
            return {"reject": str(body.get("why") or "")}
        case "respond":
            return {"respond": str(body.get("content") or "")}
        case _:
            edited = json_values(body.get("arguments"))
            return {"approve": dict(edited)} if isinstance(edited, Mapping) else "approve"


def _called(calls: Sequence[RecordedCall]) -> list[dict[str, Any]]:
    """Return each different call once."""
    found: list[dict[str, Any]] = []
    for call in calls:
        one: dict[str, Any] = {"tool": call.tool}
        if isinstance(call.arguments, Mapping):
            one["arguments"] = dict(call.arguments)
        if one not in found:
            found.append(one)
    return found

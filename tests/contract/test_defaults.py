"""Members of facts, records and results are empty unless they are given: nothing claims what nobody said."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from typing import Any

from orchestrator.kernel.branch import Join
from orchestrator.llm.message import NO_USAGE
from orchestrator_guards import DIGEST_VERSION

PACKAGES = (
    "orchestrator.kernel",
    "orchestrator.engines",
    "orchestrator.runtime",
    "orchestrator.telemetry",
    "orchestrator_callbacks.llm_loop",
    "orchestrator_guards",
)
GIVEN: dict[str, object] = {
    "Graph.strict": True,
    "BranchResult.reason": "none",
    "BranchResult.started": True,
    "Fan.concurrency": 8,
    "Fan.join": Join("all"),
    "ChildBudget.usage": NO_USAGE,
    "RunKind.migrations": tuple,
    "RunSettings.start": "last",
    "PendingQuestion.version": DIGEST_VERSION,
    "ComparedNumber.currencies": ("", ""),
    "Guardrail.on_refusal": "end",
    "Signal.by": "caller",
    "Signal.kind": "event",
    "RunStarted.origin": "new",
    "JournalWrite.outcome": "ok",
    "Cursor.entry_pending": True,
    "Control.cancel_seconds": 5.0,
    "Control.waits_in_place": True,
    "WorkerLimits.period": 1.0,
    "CaseSelection.repeat": 1,
    "EngineJob.phase": "queued",
    "OpenRun.seq": -1,
    "Story.last": -1,
    "Story.usage": NO_USAGE,
    "CodingAnswer.usage": NO_USAGE,
    "Load.phase": "running",
    "Metric.zero": True,
    "Metric.made": "observed",
    "Stall.patience": 1,
    "Stall.period": 1,
    "ObservedCall.policy": "strict",
    "Conventions.run": "invoke_workflow",
    "Conventions.llm": "chat",
    "Conventions.tool": "execute_tool",
    "Conventions.operation": "gen_ai.operation.name",
    "Conventions.workflow": "gen_ai.workflow.name",
    "Conventions.provider": "gen_ai.provider.name",
    "Conventions.model": "gen_ai.request.model",
    "Conventions.tool_name": "gen_ai.tool.name",
    "Conventions.tool_type": "gen_ai.tool.type",
    "Conventions.input_tokens": "gen_ai.usage.input_tokens",
    "Conventions.output_tokens": "gen_ai.usage.output_tokens",
    "Conventions.cached_tokens": "gen_ai.usage.cache_read.input_tokens",
    "Conventions.reasoning_tokens": "gen_ai.usage.reasoning.output_tokens",
    "Conventions.finish_reasons": "gen_ai.response.finish_reasons",
    "Conventions.first_chunk": "gen_ai.response.time_to_first_chunk",
    "Conventions.error": "error.type",
    "Conventions.agent": "gen_ai.agent.name",
    "Conventions.agent_version": "gen_ai.agent.version",
    "Conventions.conversation": "gen_ai.conversation.id",
    "Conventions.token_type": "gen_ai.token.type",
    "Conventions.token_usage": "gen_ai.client.token.usage",
    "Conventions.duration": "gen_ai.client.operation.duration",
    "Conventions.first_chunk_time": "gen_ai.client.operation.time_to_first_chunk",
}
"""The other defaults: class and member -> value."""
ALL = "PendingWrites.observed_kinds"
"""Every kind of fact: until a driver knows its observers, each fact may have one."""


def classes(package: str) -> Iterator[type]:
    for info in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}."):
        module = importlib.import_module(info.name)
        own = (one for one in vars(module).values() if inspect.isclass(one))
        yield from (one for one in own if one.__module__ == info.name)


def defaults(one: Any) -> Iterator[tuple[str, object]]:
    name_of = one.__name__
    if dataclasses.is_dataclass(one):
        for member in dataclasses.fields(one):
            if member.default is not dataclasses.MISSING:
                yield f"{name_of}.{member.name}", member.default
    else:
        for name, value in getattr(one, "_field_defaults", {}).items():
            yield f"{name_of}.{name}", value


def test_a_default_is_empty_or_listed_here() -> None:
    every = [pair for package in PACKAGES for one in classes(package) for pair in defaults(one)]
    found = {name: value for name, value in every if value and name != ALL}
    assert found == {name: GIVEN.get(name) for name in found}


def test_every_listed_default_exists() -> None:
    found = {name for package in PACKAGES for one in classes(package) for name, _ in defaults(one)}
    assert GIVEN.keys() <= found

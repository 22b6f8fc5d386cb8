"""`map_reduce`: a Workflow in which one agent reads each document, and another combines what was found."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

from orchestrator.kernel.branch import ALL, BranchResults, Join
from orchestrator.kernel.fact import Observer
from orchestrator.kernel.journal import Journal
from orchestrator.kernel.run import Run
from orchestrator.machines.llm_loop.limits import Limits
from orchestrator.machines.map_reduce.graph import MapReduceContext, map_reduce_graph
from orchestrator.runtime.branches.fan_out import Branch, fan_out
from orchestrator.runtime.branches.workflow import Workflow
from orchestrator.runtime.llm_loop.agent import Agent
from orchestrator.runtime.service.runtime import Runtime
from orchestrator_callbacks.map_reduce import enter


def as_text(document: Any) -> str:
    """Return a document as a prompt: text unchanged, other JSON data as JSON."""
    return document if isinstance(document, str) else json.dumps(document, ensure_ascii=False)


def as_list(parts: list[Any]) -> str:
    """Return the parts as a prompt, each under a heading with the number of its document; missing ones are left out."""
    shown = [(number, part) for number, part in enumerate(parts, 1) if part is not None]
    return "\n\n".join(f"## Document {number}\n\n{as_text(part)}" for number, part in shown)


class _Work:
    """The branches of both states."""

    def __init__(
        self,
        mapper: Agent[Any, Any],
        reducer: Agent[Any, Any],
        prompt: Callable[[Any], str],
        combine: Callable[[list[Any]], str],
    ) -> None:
        self._mapper, self._reducer, self._prompt, self._combine = mapper, reducer, prompt, combine

    async def map(self, run: Run[MapReduceContext, Any]) -> BranchResults[Any]:
        """Read each document."""
        return await fan_out(run, [Branch(self._mapper, self._prompt(one)) for one in run.ctx.documents])

    async def reduce(self, run: Run[MapReduceContext, Any]) -> BranchResults[Any]:
        """Combine the parts."""
        return await fan_out(run, [Branch(self._reducer, self._combine(run.ctx.parts))])


def map_reduce(
    mapper: Agent[Any, Any],
    reducer: Agent[Any, Any],
    *,
    most: int = 100,
    concurrency: int = 8,
    join: Join = ALL,
    prompt: Callable[[Any], str] = as_text,
    combine: Callable[[list[Any]], str] = as_list,
    limits: Limits | None = None,
    name: str | None = None,
    version: str | None = None,
    runtime: Runtime | None = None,
    journal: Journal | None = None,
    observers: Iterable[Observer] | None = None,
) -> Workflow[MapReduceContext, Any]:
    """Return a workflow that reads each document with `mapper` and combines the outputs with `reducer`.

    Its output is that of the reducer, as JSON data. A run whose join refuses ends as failed (policy_stop).

    Args:
        mapper: Agent for one document.
        reducer: Agent for the outputs of all documents.
        most: Most documents of a run.
        concurrency: Most documents that are read at the same time; 0 is unlimited.
        join: When the reading is over, and whether it is enough: `ended(90)` goes on without some documents.
        prompt: Pure function from a document to the prompt of the mapper.
        combine: Pure function from the outputs in the order of the documents, None for a missing one, to the prompt of
            the reducer.
        limits: Tokens and cost of a run with all its branches.
        name, version, runtime, journal, observers: As for Workflow.

    Raises:
        ConfigError: An argument is invalid.
        GraphError: `most`, `concurrency` or `join` cannot work.

    Example:
        digest = map_reduce(Agent(model, instructions="Summarise."), Agent(model, instructions="Write one summary."))
        result = await digest.run(MapReduceContext(documents=texts))
    """
    work = _Work(mapper, reducer, prompt, combine)
    return Workflow(
        map_reduce_graph(most, concurrency, join),
        [enter],
        output=lambda ctx: ctx.output,
        limits=limits,
        name=name,
        version=version,
        deps=work,
        runtime=runtime,
        journal=journal,
        observers=observers,
    )

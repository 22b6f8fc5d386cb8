"""Variants of an agent: another model, other tools or limits, and everything else shared.

A variant shares the compiled machine, the journal, the live runs and the observers of its agent, so it costs a few
objects. It has its own limit on concurrent runs, so an engine can host the agent and its variant. Names of models and
tools that are new to the observers are declared once.
"""

# ruff: noqa: SLF001 - one class with agent.py

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypedDict

from orchestrator.llm.port import LLM, Memory
from orchestrator.llm.retry import RetryPolicy
from orchestrator.machines.llm_loop.limits import Limits
from orchestrator.runtime.llm_loop import agent_tool as subagent
from orchestrator.runtime.llm_loop import composition as compose
from orchestrator.runtime.llm_loop.run_options import DepsSource, RunFunction
from orchestrator.runtime.service import argument_check as arguments
from orchestrator.runtime.service.run_data import agent_data
from orchestrator.tools.spec import ToolSpec
from orchestrator_callbacks.llm_loop.admission import refuse_unknown_tools
from orchestrator_callbacks.llm_loop.approval_rule import definition_of
from orchestrator_callbacks.llm_loop.deps import LoopDeps, ToolProvider
from orchestrator_callbacks.llm_loop.request_usage import refuse_unpriced

if TYPE_CHECKING:
    from orchestrator.runtime.llm_loop.agent import Agent


class AgentChanges(TypedDict, total=False):
    """The arguments of Agent that a variant can have in place of its agent's."""

    model: LLM
    tools: Iterable[ToolSpec | Callable[..., Any]] | ToolProvider
    limits: Limits | None
    retry: RetryPolicy | None
    memory: Memory | None
    output_type: object
    instructions: str | RunFunction | None
    deps: Any
    params: Mapping[str, Any] | None
    name: str | None
    version: str | None


def variant(agent: Agent, changes: AgentChanges) -> Agent:
    """Return an agent with some changes. Raises ConfigError, and TypeError for an unknown argument."""
    given: dict[str, Any] = dict(changes)
    if unknown := given.keys() - AgentChanges.__annotations__.keys():
        raise TypeError(f"replace() got an unexpected keyword argument {min(unknown)!r}")
    arguments.check_agent({"limits": None, **given})
    found = copy.copy(agent)
    if "deps" in given:
        found._source = DepsSource(given["deps"])
    if "name" in given or "version" in given:
        known = agent._data
        name, version = (
            given.get("name", known.get("agent")),
            given.get("version", known.get("agent_version")),
        )
        stored = {key: value for key, value in agent._data.items() if key == "definition"}
        found._data = {**agent_data(name, version), **stored}
    found._limits = given.get("limits", agent._limits) or Limits()
    found._instructions = given.get("instructions", agent._instructions)
    found._members = {}
    found._deps = _changed_handles(agent, found.name, found._source.host, given)
    if "definition" in found._data:
        found._data = {**found._data, "definition": definition_of(found._deps.tools.offers)}
    found._shares = False  # it belongs to its agent
    found._driver, found._recovery = agent._driver.copy(), found._make_recovery()
    found._declare()
    found.hosting = found._make_hosting()
    refuse_unpriced(found._limits, subagent.prices(found))
    refuse_unknown_tools(found._limits, found._deps.tools)
    return found


def _changed_handles(agent: Agent, name: str, host: Any, given: Mapping[str, Any]) -> LoopDeps:
    """Return the handles of a variant."""
    own, points = agent._deps, agent.hosting.own_points
    if not given.keys() & {"model", "tools", "output_type", "retry", "params", "memory"}:
        return replace(own, host=host, points=points, agent=name)
    made = compose.handles(
        given.get("model", own.llm),
        given.get("tools", own.tools),
        own.clock,
        given.get("output_type"),
        given.get("retry", own.retry),
        given.get("params", own.params),
        memory=given.get("memory", own.memory),
        price=own.price,
        points=points,
        host=host,
        stored_result=own.stored_result,
        agent=name,
    )
    return made if "output_type" in given else replace(made, output=own.output)

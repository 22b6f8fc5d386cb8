"""What the types of agents need at run time: parameters of agents and contexts, and signatures that say the same."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import pytest

from orchestrator import Agent, ConfigError, ToolCall, ToolContext, tool
from orchestrator.approval import Approval
from orchestrator.runtime.llm_loop.agent import AgentArguments
from orchestrator.runtime.pipeline.pipeline import Pipeline
from orchestrator.runtime.ralph.ralph import Ralph
from orchestrator.runtime.rlm.rlm import Rlm
from orchestrator.testing import ScriptedLLM


@dataclass
class Bank:
    name: str


def test_the_typed_arguments_of_an_agent_are_those_of_its_constructor() -> None:
    given = inspect.signature(Agent.__init__).parameters
    keywords = {name for name, one in given.items() if one.kind is one.KEYWORD_ONLY}
    assert set(AgentArguments.__annotations__) == keywords - {"output_type"}


def test_a_parametrised_context_can_be_made() -> None:
    context = ToolContext[int]("run", "key", 3)
    assert (context, context.deps) == (ToolContext("run", "key", 3, cancelled=context.cancelled), 3)


def test_a_parametrised_context_is_the_context_of_a_tool_and_no_argument_of_the_model() -> None:
    @tool
    def pay(context: ToolContext[Bank], invoice: int) -> str:
        """Pay."""
        return f"{context.deps.name} paid {invoice}"

    assert pay.takes_context
    assert list(pay.parameters["properties"]) == ["invoice"]
    assert pay(ToolContext[Bank]("run", "key", Bank("city")), 3) == "city paid 3"


def test_a_parametrised_context_that_is_not_the_first_parameter_is_refused() -> None:
    def pay(invoice: int, context: ToolContext[Bank]) -> None: ...

    with pytest.raises(ConfigError, match="the ToolContext must be the first parameter, not 'context'"):
        tool(pay)


def test_an_agent_with_parameters_gives_its_deps_to_its_tools() -> None:
    @tool(effect="pure")
    def name(context: ToolContext[Bank]) -> str:
        """Return the name."""
        return context.deps.name

    llm = ScriptedLLM([ToolCall("c1", "name", "{}"), "done"])
    result = Agent[Bank, str](llm, tools=[name], deps=Bank("city"), observers=()).run_sync("go")
    assert (result.messages[-2].content, result.output) == ("city", "done")


@pytest.mark.parametrize(
    ("sync", "coroutine"),
    [
        (Agent.run_sync, Agent.run),
        (Pipeline.run_sync, Pipeline.run),
        (Approval.run_sync, Approval.run),
        (Rlm.run_sync, Rlm.run),
        (Ralph.run_sync, Ralph.run),
    ],
)
def test_a_method_without_an_event_loop_has_the_arguments_of_its_coroutine(sync: Any, coroutine: Any) -> None:
    assert inspect.signature(sync) == inspect.signature(coroutine)

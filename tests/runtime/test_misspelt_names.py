"""Misspelt names and words of other libraries are refused where they stand, by a sentence with the right one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from orchestrator import Agent, ConfigError, GraphError, Limits, LocalEngine, Worker, tool
from orchestrator.approval import Approval
from orchestrator.pipeline import Pipeline
from orchestrator.ralph import Ralph
from orchestrator.rlm import Rlm
from orchestrator.runtime.service.runtime import Runtime
from orchestrator.testing import ScriptedLLM
from orchestrator.tools.tool_set import ToolSet

Anything: Any = Any
LLM = ScriptedLLM([])
AGENT: Any = Agent(LLM, observers=())
MAKE: Any = Agent


class LangChainTool:
    """A tool as LangChain has it."""

    name = "search"

    def __init__(self) -> None:
        self.func = len

    def __call__(self, query: str) -> str:
        return query


class OpenAITool:
    """A tool as openai-agents has it."""

    name = "search"

    async def on_invoke_tool(self, context: Any, arguments: str) -> str:
        return arguments

    def __call__(self, query: str) -> str:
        return query


class MisspeltPoint:
    async def before_tool_exec(self, run: Any, call: Any) -> None: ...


class MisspeltState:
    async def enter_finalise(self, run: Any) -> None: ...


@tool(effect="pure")
def len_of(text: str) -> int:
    """Return a length."""
    return len(text)


SCHEMA = {"type": "function", "function": {"name": "search", "parameters": {}}}
HISTORY = "a conversation in place of the prompt, run([*result.messages, prompt]), or conversation_id=…"

CASES: dict[str, tuple[Callable[[], Any], str]] = {
    "an argument of Agent": (
        lambda: MAKE(LLM, tols=[]),
        "Agent has no argument 'tols'; did you mean 'tools'?",
    ),
    "two words in one": (
        lambda: MAKE(LLM, outputtype=str),
        "Agent has no argument 'outputtype'; did you mean 'output_type'?",
    ),
    "an argument that is like none": (
        lambda: MAKE(LLM, xyzzy=1),
        (
            "Agent has no argument 'xyzzy'; known: model, name, version, tools, instructions, output_type, limits, "
            "retry, hooks, graph, memory, deps, params, runtime, journal, observers, ask, launch"
        ),
    ),
    "of pydantic-ai": (
        lambda: MAKE(LLM, system_prompt="x"),
        "Agent has no argument 'system_prompt'; here it is instructions=…",
    ),
    "settings of pydantic-ai": (
        lambda: MAKE(LLM, model_settings={}),
        "Agent has no argument 'model_settings'; here it is params={…}",
    ),
    "of LangGraph": (
        lambda: MAKE(LLM, checkpointer=None),
        "Agent has no argument 'checkpointer'; here it is journal=SqliteJournal(path)",
    ),
    "of openai-agents": (
        lambda: AGENT.run_sync("Hi.", max_turns=3),
        "a run has no option 'max_turns'; here it is limits=Limits(max_iterations=…)",
    ),
    "run_sync": (
        lambda: AGENT.run_sync("Hi.", runid="r"),
        "a run has no option 'runid'; did you mean 'run_id'?",
    ),
    "run": (lambda: asyncio.run(AGENT.run("Hi.", tag={})), "a run has no option 'tag'; did you mean 'tags'?"),
    "stream": (
        lambda: AGENT.stream("Hi.", deadlin=3),
        "a run has no option 'deadlin'; did you mean 'deadline'?",
    ),
    "deposit": (
        lambda: asyncio.run(AGENT.deposit("Hi.", metdata={})),
        "a run has no option 'metdata'; did you mean 'metadata'?",
    ),
    "submit": (
        lambda: asyncio.run(submitted(runid="r")),
        "a run has no option 'runid'; did you mean 'run_id'?",
    ),
    "a history of pydantic-ai": (
        lambda: AGENT.run_sync("Hi.", message_history=[]),
        f"a run has no option 'message_history'; here it is {HISTORY}",
    ),
    "replace": (lambda: AGENT.replace(limit=None), "replace has no argument 'limit'; did you mean 'limits'?"),
    "tool": (
        lambda: Anything and tool(efect="pure"),  # type: ignore[call-overload]
        "a tool has no option 'efect'; did you mean 'effect'?",
    ),
    "tool of pydantic-ai": (
        lambda: tool(requires_approval=True),  # type: ignore[call-overload]
        "a tool has no option 'requires_approval'; here it is approval=True",
    ),
    "Limits": (
        lambda: Limits(max_iteration=3),  # type: ignore[call-arg]
        "unknown limit 'max_iteration'; did you mean 'max_iterations'?",
    ),
    "tool_caps": (
        lambda: Agent(LLM, tools=[len_of], limits=Limits(tool_caps={"len_off": 1})),
        "limit tool_caps names the tool 'len_off', which does not exist; did you mean 'len_of'? (tools: len_of)",
    ),
    "Pipeline": (lambda: made(Pipeline), "Pipeline has no argument 'jurnal'; did you mean 'journal'?"),
    "Approval": (lambda: made(Approval), "Approval has no argument 'jurnal'; did you mean 'journal'?"),
    "Ralph": (lambda: made(Ralph), "Ralph has no argument 'jurnal'; did you mean 'journal'?"),
    "Rlm": (lambda: made(Rlm), "Rlm has no argument 'jurnal'; did you mean 'journal'?"),
    "Runtime": (lambda: made(Runtime), "Runtime has no argument 'jurnal'; did you mean 'journal'?"),
    "LocalEngine": (
        lambda: LocalEngine(AGENT, slot=3),  # type: ignore[call-arg]
        "LocalEngine has no argument 'slot'; did you mean 'slots'?",
    ),
    "Worker": (
        lambda: Worker(AGENT, None, slot=3),  # type: ignore[arg-type,call-arg]
        "Worker has no argument 'slot'; did you mean 'slots'?",
    ),
    "a schema as a tool": (
        lambda: ToolSet([SCHEMA]),  # type: ignore[list-item]
        (
            "tool 'search' is a schema without a function; give the function, or ToolSpec(name, description, "
            "parameters, function)"
        ),
    ),
    "a tool of LangChain": (
        lambda: ToolSet([LangChainTool()]),
        "tool 'search' is a LangChainTool; give its function: tools=[search.func]",
    ),
    "a tool of openai-agents": (
        lambda: ToolSet([OpenAITool()]),
        "tool 'search' is a OpenAITool; give the function that it was made of, without its decorator",
    ),
    "a point of a hook": (
        lambda: Agent(LLM, hooks=[MisspeltPoint()]),
        (
            "stray_hook: MisspeltPoint.before_tool_exec fits no state or event; did you mean 'before_tools_executed' or "  # noqa: E501
            "'before_tool_execution'?"
        ),
    ),
    "a state of a hook": (
        lambda: Agent(LLM, hooks=[MisspeltState()]),
        "stray_hook: MisspeltState.enter_finalise fits no state or event; did you mean 'enter_finalize'",
    ),
}


def made(kind: Any) -> Any:
    return kind(jurnal=None)


async def submitted(**options: Any) -> None:
    async with LocalEngine(AGENT) as engine:
        await engine.submit("Hi.", **options)


@pytest.mark.parametrize("case", CASES)
def test_a_misspelt_name_is_refused_by_a_sentence_with_the_right_one(case: str) -> None:
    call, sentence = CASES[case]
    with pytest.raises((ConfigError, GraphError)) as refused:
        call()
    told = str(refused.value)
    assert sentence in told if isinstance(refused.value, GraphError) else told == sentence

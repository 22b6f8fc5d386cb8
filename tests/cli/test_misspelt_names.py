"""Misspelt names and words of other libraries are refused where they stand, by a sentence with the right one."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator import (
    Agent,
    ConfigError,
    GraphError,
    Limits,
    LocalEngine,
    MemoryJournal,
    Runtime,
    Worker,
    tool,
)
from orchestrator.approval import Approval
from orchestrator.cli.app import COMMANDS, program
from orchestrator.cli.docs import GUIDES, read_guide
from orchestrator.pipeline import Pipeline
from orchestrator.ralph import Ralph
from orchestrator.rlm import Rlm
from orchestrator.testing import ScriptedLLM
from orchestrator.tools.tool_set import ToolSet
from tests.contract.test_facades import MAKES

Cli = Callable[..., Any]
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


# ---- in Python ----

SCHEMA = {"type": "function", "function": {"name": "search", "parameters": {}}}
HISTORY = "a conversation in place of the prompt, run([*result.messages, prompt]), or conversation_id=…"

IN_PYTHON: dict[str, tuple[Callable[[], Any], str]] = {
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
            "Agent has no argument 'xyzzy'; known: model, name, version, tools, handoffs, instructions, output_type, "
            "limits, retry, hooks, graph, memory, deps, params, input_guards, output_guards, runtime, journal, "
            "observers, ask, launch"
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
    "of the runtime": (
        lambda: MAKE(LLM, migrations=[]),
        "Agent has no argument 'migrations'; here it is runtime=Runtime(migrations=[…]) of an agent",
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


@pytest.mark.parametrize("case", IN_PYTHON)
def test_a_misspelt_name_is_refused_by_a_sentence_with_the_right_one(case: str) -> None:
    call, sentence = IN_PYTHON[case]
    with pytest.raises((ConfigError, GraphError)) as refused:
        call()
    told = str(refused.value)
    assert sentence in told if isinstance(refused.value, GraphError) else told == sentence


MISSPELT = {
    "run": ("runid", "did you mean 'run_id'?"),
    "run_sync": ("deadlin", "did you mean 'deadline'?"),
    "stream": ("thread_id", "here it is run_id=… for one run, conversation_id=… for a conversation"),
    "resume": ("agian", "did you mean 'again'?"),
    "cancel": ("resaon", "did you mean 'reason'?"),
    "pause": ("wy", "did you mean 'why'?"),
    "submit": ("runid", "did you mean 'run_id'?"),
}
"""Method -> a misspelt argument, and the end of its sentence."""


@pytest.mark.parametrize(("kind", "method"), list(itertools.product(sorted(MAKES), MISSPELT)))
def test_each_facade_refuses_misspelt_arguments_of_its_methods(
    kind: str, method: str, tmp_path: Path
) -> None:
    agent = MAKES[kind](tmp_path, Runtime(journal=MemoryJournal(), observers=()))
    name, end = MISSPELT[method]
    if method == "cancel" and kind == "Approval":  # its reason is `why`
        name, end = "wy", "did you mean 'why'?"
    with pytest.raises(ConfigError) as refused:
        asyncio.run(tried(agent, method, name)) if method != "run_sync" else agent.run_sync("x", **{name: 1})
    assert str(refused.value).endswith(f" {name!r}; {end}")


async def tried(agent: Any, method: str, name: str) -> None:
    given: Any = {name: 1}
    if method == "submit":
        async with LocalEngine(agent) as engine:
            await engine.submit("Do it.", **given)
    else:
        await getattr(agent, method)("r1", **given)


@pytest.mark.parametrize("kind", sorted(MAKES))
def test_each_facade_refuses_misspelt_hooks(kind: str, tmp_path: Path) -> None:
    class Misspelt:
        async def enter_nowhere(self, run: Any) -> None: ...

    made = {"Pipeline": Pipeline, "Agent": Agent, "Approval": Approval, "Ralph": Ralph, "Rlm": Rlm}[kind]
    port: Any = print
    given: dict[str, Any] = {
        "Agent": (LLM,),
        "Pipeline": (port,) * 4,
        "Approval": (tmp_path,),
        "Ralph": (port,) * 3,
        "Rlm": (LLM,),
    }
    with pytest.raises(GraphError, match=r"stray_hook: Misspelt\.enter_nowhere fits no state or event"):
        made(*given[kind], hooks=[Misspelt()], observers=())


# ---- on the command line ----

ASK = ("run", "Hi.", "--model")

ON_THE_COMMAND_LINE = {
    "a model of OpenAI without its vendor": ((*ASK, "gpt-5-mini"), "did you mean 'openai:gpt-5-mini'?"),
    "a model of Anthropic without its vendor": (
        (*ASK, "claude-opus-4"),
        "did you mean 'anthropic:claude-opus-4'?",
    ),
    "a misspelt vendor": ((*ASK, "opnai:gpt-5-mini"), "did you mean 'openai:gpt-5-mini'?"),
    "a vendor in capitals": ((*ASK, "Anthropic:claude-opus-4"), "did you mean 'anthropic:claude-opus-4'?"),
    "a module without python:": ((*ASK, "weather:model"), "did you mean 'python:weather:model'?"),
    "an attribute of a module": (
        (*ASK, "python:weather:modle"),
        "weather has no 'modle'; did you mean 'model'?",
    ),
    "the module of a tool": (
        (*ASK, "python:weather:model", "--tool", "wether:weather"),
        "there is no module 'wether' in the working directory or among the installed packages; did you mean 'weather'?",
    ),
    "the function of a tool": (
        (*ASK, "python:weather:model", "--tool", "weather:wether"),
        "weather has no 'wether'; did you mean 'weather'?",
    ),
    "a command of a group": (("resume", "r1"), "No such command 'resume': it is `orchestrator runs resume`"),
    "another one": (("approve", "r1"), "No such command 'approve': it is `orchestrator runs approve`"),
    "a command": (("rum", "Hi."), "No such command 'rum'. Did you mean"),
    "a guide": (("docs", "jurnal"), "no guide 'jurnal'; did you mean 'journal'?"),
}


@pytest.mark.parametrize("case", ON_THE_COMMAND_LINE)
def test_a_misspelt_name_on_the_command_line_is_refused_by_a_sentence_with_the_right_one(
    case: str, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "weather.py").write_text("def weather(): ...\nclass model:\n    complete = print\n")
    monkeypatch.chdir(tmp_path)
    line, sentence = ON_THE_COMMAND_LINE[case]
    done = cli(*line)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert sentence in done.err
    assert not list(tmp_path.glob(".orchestrator"))


def test_each_command_of_a_group_is_found_from_its_name_alone() -> None:
    commands: Any = program()
    for group in COMMANDS:
        for name in getattr(commands.load(group), "commands", {}):
            assert name in COMMANDS or commands.elsewhere(name).endswith(f" {name}")


@pytest.mark.parametrize("guide", [one for one in GUIDES if one.folder], ids=lambda one: one.folder)
def test_the_name_of_a_folder_is_a_name_of_its_guide(guide: Any) -> None:
    taken = {one.topic for one in GUIDES}
    assert guide.folder in taken or read_guide(guide.folder) == read_guide(guide.topic)

"""Arguments of the wrong kind: told where they are given, with what was given and what is wanted."""

from __future__ import annotations

import inspect
import types
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from orchestrator.engines.local_engine import LocalEngine
from orchestrator.errors import ConfigError
from orchestrator.journal.memory import MemoryJournal
from orchestrator.kernel.fact import Fact
from orchestrator.kernel.outcome import Outcome
from orchestrator.llm.message import Request, Response
from orchestrator.machines.approval.plan import PlanDraft
from orchestrator.machines.llm_loop.limits import Limits
from orchestrator.providers.scripted import ScriptedLLM
from orchestrator.runtime.approval.approval import Approval
from orchestrator.runtime.llm_loop.agent import Agent
from orchestrator.runtime.pipeline.pipeline import Pipeline
from orchestrator.runtime.ralph.ralph import Ralph
from orchestrator.runtime.rlm.rlm import Rlm
from orchestrator.runtime.service.runtime import Runtime
from orchestrator.tools.spec import tool
from tests.runtime.stage import Facts, agent


async def ask(request: Request) -> str:
    return "x"


@tool
def look(where: str) -> str:
    """Look."""
    return where


class Watcher:
    async def observe(self, fact: Fact) -> None: ...


class Sync:
    def complete(self, request: Request) -> Response:
        return Response("a")


class HandsOn:
    def __init__(self) -> None:
        self.inner = ScriptedLLM(["handed on"])

    def complete(self, request: Request) -> Awaitable[Response]:
        return self.inner.complete(request)


WRONG: list[tuple[Mapping[str, Any], str]] = [
    ({"model": ask}, "model is the function ask; wrap it: FunctionLLM(ask)"),
    ({"model": "gpt-4"}, "unknown model 'gpt-4'; did you mean 'openai:gpt-4'?"),
    ({"model": ScriptedLLM}, "model is the class ScriptedLLM; give an instance of it"),
    ({"model": Sync()}, "complete of Sync is not async; write `async def complete(self, request)`"),
    ({"tools": ask}, "tools is the function ask; give a list: tools=[ask]"),
    ({"tools": look}, "tools is a ToolSpec; give a list: tools=[it]"),
    ({"tools": {"a": ask}}, "tools is {'a': <function ask"),
    ({"tools": "ab"}, "tools is 'ab'; give a list of functions"),
    ({"tools": 5}, "tools is 5; give a list of functions"),
    ({"limits": {"max_iterations": 3}}, "limits is {'max_iterations': 3}; give Limits(max_iterations=3)"),
    ({"limits": 3}, "limits is 3; give Limits(max_iterations=100)"),
    ({"retry": 4}, "retry is 4; give RetryPolicy(attempts=4)"),
    ({"retry": "no"}, "retry is 'no'; give RetryPolicy(attempts=4)"),
    ({"journal": "a.db"}, "journal is 'a.db'; give SqliteJournal('a.db')"),
    ({"journal": Path("a.db")}, "give SqliteJournal('a.db')"),
    ({"journal": MemoryJournal}, "journal is the class MemoryJournal; give a journal"),
    ({"journal": 5}, "journal is 5; give a journal, for example SqliteJournal(path)"),
    ({"memory": object()}, "memory is an object; give an object with async prepare, store"),
    ({"observers": print}, "observers is the function print; give a list of observers"),
    ({"observers": Facts()}, "observers is a Facts; give a list: observers=[it]"),
    ({"observers": [print]}, "observers has the function print; give an object with `observe(fact)`"),
    ({"observers": [Facts(), Facts]}, "observers has the class Facts; give an instance: Facts()"),
    (
        {"observers": [Watcher()]},
        "observe of Watcher is async, but it is not awaited; make it a plain function",
    ),
    ({"hooks": object()}, "hooks is an object; give a list: hooks=[it]"),
    ({"hooks": types.ModuleType("mine")}, "hooks is the module mine; give a list: hooks=[mine]"),
    ({"hooks": "mine"}, "hooks is 'mine'; give a list"),
    ({"graph": "llm_loop"}, "graph is 'llm_loop'; give a Graph, for example LLM_LOOP"),
    ({"instructions": 5}, "instructions is 5; give text"),
    ({"params": ["temperature"]}, "params is ['temperature']; give a dict"),
    ({"launch": "x"}, "launch is 'x'; give a dict"),
    ({"runtime": 5}, "runtime is 5; give a Runtime, for example Runtime(journal=SqliteJournal(path))"),
    ({"runtime": MemoryJournal()}, "runtime is a MemoryJournal; give Runtime(journal=...)"),
    ({"runtime": Runtime}, "runtime is the class Runtime; give a Runtime"),
]


@pytest.mark.parametrize(("given", "said"), WRONG, ids=[said for _, said in WRONG])
def test_an_argument_of_the_wrong_kind_is_refused_at_once(given: Mapping[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Agent(**{"model": ScriptedLLM([]), "observers": (), **given})
    assert said in str(caught.value)


def test_all_of_them_stand_in_one_error() -> None:
    with pytest.raises(ConfigError) as caught:
        Agent(ask, retry=4, journal="a.db", observers=())  # type: ignore[call-overload]
    assert [part.split(" ")[0] for part in str(caught.value).split("; ")][::2] == [
        "model",
        "retry",
        "journal",
    ]


def test_iterators_are_not_used_up_by_looking() -> None:
    facts, tools = iter([Facts()]), iter([look])
    runner = Agent(ScriptedLLM(["x"]), observers=facts, tools=tools)
    assert runner.run_sync("go").outcome is Outcome.COMPLETED
    assert runner.hosting.tools == ("look",)


async def test_a_model_that_hands_on_what_another_one_will_answer_says_so_by_its_annotation() -> None:
    assert (await agent(HandsOn()).run("go")).output == "handed on"


# ---- of a run ----

IDS = [
    (3, "run_id is 3; give text of 1 to 256 printable characters, without line breaks"),
    ("", "run_id is ''; give text of 1 to 256"),
    ("a/b\n", r"run_id is 'a/b\n'; give text"),
    ("a\x00", "run_id is"),
    *(
        (text, "which no route or command line can name")
        for text in ("a b/c", "/", ".", "..", " a", "a ", "-a")
    ),
    ("a" * 257, "run_id is 257 characters long; give text of 1 to 256"),
    ("\ud800", "run_id is"),
]


@pytest.mark.parametrize(("run_id", "said"), IDS, ids=lambda value: ascii(value)[:30])
async def test_a_run_id_that_could_not_be_shown_or_stored_is_refused(run_id: Any, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        await agent(["x"]).run("go", run_id=run_id)
    assert said in str(caught.value)


@pytest.mark.parametrize("run_id", ["a", "é", "a b", "a?b#c%d", "x" * 256, "会議-1", "p:1:0"])
async def test_any_run_id_that_a_route_can_name_will_do(run_id: str) -> None:
    assert (await agent(["x"]).run("go", run_id=run_id)).run_id == run_id


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"deadline": "3"}, "deadline is '3'; give the seconds from now as a number"),
        ({"deadline": True}, "deadline is True; give the seconds"),
        ({"deadline": float("nan")}, "deadline is nan; give the seconds"),
        ({"limits": {"max_cost": 1.5}}, "limits is {'max_cost': 1.5}; give Limits(max_cost=1.5)"),
        ({"conversation_id": "a\tb"}, "conversation_id is 'a\\tb'; give text of 1 to 256"),
    ],
)
async def test_the_other_options_of_a_run_are_looked_at_too_here_and_by_an_engine(
    options: dict[str, Any], said: str
) -> None:
    runner = agent(["x"])
    with pytest.raises(ConfigError) as caught:
        await runner.run("go", **options)
    assert said in str(caught.value)
    async with LocalEngine(runner) as engine:
        with pytest.raises(ConfigError) as again:
            await engine.submit("go", **options)
    assert str(again.value) == str(caught.value)


async def test_a_run_is_not_resumed_with_limits_that_are_none() -> None:
    runner = agent(["x"])
    await runner.run("go", run_id="r")
    with pytest.raises(ConfigError, match="limits is 3; give Limits"):
        await runner.resume("r", limits=3)  # type: ignore[arg-type]
    assert (await runner.resume("r", limits=Limits())).outcome is Outcome.COMPLETED


# ---- of every composition ----

COMPOSITIONS: Mapping[str, Callable[..., object]] = {
    "Agent": lambda **given: Agent(**{"model": ScriptedLLM([]), "observers": (), **given}),
    "Pipeline": lambda **given: Pipeline(print, print, print, print, **{"observers": (), **given}),
    "Ralph": lambda **given: Ralph(print, print, print, **{"observers": (), **given}),
    "Rlm": lambda **given: Rlm(**{"model": ScriptedLLM([]), "observers": (), **given}),
    "Approval": lambda **given: Approval(**{"project": ".", **given}),
}

MISFITS: Mapping[str, tuple[object, str]] = {
    "limits": (3, "limits is 3; give "),
    "journal": ("a.db", "give SqliteJournal('a.db')"),
    "observers": ([Facts], "observers has the class Facts; give an instance"),
    "hooks": ("mine", "hooks is 'mine'; give a list"),
    "graph": ("llm_loop", "graph is 'llm_loop'; give a Graph"),
    "runtime": (5, "runtime is 5; give a Runtime"),
    "launch": ("x", "launch is 'x'; give a dict"),
    "retry": (3, "retry is 3; give RetryPolicy(attempts=3)"),
    "tools": (ask, "give a list: tools=[ask]"),
    "params": (["a"], "params is ['a']; give a dict"),
    "instructions": (5, "instructions is 5; give text"),
    "root": ("", "root is ''; give the path of a directory"),
    "project": (None, "project is None; give the path of a directory"),
    "stopping": (3, "stopping is 3; give an object with should_stop, on_iteration_complete"),
    "compressor": (3, "compressor is 3; give an object with compress"),
    "nested": (3, "nested is 3; give an object with should_orchestrate, get_nested_config"),
    "repl": (3, "repl is 3; give a function that makes the REPL of a run"),
    "sub_model": (ask, "sub_model is the function ask; wrap it: FunctionLLM(ask)"),
    "on_step": (3, "on_step is 3; give a function of one StepFact"),
}


TAKEN = [
    (name, argument)
    for name, kind in zip(COMPOSITIONS, (Agent, Pipeline, Ralph, Rlm, Approval), strict=True)
    for argument in inspect.signature(kind).parameters
    if argument in MISFITS
]


@pytest.mark.parametrize(("composition", "argument"), TAKEN)
def test_every_composition_says_the_same_of_an_argument_of_the_wrong_kind(
    composition: str, argument: str
) -> None:
    value, said = MISFITS[argument]
    with pytest.raises(ConfigError) as caught:
        COMPOSITIONS[composition](**{argument: value})
    assert said in str(caught.value)


def test_the_planner_of_approval_is_an_object_and_no_plan() -> None:
    draft = PlanDraft.read({"goal": "A note.", "steps": []})
    with pytest.raises(ConfigError, match="planner is a PlanDraft; give an object with async extract, plan"):
        Approval(".", draft)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "called", "instead"),
    [
        ("Agent", "run_sync", "await agent.run("),
        ("Pipeline", "run_sync", "await pipeline.run("),
        ("Ralph", "run_sync", "await ralph.run("),
        ("Rlm", "run_sync", "await rlm.run("),
    ],
)
async def test_inside_an_event_loop_the_method_to_await_is_named(
    name: str, called: str, instead: str
) -> None:
    runner = COMPOSITIONS[name]()
    assert hasattr(runner, instead.split(".")[1].rstrip("("))
    with pytest.raises(ConfigError) as caught:
        getattr(runner, called)("x")
    assert str(caught.value).startswith(f"{called} was called")
    assert instead in str(caught.value)

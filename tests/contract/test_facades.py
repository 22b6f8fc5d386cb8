"""The five classes of agents have the same methods with the same options, and each works in an engine."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from orchestrator import Agent, ConfigError, LocalEngine, MemoryJournal, Runtime, RunUnknown, SqliteJournal
from orchestrator.approval import Approval
from orchestrator.events import RunCreated, RunFinished
from orchestrator.pipeline import Pipeline
from orchestrator.ralph import Ralph
from orchestrator.rlm import Rlm
from orchestrator.runtime.llm_loop.run_options import RunArguments
from orchestrator.testing import ScriptedLLM
from tests.runtime.approval.stand import Script, planted
from tests.runtime.pipeline_stage import Stages
from tests.runtime.ralph_stage import World

CLASSES: tuple[Any, ...] = (Agent, Pipeline, Approval, Ralph, Rlm)
VERBS = {"run", "run_sync", "stream", "resume", "cancel", "pause", "runs"}
COMMON = {"run_id", "limits", "deadline", "metadata", "tags"}
RESUME = {"run_id", "limits", "by", "again", "from_agent"}
PROJECT = {"limits", "from_agent", "by", "reason"}
"""Options that a request of a project does not have: it has the limits, the name and the actor of its Approval."""
BUILT = {"name", "version", "runtime", "journal", "observers", "launch", "hooks", "limits"}


def make_agent(_: Path, runtime: Runtime) -> Any:
    return Agent(ScriptedLLM(["done"] * 9), name="one", runtime=runtime)


def make_pipeline(_: Path, runtime: Runtime) -> Any:
    stages = Stages()
    ports = stages.planner, stages.validator, stages.implementer, stages.judge
    return Pipeline(*ports, name="one", runtime=runtime)


def make_approval(folder: Path, runtime: Runtime) -> Any:
    return Approval(planted(folder), Script(), name="one", runtime=runtime)


def make_ralph(folder: Path, runtime: Runtime) -> Any:
    world = World(folder)
    return Ralph(world, world, world, root=world.root, name="one", runtime=runtime)


def make_rlm(_: Path, runtime: Runtime) -> Any:
    return Rlm(ScriptedLLM(["FINAL(done)"] * 9), name="one", runtime=runtime)


MAKES: dict[str, Callable[[Path, Runtime], Any]] = {
    "Agent": make_agent,
    "Pipeline": make_pipeline,
    "Approval": make_approval,
    "Ralph": make_ralph,
    "Rlm": make_rlm,
}

each = pytest.mark.parametrize("kind", sorted(MAKES))


@pytest.fixture
def runtime(tmp_path: Path) -> Runtime:
    return Runtime(journal=SqliteJournal(tmp_path / "runs.db"), observers=())


@pytest.mark.parametrize("kind", CLASSES, ids=lambda one: one.__name__)
def test_each_class_has_the_same_methods_with_the_same_options(kind: Any) -> None:
    missing = VERBS - set(dir(kind))
    assert not missing
    lacks = PROJECT if kind is Approval else set()
    for verb in ("run", "run_sync", "stream"):
        assert _options(getattr(kind, verb)) >= COMMON - lacks, verb
    assert _options(kind.resume) >= RESUME - lacks
    for verb in ("cancel", "pause"):
        assert _options(getattr(kind, verb)) >= {"run_id", "by", "why"} - lacks, verb


@pytest.mark.parametrize("kind", CLASSES, ids=lambda one: one.__name__)
def test_each_constructor_has_the_common_arguments_and_no_open_options(kind: Any) -> None:
    given = inspect.signature(kind.__init__).parameters
    assert set(given) >= BUILT
    assert not {"clock", "migrations", "price", "check_purity"} & set(given)
    assert all(one.kind is not one.VAR_KEYWORD for one in given.values())


@pytest.mark.parametrize("kind", CLASSES, ids=lambda one: one.__name__)
def test_what_only_an_engine_calls_is_not_public(kind: Any) -> None:
    public = {name for name in dir(kind) if not name.startswith("_")}
    assert not public & {"check", "begin", "check_options", "open_runs"}


@each
async def test_each_runs_and_its_run_has_the_data_of_the_host(
    kind: str, tmp_path: Path, runtime: Runtime
) -> None:
    agent = MAKES[kind](tmp_path, runtime)
    result = await agent.run("Do it.", run_id="r", metadata={"user": 7}, tags={"team": "ops"})
    assert result.run_id == "r"
    [head] = [one for one in await agent.runs.list() if one.run_id == "r"]
    assert (head.agent, head.tags) == ("one", {"team": "ops"})


@each
def test_each_runs_without_an_event_loop(kind: str, tmp_path: Path) -> None:
    agent = MAKES[kind](tmp_path, Runtime(journal=MemoryJournal(), observers=()))
    assert agent.run_sync("Do it.", run_id="r").run_id == "r"


@each
async def test_each_streams_the_events_of_its_run(kind: str, tmp_path: Path, runtime: Runtime) -> None:
    agent = MAKES[kind](tmp_path, runtime)
    stream = agent.stream("Do it.", run_id="s")
    kinds = {type(event) for event in [event async for event in stream] if event.run_id == "s"}
    assert RunCreated in kinds
    assert (await stream.result()).run_id == "s"


@each
async def test_each_runs_and_streams_in_an_engine(kind: str, tmp_path: Path, runtime: Runtime) -> None:
    agent = MAKES[kind](tmp_path, runtime)
    async with LocalEngine(agent) as engine:
        handle = await engine.submit("Do it.", run_id="e", tags={"team": "ops"})
        assert (await handle).run_id == "e"
        [head] = [one for one in await agent.runs.list() if one.run_id == "e"]
        assert head.tags == {"team": "ops"}
        if kind != "Approval":  # a project has one request at a time, and this one waits for a person
            kinds = [type(event) async for event in engine.stream("Do it.", run_id="f")]
            assert kinds[-1] is RunFinished


@each
async def test_each_refuses_an_unknown_option_of_an_engines_run(
    kind: str, tmp_path: Path, runtime: Runtime
) -> None:
    agent = MAKES[kind](tmp_path, runtime)
    async with LocalEngine(agent) as engine:
        with pytest.raises(ConfigError, match=r"tags is \['a'\]; give a dict"):
            await engine.submit("Do it.", tags=["a"])  # type: ignore[arg-type]
        if kind != "Agent":
            with pytest.raises(ConfigError, match="has no option 'tools'; known: run_id, "):
                await engine.submit("Do it.", tools=["look"])


@each
async def test_each_refuses_a_run_that_does_not_exist(kind: str, tmp_path: Path, runtime: Runtime) -> None:
    agent = MAKES[kind](tmp_path, runtime)
    with pytest.raises(RunUnknown):
        await agent.resume("nobody")
    with pytest.raises(RunUnknown):
        await agent.cancel("nobody")


async def test_a_request_that_an_engine_planned_is_approved_and_executed_in_it(
    tmp_path: Path, runtime: Runtime
) -> None:
    approval = make_approval(tmp_path, runtime)
    async with LocalEngine(approval) as engine:
        planned = await (await engine.submit("Tidy up.", run_id="tidy"))
        assert planned.state == "AwaitingApproval"
        await approval.show()
        await approval.approve("tidy", start=False)
        done = await (await engine.resume("tidy"))
    assert (done.run_id, done.plan_status) == ("tidy", "completed")


def _options(method: Any) -> set[str]:
    names = set(inspect.signature(method).parameters)
    if "options" in names:
        names |= set(get_type_hints(RunArguments))
    return names

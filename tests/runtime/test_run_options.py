"""Options of one run: what differs from the agent is stored with the run and restored when it is resumed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from pydantic import BaseModel

from orchestrator import Agent, ConfigError, LocalEngine, MemoryJournal, RunError, ToolContext, tool
from orchestrator.engines.served_agent import DurableAgent
from orchestrator.errors import Suspended
from orchestrator.llm.message import Request
from orchestrator.providers.scripted import call
from orchestrator.runtime.llm_loop.result import Result
from orchestrator.runtime.llm_loop.run_options import FUNCTION_SECONDS
from orchestrator.testing import FakeClock, ScriptedLLM
from orchestrator.tools.spec import RunContext
from orchestrator_callbacks.llm_loop.deps import LoopRun
from tests.with_runtime import with_runtime


class City(BaseModel):
    name: str


class Requests:
    """A hook that keeps what the model was asked, and cuts the run off before its first request if `cut`."""

    def __init__(self, *, cut: bool = False) -> None:
        self.seen: list[Request] = []
        self._cut = cut

    async def before_llm_request(self, run: LoopRun, request: Request) -> None:
        """Keep a request."""
        self.seen.append(request)
        if self._cut:
            raise asyncio.CancelledError  # as if the process died: the run stays in the journal


SEEN: list[Any] = []


@tool(effect="pure")
def look(context: ToolContext) -> str:
    """Look."""
    SEEN.append(context.deps)
    return "seen"


@tool(effect="pure")
def search(query: str) -> str:
    """Search."""
    return "found"


def agent(*answers: Any, journal: MemoryJournal | None = None, **options: Any) -> Agent:
    options = {"tools": [look, search], "observers": (), **options}
    return Agent(ScriptedLLM(list(answers)), **with_runtime(journal=journal or MemoryJournal(), **options))


async def left(journal: MemoryJournal, agent_options: Mapping[str, Any], **options: Any) -> None:
    """Start the run `r` and leave it before its first request, as a process that dies."""
    hooks = Requests(cut=True)
    started = agent("never", journal=journal, hooks=[hooks], **agent_options)
    with pytest.raises(asyncio.CancelledError):
        await started.run("go", run_id="r", **options)


async def created(journal: MemoryJournal) -> Mapping[str, Any]:
    return (await journal.load("r"))[0].body


# ---- instructions ----


async def test_instructions_of_a_run_replace_those_of_the_agent() -> None:
    hooks = Requests()
    one = agent("a", "b", instructions="Agent.", hooks=[hooks])
    await one.run("go", instructions="Run.")
    await one.run("go")
    assert [request.messages[0].text for request in hooks.seen] == ["Run.", "Agent."]


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_a_function_of_the_run_gives_the_instructions_once(kind: str) -> None:
    asked: list[RunContext] = []

    def say(run: RunContext) -> str:
        asked.append(run)
        return f"Speak {run.metadata['language']} as {run.deps}."

    async def say_async(run: RunContext) -> str:
        return say(run)

    function: Callable[[RunContext], Any] = say if kind == "sync" else say_async
    journal, hooks = MemoryJournal(), Requests()
    data = {"metadata": {"language": "Dutch"}, "tags": {"team": "ops"}}
    await left(journal, {"instructions": function, "deps": lambda _: "host"}, **data)
    resumed = agent("done", journal=journal, instructions=function, hooks=[hooks], deps=lambda _: "host")
    await resumed.resume("r")
    assert asked == [RunContext("r", {"language": "Dutch"}, {"team": "ops"}, "host")]
    assert hooks.seen[0].messages[0].text == "Speak Dutch as host."


async def test_a_conversation_has_only_the_instructions_of_its_last_run() -> None:
    hooks = Requests()
    one = agent("a", "b", hooks=[hooks])
    await one.run("first", conversation_id="c", instructions="One.")
    await one.run("second", conversation_id="c", instructions="Two.")
    assert [(m.role, m.text) for m in hooks.seen[1].messages] == [
        ("system", "Two."),
        ("user", "first"),
        ("assistant", "a"),
        ("user", "second"),
    ]


# ---- tools and params ----


async def test_a_run_has_only_its_selected_tools_also_after_it_was_resumed() -> None:
    journal, hooks = MemoryJournal(), Requests()
    await left(journal, {}, tools=["search"])
    assert (await created(journal))["options"] == {"tools": ["search"]}
    one = agent(call("look"), "done", journal=journal, hooks=[hooks])
    result = await one.resume("r")
    assert [spec.name for spec in hooks.seen[0].tools] == ["search"]
    assert "there is no tool 'look'" in result.messages[-2].text
    await agent("done", hooks=[hooks]).run("go", tools=[])
    assert hooks.seen[-1].tools == ()


async def test_params_of_a_run_are_added_to_those_of_the_agent_also_after_it_was_resumed() -> None:
    journal, hooks = MemoryJournal(), Requests()
    await left(journal, {"params": {"temperature": 0, "top_p": 1}}, params={"temperature": 1, "seed": 3})
    one = agent("done", journal=journal, hooks=[hooks], params={"temperature": 0, "top_p": 1})
    await one.resume("r")
    assert hooks.seen[0].params == {"temperature": 1, "top_p": 1, "seed": 3}


async def test_a_run_without_options_stores_none() -> None:
    journal = MemoryJournal()
    await agent("done", journal=journal).run("go", run_id="r")
    assert "options" not in await created(journal)


# ---- output type ----


@pytest.mark.parametrize(("own", "output"), [(City, City(name="Delft")), (None, {"name": "Delft"})])
async def test_a_resumed_run_has_the_output_type_of_the_agent_or_plain_json(own: Any, output: Any) -> None:
    journal = MemoryJournal()
    await left(journal, {}, output_type=City)
    one = agent('{"name": 3}', '{"name": "Delft"}', journal=journal, output_type=own, version="2")
    assert (await one.resume("r")).output == output
    assert (await one.resume("r")).output == output  # read from the ended run


async def test_the_output_type_of_a_run_replaces_that_of_the_agent() -> None:
    one = agent('{"name": "Delft"}', "text", output_type=dict[str, int])
    assert (await one.run("go", output_type=City)).output == City(name="Delft")
    assert (await one.run("go", output_type=str)).output == "text"


# ---- deps ----


@pytest.fixture(autouse=True)
def _nothing_seen() -> None:
    SEEN.clear()


@tool(effect="pure")
def read_city(context: ToolContext[City]) -> str:
    """Read."""
    return context.deps.name


@tool(effect="pure")
def read_city_if_any(context: ToolContext[City | None], other: str = "") -> str:
    """Read."""
    return context.deps.name if context.deps else other


async def test_a_run_whose_tool_reads_deps_is_refused_without_any() -> None:
    """Where it is started, and where an agent gets tools or runs that no call gives any."""
    refusal = r"^tool 'read_city' reads deps \(City\), and neither the agent nor the run has any; give one"
    journal = MemoryJournal()
    without = agent("done", journal=journal, tools=[read_city])
    async with LocalEngine(without) as engine:
        for start in (
            lambda: without.run("go"),
            lambda: anext(aiter(without.stream("go"))),
            lambda: engine.submit("go"),
        ):
            with pytest.raises(ConfigError, match=refusal):
                await start()
    assert [head.graph async for head in journal.runs()] == ["engine"]
    with pytest.raises(ConfigError, match=refusal):
        without.as_tool("child", "A child.")
    with pytest.raises(ConfigError, match=refusal):
        DurableAgent(without, "served", "An agent of an MCP server.")
    assert await without.deposit("go", run_id="left"), "the deps are the worker's"

    oslo = City(name="Oslo")
    assert "Oslo" in answers(await agent(call(read_city), "done", tools=[read_city]).run("go", deps=oslo))
    for deps in (oslo, lambda _: oslo):
        assert "Oslo" in answers(await agent(call(read_city), "done", tools=[read_city], deps=deps).run("go"))
    lenient = agent(call(read_city_if_any, other="Bergen"), "done", tools=[read_city_if_any])
    assert "Bergen" in answers(await lenient.run("go"))


def answers(result: Result[Any]) -> list[str]:
    """Return what the model read of the tools."""
    return [message.text for message in result.messages if message.role == "tool"]


async def test_tools_receive_the_deps_of_their_run() -> None:
    one = agent(call("look"), "done", call("look"), "done", deps="agent's")
    await one.run("go", deps="run's")
    await one.run("go")
    assert SEEN == ["run's", "agent's"]


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_a_factory_builds_the_deps_of_each_run_also_after_a_crash(kind: str) -> None:
    def connect(run: RunContext) -> str:
        return f"{run.run_id} of {run.metadata['tenant']}"

    async def connect_async(run: RunContext) -> str:
        return connect(run)

    factory: Any = connect if kind == "sync" else connect_async
    journal = MemoryJournal()
    await left(journal, {"deps": factory}, metadata={"tenant": "t-1"})
    await agent(call("look"), "done", journal=journal, deps=factory).resume("r")
    assert SEEN == ["r of t-1"]


async def test_the_factory_of_a_child_agent_gets_the_metadata_of_its_parent() -> None:
    child = Agent(ScriptedLLM([call("look"), "x"]), tools=[look], observers=(), deps=lambda run: run.metadata)
    one = agent(call("ask", task="x"), "done", tools=[child.as_tool("ask", "Ask.")])
    await one.run("go", metadata={"tenant": "t-1"})
    assert SEEN == [{"tenant": "t-1"}]


async def test_a_run_with_live_deps_is_parked_listed_and_never_executed_without_a_factory() -> None:
    journal = MemoryJournal()
    await left(journal, {}, deps="live")
    assert (await created(journal))["options"] == {"deps": True}
    other = agent("never", journal=journal)
    for _ in range(7):  # more often than a run may be claimed without a step
        with pytest.raises(Suspended, match="waits for deps: it was started with live deps") as refused:
            await other.resume("r")
        assert refused.value.reason == "deps_required"
    head = await journal.head("r")
    assert (head.status, head.reason) == ("parked", "deps_required")
    [listed] = await other.hosting.open_runs()
    assert (listed.status, listed.unattended) == ("parked", False)
    assert listed.will.startswith("waits for deps: ")
    async with LocalEngine(other, recover="resume") as engine:
        assert engine.recovered == {}
    assert (await agent(call("look"), "done", journal=journal).resume("r", deps="new")).output == "done"
    assert SEEN == ["new"]


async def test_an_engine_whose_agent_has_a_factory_resumes_a_run_that_waits_for_deps() -> None:
    journal = MemoryJournal()
    await left(journal, {}, deps="live")
    async with LocalEngine(agent("never", journal=journal), recover="resume") as engine:
        with pytest.raises(Suspended):
            await engine.recovered["r"]
    assert (await journal.head("r")).reason == "deps_required"
    one = agent(call("look"), "done", journal=journal, deps=lambda _: "built")
    async with LocalEngine(one, recover="resume") as engine:
        assert (await engine.recovered["r"]).output == "done"
    assert SEEN == ["built"]


async def test_a_lost_answer_is_charged_also_after_the_run_has_waited_for_deps() -> None:
    journal = MemoryJournal()
    await left(journal, {}, deps="live")
    with pytest.raises(Suspended):
        await agent("never", journal=journal).resume("r")
    assert (
        "what the lost answer may have cost is charged"
        in (await agent("x", journal=journal, deps=lambda _: 1).hosting.open_runs())[0].will
    )


def broken(run: RunContext) -> None:
    raise OSError("no route to host")


async def test_a_factory_that_raises_fails_every_start_with_one_sentence_and_stores_nothing() -> None:
    journal = MemoryJournal()
    one = agent("never", journal=journal, deps=broken)
    async with LocalEngine(one) as engine:

        async def submitted() -> Result[Any]:
            return await (await engine.submit("go", run_id="r"))

        for start in (
            lambda: one.run("go", run_id="r"),
            lambda: anext(aiter(one.stream("go", run_id="r"))),
            submitted,
            lambda: anext(aiter(engine.stream("go", run_id="r"))),
        ):
            with pytest.raises(RunError) as refused:
                await start()
            assert str(refused.value) == "the deps factory of run 'r' failed: OSError: no route to host"
    assert [head.graph async for head in journal.runs()] == ["engine"]


async def test_a_deposited_run_whose_factory_raises_waits_for_an_engine_whose_factory_works() -> None:
    journal = MemoryJournal()
    await agent("never", journal=journal, deps=broken).deposit("go", run_id="r")
    for _ in range(2):
        async with LocalEngine(agent("never", journal=journal, deps=broken), recover="resume") as engine:
            with pytest.raises(RunError, match="the deps factory of run 'r' failed: OSError"):
                await engine.recovered["r"]
        head = await journal.head("r")
        assert (head.status, head.owner) == ("open", None)
    one = agent(call("look"), "done", journal=journal, deps=lambda _: "built")
    async with LocalEngine(one, recover="resume") as engine:
        assert (await engine.recovered["r"]).output == "done"
    assert SEEN == ["built"]


async def test_a_child_whose_factory_raises_is_a_failed_call_of_its_parent() -> None:
    child = Agent(ScriptedLLM(["never"]), tools=[look], observers=(), deps=broken)
    one = agent(call("ask", task="x"), "done", tools=[child.as_tool("ask", "Ask.")])
    result = await one.run("go", run_id="r")
    assert result.output == "done"
    [read] = answers(result)
    assert "the deps factory of run 'r:1:0' failed: OSError" in read


async def test_a_factory_that_raises_at_a_resumption_leaves_the_run_in_the_journal() -> None:
    journal = MemoryJournal()
    await left(journal, {"deps": lambda _: 1})
    with pytest.raises(RunError, match="the deps factory of run 'r' failed: OSError: no route to host"):
        await agent("never", journal=journal, deps=broken).resume("r")
    assert (await agent("done", journal=journal, deps=lambda _: 1).resume("r")).output == "done"


async def test_a_slow_factory_fails_after_its_time_limit() -> None:
    clock, began = FakeClock(), asyncio.Event()

    async def slow(run: RunContext) -> None:
        began.set()
        await asyncio.Event().wait()

    work = asyncio.create_task(agent("never", deps=slow, clock=clock).run("go", run_id="r"))
    await began.wait()
    await clock.advance(FUNCTION_SECONDS)
    with pytest.raises(
        RunError, match="the deps factory of run 'r' did not return within 30 s; make it faster"
    ):
        await work


async def test_a_function_of_instructions_that_returns_no_text_is_refused() -> None:
    with pytest.raises(
        RunError, match="the instructions function of run 'r' returned int; return text or None"
    ):
        await agent("never").run("go", run_id="r", instructions=lambda _: 3)


# ---- every way to start a run ----


async def test_every_way_to_start_a_run_takes_the_same_options() -> None:
    hooks = Requests()
    one = agent(*["done"] * 4, hooks=[hooks])
    await one.run("go", tools=["search"], instructions="Run.")
    assert [fact async for fact in one.stream("go", tools=["search"], instructions="Run.")]
    async with LocalEngine(one) as engine:
        await (await engine.submit("go", tools=["search"], instructions="Run."))
        assert [fact async for fact in engine.stream("go", tools=["search"], instructions="Run.")]
    for request in hooks.seen:
        assert [spec.name for spec in request.tools] == ["search"]
        assert request.messages[0].text == "Run."
    assert len(hooks.seen) == 4


async def test_a_deposited_run_has_its_options_where_it_is_executed() -> None:
    journal, hooks = MemoryJournal(), Requests()
    journal.shared = True
    await agent("never", journal=journal, deps=lambda _: "depositor").deposit(
        "go", run_id="r", tools=["look"], params={"seed": 3}, instructions=lambda run: f"For {run.deps}."
    )
    one = agent(call("look"), "done", journal=journal, hooks=[hooks], deps=lambda _: "worker")
    await one.resume("r")
    assert [spec.name for spec in hooks.seen[0].tools] == ["look"]
    assert hooks.seen[0].params == {"seed": 3}
    assert hooks.seen[0].messages[0].text == "For depositor."
    assert SEEN == ["worker"]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"tools": ["look", "pay"]}, "the agent has no tool 'pay'; its tools: look, search"),
        ({"tools": "look"}, "tools is 'look'; give names of the agent's tools: tools=['search']"),
        ({"tools": 3}, "tools is 3; give names of the agent's tools"),
        ({"params": {"a": object()}}, "params cannot be stored as JSON: "),
        ({"params": 3}, "params is 3; give a dict with text keys and JSON values"),
        ({"output_type": 3}, "output_type 3 is neither a type nor a JSON schema"),
        ({"instructions": 3}, "instructions is 3; give text or a function of the run"),
        ({"metadata": {"a": object()}}, "metadata cannot be stored as JSON: "),
    ],
)
async def test_invalid_options_are_refused_before_the_run(options: dict[str, Any], why: str) -> None:
    journal = MemoryJournal()
    one = agent("never", journal=journal)
    for start in (one.run, one.deposit):
        with pytest.raises(ConfigError) as refused:
            await start("go", **options)
        assert str(refused.value).startswith(why)
    async with LocalEngine(one) as engine:
        with pytest.raises(ConfigError) as refused:
            await engine.submit("go", **options)
        assert str(refused.value).startswith(why)
    assert [head async for head in journal.runs(graph="llm_loop")] == []


async def test_deps_of_a_deposited_run_are_refused() -> None:
    with pytest.raises(ConfigError, match="deps of a deposited run cannot be stored"):
        await agent("never").deposit("go", deps=3)


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(ConfigError, match="a run has no option 'run_idd'; did you mean 'run_id'"):
        agent("never").run_sync("go", run_idd="r")  # type: ignore[call-arg]


# ---- variants of an agent ----


async def test_a_variant_has_its_own_model_and_tools_and_shares_machine_and_journal() -> None:
    journal = MemoryJournal()
    one = agent("agent's", journal=journal, name="support", instructions="Agent.", params={"seed": 3})
    hooks = Requests()
    other = agent(
        call("search", query="x"), "variant's", hooks=[hooks], tools=[search], instructions="Agent."
    )
    assert (await other.replace(model=ScriptedLLM(["replaced"])).run("go")).output == "replaced"
    small = one.replace(model=ScriptedLLM([call("look"), "done"]), tools=[search], deps="own")
    result = await small.run("go", run_id="v")
    assert "there is no tool 'look'" in result.messages[-2].text
    assert (await one.run("go", run_id="a")).output == "agent's"
    assert {head.agent async for head in journal.runs()} == {"support"}
    assert small.machine is one.machine
    assert [message.text for message in result.messages[:1]] == ["Agent."]


async def test_a_variant_keeps_what_is_not_replaced() -> None:
    hooks = Requests()
    one = agent('{"name": "Delft"}', hooks=[hooks], output_type=City, params={"seed": 3}, deps="host's")
    other = one.replace(instructions="Other.", name="other", version="2")
    assert (await other.run("go")).output == City(name="Delft")
    [request] = hooks.seen
    assert (request.params, request.messages[0].text) == ({"seed": 3}, "Other.")
    plain = one.replace(model=ScriptedLLM([call("look"), "text"]), output_type=None)
    assert (await plain.run("go")).output == "text"
    assert SEEN == ["host's"]


async def test_an_engine_hosts_an_agent_and_its_variant() -> None:
    one = agent("agent's", name="a")
    agents = {"a": one, "b": one.replace(name="b", model=ScriptedLLM(["variant's"]))}
    async with LocalEngine(agents) as engine:
        assert [(await (await engine.submit("go", agent=name))).output for name in "ab"] == [
            "agent's",
            "variant's",
        ]


async def test_a_variant_with_a_factory_resumes_a_run_that_waits_for_deps() -> None:
    journal = MemoryJournal()
    await left(journal, {}, deps="live")
    one = agent(call("look"), "done", journal=journal)
    with pytest.raises(Suspended):
        await one.resume("r")
    assert (await one.replace(deps=lambda _: "built").resume("r")).output == "done"
    assert SEEN == ["built"]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"model": 3}, "model must have `async complete"),
        ({"tools": 3}, "tools is 3; give a list of functions"),
        ({"name": "a b"}, "name is 'a b'; give 1 to 100 letters"),
        ({"output_type": 3}, "output_type 3 is neither a type nor a JSON schema"),
    ],
)
def test_invalid_changes_of_an_agent_are_refused(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError) as refused:
        agent("never").replace(**changes)
    assert str(refused.value).startswith(why)


def test_an_unknown_change_is_refused() -> None:
    with pytest.raises(ConfigError, match="replace has no argument 'modle'; did you mean 'model'"):
        agent("never").replace(modle=3)  # type: ignore[call-overload]

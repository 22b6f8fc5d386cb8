"""`context.sample`: a tool asks the model of its run, as a child run under the budgets of that run."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.errors import ConfigError, StoreDown
from orchestrator.journal.crashing import CrashingJournal
from orchestrator.journal.memory import MemoryJournal
from orchestrator.kernel.outcome import Outcome
from orchestrator.llm.message import Message, Request, Response, Usage
from orchestrator.machines.llm_loop.limits import Limits
from orchestrator.providers.scripted import FunctionLLM, ScriptedLLM, call
from orchestrator.runtime.llm_loop.agent import Agent
from orchestrator.runtime.llm_loop.agent_tool import RunSampler, sampling_params
from orchestrator.testing.clock import FakeClock
from orchestrator.tools.sampling import SamplingRequest
from orchestrator.tools.spec import ToolContext, ToolSpec, tool
from tests.runtime.stage import NO_WAIT
from tests.runtime.test_subagents import told
from tests.with_runtime import with_runtime

USAGE = Usage(10, 5)
SILENT: dict[str, Any] = {"observers": (), "retry": NO_WAIT}
TITLE = SamplingRequest([Message("user", "Foxes.")], "Write a headline.", 50, 0.5, ("\n",))


def writer(*requests: SamplingRequest) -> ToolSpec:
    """A tool that samples each request in turn, and returns the answers."""

    @tool(effect="idempotent")
    async def write(context: ToolContext) -> str:
        """Write."""
        assert context.sample is not None
        return ", ".join([(await context.sample(request)).message().text for request in requests])

    return write


def agent_of(script: list[Any], *requests: SamplingRequest, **options: Any) -> Agent:
    llm = ScriptedLLM(script, usage=USAGE)
    tools = [writer(*(requests or (TITLE,)))]
    return Agent(llm, name="editor", tools=tools, **with_runtime(**{**SILENT, **options}))


async def test_a_request_of_a_tool_is_a_child_run_without_tools_that_counts_for_its_run() -> None:
    journal = MemoryJournal()
    llm = ScriptedLLM([call("write"), "A", "B", "C", "done"], usage=USAGE)
    tools = [writer(TITLE, TITLE, replace(TITLE, stop=()))]
    agent = Agent(
        llm,
        tools=tools,
        instructions="Be an editor.",
        output_type=None,
        **with_runtime(journal=journal, **SILENT),
    )
    result = await agent.run("go", run_id="r", tags={"team": "news"})
    assert (result.output, told(result)) == ("done", "A, B, C")
    assert (result.usage.input_tokens, result.usage.output_tokens) == (50, 25)
    children = [head async for head in journal.runs(parent_run_id="r")]
    digests = [f"r:1:0:{one.digest[:16]}" for one in (TITLE, replace(TITLE, stop=()))]
    assert [head.run_id for head in children] == [digests[0], f"{digests[0]}.2", digests[1]]
    assert {(head.outcome, head.tokens, head.tags["team"]) for head in children} == {
        ("completed", 15, "news")
    }
    asked = llm.requests[1]
    assert (asked.tools, asked.params) == ((), {"max_tokens": 50, "temperature": 0.5, "stop": ["\n"]})
    assert [*asked.messages] == [Message("system", "Write a headline."), Message("user", "Foxes.")]


async def test_a_used_up_budget_refuses_the_request_before_it_is_sent() -> None:
    agent = agent_of([call("write"), "never"], limits=Limits(max_input_tokens=10))
    result = await agent.run("go")
    assert (result.outcome, result.usage.input_tokens) == (Outcome.BUDGET_EXCEEDED, 10)
    assert "BudgetExceeded" in told(result)


async def test_outside_its_run_nothing_is_sampled() -> None:
    with pytest.raises(ConfigError, match="only inside the run that calls it"):
        await RunSampler("r", "1:0")(TITLE)
    assert ToolContext("r", "r:1:0").sample is None


async def test_the_request_of_a_stopped_run_is_stopped_with_it() -> None:
    asked, journal = asyncio.Event(), MemoryJournal()

    async def model(request: Request) -> Any:
        if request.tools:
            return call("write")
        asked.set()
        return await asyncio.Event().wait()

    agent = Agent(FunctionLLM(model), tools=[writer(TITLE)], **with_runtime(journal=journal, **SILENT))
    running = asyncio.create_task(agent.run("go", run_id="r"))
    await asked.wait()
    agent.cancel("r")
    assert (await running).outcome is Outcome.CANCELLED
    assert [head.outcome async for head in journal.runs(parent_run_id="r")] == ["cancelled"]


async def test_the_time_of_the_model_does_not_count_for_the_timeout_of_the_tool() -> None:
    clock = FakeClock()

    async def model(request: Request) -> Any:
        if not request.tools:
            await clock.advance(100)
            return "Fox"
        return "done" if request.messages[-1].role == "tool" else call("write")

    tools = [replace(writer(TITLE, TITLE), timeout=10.0)]
    agent = Agent(FunctionLLM(model), tools=tools, **with_runtime(clock=clock, **SILENT))
    assert told(await agent.run("go")) == "Fox, Fox"


async def test_the_answer_has_the_model_and_the_reason_of_its_end() -> None:
    found: list[Response] = []

    @tool
    async def write(context: ToolContext) -> str:
        """Write."""
        assert context.sample is not None
        found.append(await context.sample(TITLE))
        return ""

    cut = Response("Fox", finish_reason="length", usage=USAGE, model="m-1")
    await Agent(ScriptedLLM([call("write"), cut, "done"]), tools=[write], **SILENT).run("go")
    assert found == [cut]


async def crashed(at: int, when: Any) -> tuple[list[Request], MemoryJournal, bool]:
    inner = MemoryJournal()
    broken = CrashingJournal(inner, at=at, when=when, on=("create", "append"))
    llm = editor()
    with contextlib.suppress(StoreDown):
        await Agent(llm, tools=[writer(TITLE, TITLE)], **with_runtime(journal=broken, **SILENT)).run(
            "go", run_id="r"
        )
    return llm.requests, inner, broken.crashed


def editor() -> FunctionLLM:
    def model(request: Request) -> Response:
        if not request.tools:
            return Response("Fox", usage=USAGE)
        if request.messages[-1].role == "tool":
            return Response("done", usage=USAGE)
        return replace(Response(None, usage=USAGE), tool_calls=(call("write"),))

    return FunctionLLM(model)


@pytest.mark.parametrize("when", ["before", "after"])
async def test_after_a_crash_at_any_write_a_recorded_answer_is_read_and_each_request_counts_once(
    when: Any, campaign: Callable[[int, int], int]
) -> None:
    for at in itertools.count(1, campaign(2, 1)):
        asked, inner, died = await crashed(at, when)
        if not died:
            break
        heads = [head async for head in inner.runs()]
        if not heads:
            continue
        for owner in {head.owner for head in heads if head.owner}:
            inner.bury(owner)
        llm = editor()
        later = Agent(llm, tools=[writer(TITLE, TITLE)], **with_runtime(journal=inner, **SILENT))
        result = await later.resume("r")

        assert (result.outcome, told(result)) == (Outcome.COMPLETED, "Fox, Fox"), at
        names = [f"r:1:0:{TITLE.digest[:16]}", f"r:1:0:{TITLE.digest[:16]}.2"]
        assert sorted([head.run_id async for head in inner.runs(parent_run_id="r")]) == names
        answers = [
            one.body["usage"]["input_tokens"]
            for run_id in ("r", *names)
            for one in await inner.load(run_id)
            if one.kind == "answer"
        ]
        assert len(answers) == 4, "one for each request"
        lost = len(asked) + len(llm.requests) - len(answers)
        estimated = result.usage.estimated_input_tokens  # for an answer that a crash may have lost
        assert 0 <= lost <= bool(estimated)
        assert result.usage.input_tokens - estimated == sum(answers), at
    assert at > 12


class Vendor:
    """A model that knows some parameters."""

    def __init__(self, *known: str) -> None:
        self.known = known

    def check_params(self, params: Any) -> None:
        for name in params:
            if name not in self.known:
                raise ConfigError(name)


@pytest.mark.parametrize(
    ("known", "own", "found"),
    [
        (("max_tokens", "stop_sequences"), {}, {"max_tokens": 50, "stop_sequences": ["\n"]}),
        (("max_tokens", "max_completion_tokens", "stop"), {}, {"max_completion_tokens": 50, "stop": ["\n"]}),
        (("max_output_tokens", "temperature"), {}, {"max_output_tokens": 50, "temperature": 0.5}),
        (("max_tokens", "temperature"), {"max_tokens": 20, "temperature": 1}, {"max_tokens": 20}),
        ((), {}, {}),
    ],
)
def test_the_parameters_have_the_names_of_the_model_and_no_more_than_the_host_allows(
    known: Any, own: Any, found: Any
) -> None:
    llm: Any = Vendor(*known)
    deps = replace(agent_of([])._deps, llm=llm, params=own)
    assert sampling_params(deps, TITLE) == found

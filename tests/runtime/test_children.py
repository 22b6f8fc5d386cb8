"""The child runs of agents as tools: their outputs as values, and the ways in which they end."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel

from orchestrator import (
    Agent,
    Limits,
    MemoryJournal,
    Response,
    Result,
    Runs,
    ToolContext,
    Usage,
    Verdict,
    tool,
)
from orchestrator.errors import LLMError, StoreDown
from orchestrator.journal.crashing import CrashingJournal
from orchestrator.testing import FunctionLLM, ScriptedLLM, call
from orchestrator_guards import Guardrail
from tests.runtime.stage import NO_WAIT

SILENT: dict[str, Any] = {"observers": (), "retry": NO_WAIT}
USAGE = Usage(10, 5)


class Report(BaseModel):
    total: int


def reporter(**options: Any) -> Agent[Any, Report]:
    return Agent(
        FunctionLLM(lambda _: '{"total": 7}'), output_type=Report, name="reporter", **SILENT, **options
    )


def asking(tools: list[Any], *calls: Any, journal: Any = None) -> Agent:
    """An agent that makes these calls in its first answer, and then answers."""

    def model(request: Any) -> Any:
        return "done" if request.messages[-1].role == "tool" else list(calls)

    return Agent(FunctionLLM(model), name="boss", tools=tools, journal=journal or MemoryJournal(), **SILENT)


def read_by_the_model(result: Result[Any]) -> list[str]:
    return [message.text for message in result.messages if message.role == "tool"]


def shown(result: Result[Any]) -> list[tuple[Any, ...]]:
    return [(one.run_id, one.agent, one.outcome, one.reason, one.output) for one in result.children]


# ---- values ----


async def test_a_result_has_the_values_of_its_children_in_the_order_of_their_calls() -> None:
    slow = asyncio.Event()

    async def late(_: Any) -> str:
        await slow.wait()
        return "late"

    async def early(_: Any) -> str:
        slow.set()
        return '{"total": 1}'

    first = Agent(FunctionLLM(late), name="first", **SILENT)
    second = Agent(FunctionLLM(early), name="second", output_type=Report, **SILENT)
    tools = [first.as_tool("one", "One."), second.as_tool("two", "Two.")]
    result = await asking(tools, call("one", task="a"), call("two", task="b")).run("go", run_id="p")
    assert [(one.run_id, one.agent, one.output) for one in result.children] == [
        ("p:1:0", "first", "late"),
        ("p:1:1", "second", Report(total=1)),
    ]
    assert read_by_the_model(result) == ["late", '{"total":1}']


async def test_more_than_ten_children_keep_the_order_of_their_calls() -> None:
    calls = [call("report", task=str(number)) for number in range(12)]
    result = await asking([reporter().as_tool("report", "Report.")], *calls).run("go", run_id="p2")
    assert [one.run_id for one in result.children] == [f"p2:1:{number}" for number in range(12)]


async def test_a_tool_that_calls_an_agent_gets_the_value_and_the_model_reads_json_once() -> None:
    report = reporter().as_tool("report", "Report.")
    seen: list[Any] = []

    @tool(effect="idempotent")
    async def double(context: ToolContext, task: str) -> dict[str, Any]:
        """Double the total of a report."""
        found = await report(context, task)
        seen.append(found)
        return {"report": found, "doubled": 2 * found.total}

    result = await asking([double], call("double", task="x")).run("go", run_id="p")
    assert seen == [Report(total=7)]
    assert read_by_the_model(result) == ['{"report":{"total":7},"doubled":14}']
    assert [one.output for one in result.children] == [Report(total=7)]


async def test_a_child_has_its_own_children_and_no_conversation() -> None:
    middle = asking([reporter().as_tool("report", "Report.")], call("report", task="x"))
    result = await asking([middle.as_tool("middle", "Ask.")], call("middle", task="x")).run("go", run_id="p")
    (child,) = result.children
    assert (child.run_id, child.messages, child.transitions) == ("p:1:0", (), ())
    assert [(one.run_id, one.output) for one in child.children] == [("p:1:0:1:0", Report(total=7))]


async def test_a_run_without_children_and_its_stored_result_have_none() -> None:
    journal = MemoryJournal()
    one = Agent(ScriptedLLM(["hello"]), journal=journal, **SILENT)
    assert (await one.run("go", run_id="p")).children == ()

    class Unlisted:
        """A journal in which no child runs are looked for."""

        def __getattr__(self, name: str) -> Any:
            assert name != "runs"
            return getattr(journal, name)

    unlisted: Any = Unlisted()
    assert (await Runs(unlisted).result("p")).children == ()


@pytest.mark.parametrize("at", range(2, 20))
async def test_children_that_ended_before_a_crash_are_in_the_result_of_the_resumed_run(at: int) -> None:
    def agent(on: Any) -> Agent:
        middle = asking([reporter().as_tool("report", "Report.")], call("report", task="x"))
        tools = [middle.as_tool("middle", "Ask."), reporter().as_tool("report", "Report.")]
        return asking(tools, call("middle", task="x"), call("report", task="y"), journal=on)

    expected = await agent(MemoryJournal()).run("go", run_id="p")
    journal = MemoryJournal()
    with contextlib.suppress(StoreDown):
        await agent(CrashingJournal(journal, at=at, on=("create", "append"))).run("go", run_id="p")
    for owner in {head.owner async for head in journal.runs() if head.owner}:
        journal.bury(owner)
    resumed, read = await agent(journal).resume("p"), await agent(journal).resume("p")
    assert [one.usage for one in resumed.children] == [one.usage for one in read.children]
    for result in (resumed, read):
        assert [one.output for one in result.children] == ["done", Report(total=7)]
        assert shown(result) == shown(expected)
        assert shown(result.children[0]) == shown(expected.children[0])
    stored = await Runs(journal).result("p")
    assert [one.output for one in stored.children] == ["done", {"total": 7}]
    assert [one.output for one in stored.children[0].children] == [{"total": 7}]


async def test_a_run_of_a_team_has_the_children_of_all_its_agents() -> None:
    def team(journal: MemoryJournal) -> Agent:
        report = reporter().as_tool("report", "Report.")
        billing = Agent(
            ScriptedLLM([call("report", task="b"), "paid"]), name="billing", tools=[report], **SILENT
        )
        script = [call("report", task="a"), call("transfer_to_billing")]
        return Agent(
            ScriptedLLM(script), name="triage", tools=[report], handoffs=[billing], journal=journal, **SILENT
        )

    journal = MemoryJournal()
    live = await team(journal).run("go", run_id="p")
    assert [(one.run_id, one.output) for one in live.children] == [
        ("p:s1:1:0", Report(total=7)),
        ("p:s2:1:0", Report(total=7)),
    ]
    assert shown(await team(journal).resume("p")) == shown(live)
    assert [one.output for one in (await Runs(journal).result("p")).children] == [{"total": 7}] * 2


# ---- ends ----


@tool(effect="pure")
def look() -> str:
    """Look."""
    return "nothing"


def no_cards(cards: int) -> Verdict:
    return Verdict(cards == 0, "no_cards", cards, 0)


def _answers(*script: Any, **options: Any) -> Callable[[], Agent]:
    return lambda: Agent(
        ScriptedLLM(list(script), usage=USAGE), name="child", tools=[look], **SILENT, **options
    )


ENDS: dict[str, tuple[Callable[[], Agent], str, str, str, Any, str]] = {
    "completed": (_answers("gold"), "completed", "none", "", "gold", "gold"),
    "partial": (
        _answers(call("look"), "half", limits=Limits(max_iterations=2, wrap_up_turns=1)),
        *("partial", "max_iterations", "RunPartial", "half"),
        "it used 20 input and 10 output tokens; its incomplete output: half",
    ),
    "truncated": (
        _answers(Response("the first", finish_reason="length", usage=USAGE)),
        *("partial", "truncated", "RunPartial", "the first"),
        "its incomplete output: the first",
    ),
    "filtered": (
        _answers(Response("the fi", finish_reason="content_filter", usage=USAGE)),
        *("partial", "filtered", "RunPartial", "the fi"),
        "its incomplete output: the fi",
    ),
    "refused": (
        _answers(Response("I would rather", finish_reason="stop", refusal="I will not.", usage=USAGE)),
        *("partial", "refused", "RunPartial", "I would rather"),
        "its incomplete output: I would rather",
    ),
    "budget": (
        _answers(call("look"), "late", limits=Limits(max_iterations=1)),
        *("budget_exceeded", "max_iterations", "BudgetExceeded", None),
        "it used 10 input and 5 output tokens",
    ),
    "no progress": (
        _answers(*[call("look")] * 9, limits=Limits(max_no_progress=2)),
        *("no_progress", "stalled", "NoProgress", None),
        "it used",
    ),
    "guardrail": (
        _answers(
            "gold",
            input_guards=[
                Guardrail(no_cards, {"cards": lambda text: text.count("dig")}, on_refusal="refuse")
            ],
        ),
        *("rejected", "guardrail", "RunRejected", None),
        "it used 0 input and 0 output tokens",
    ),
    "failed": (
        _answers(LLMError("overloaded", kind="auth")),
        *("failed", "llm_error", "RunFailed", None),
        "overloaded",
    ),
}


@pytest.mark.parametrize("name", ENDS)
async def test_each_end_of_a_child_is_told_to_the_model_and_to_the_host(name: str) -> None:
    make, outcome, reason, kind, output, said = ENDS[name]
    journal = MemoryJournal()
    dig = make().as_tool("dig", "Dig.")
    live = await asking([dig], call("dig", task="dig"), journal=journal).run("go", run_id="p")
    for result in (live, await Runs(journal).result("p")):
        (child,) = result.children
        assert (child.outcome.value, child.reason, child.output) == (outcome, reason, output)
        assert child.usage == (await Runs(journal).result("p:1:0")).usage
        (text,) = read_by_the_model(result)
        if kind:
            read = json.loads(text)
            assert read["type"] == kind
            assert read["error"].startswith(f"run p:1:0 ended as {outcome} ({reason}")
            assert said in read["error"]
        else:
            assert text == said


@pytest.mark.parametrize("whom", ["p:1:0", "p"])
async def test_a_cancelled_child_is_in_the_result_of_its_parent(whom: str) -> None:
    asked, journal = asyncio.Event(), MemoryJournal()

    async def never(_: Any) -> str:
        asked.set()
        await asyncio.Event().wait()
        return "never"

    child = Agent(FunctionLLM(never), name="child", **SILENT)
    parent = asking([child.as_tool("dig", "Dig.")], call("dig", task="x"), journal=journal)
    running = asyncio.create_task(parent.run("go", run_id="p"))
    await asked.wait()
    parent.cancel(whom, by="ann", why="enough")
    for result in (await running, await Runs(journal).result("p")):
        assert [(one.outcome.value, one.reason, one.output) for one in result.children] == [
            ("cancelled", "caller", None)
        ]
        (child_end,) = result.children
        estimated = child_end.usage.estimated_input_tokens
        assert estimated > 0, "what the lost request cost is not known, and not counted as zero"
        if whom != "p":
            (text,) = read_by_the_model(result)
            read = json.loads(text)
            assert read["type"] == "RunCancelled"
            assert f"of which {estimated:,} and " in read["error"]
            assert "are estimated" in read["error"]
